// What the kernels need from the machine: for a GPU, compiled by clang or nvcc, or for the emulator that tests use
// (UBC_EMULATE), which is plain C++17. Addresses are integers, so that kernels work alike on any device's memory.
#ifndef UBC_PORT_H
#define UBC_PORT_H

#include "abi.h"

// UBC_NAMED is the name of a kernel in this set.
#ifdef UBC_WIDE
#define UBC_NAMED(name) ubc_wide_##name
#else
#define UBC_NAMED(name) ubc_##name
#endif

struct ubc_pair { // 8 bytes of data, which one packet carries
	ubc_u32 w[2];
};

struct ubc_quad { // 16 bytes
	ubc_u32 w[4];
};

#ifndef UBC_EMULATE

#if defined(__clang__) && !defined(__NVCC__)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define UBC_THREAD ((unsigned)__nvvm_read_ptx_sreg_tid_x())
#define UBC_BLOCK ((unsigned)__nvvm_read_ptx_sreg_ctaid_x())
#define UBC_THREADS ((unsigned)__nvvm_read_ptx_sreg_ntid_x())
#define UBC_BLOCKS ((unsigned)__nvvm_read_ptx_sreg_nctaid_x())
#else
#define UBC_THREAD threadIdx.x
#define UBC_BLOCK blockIdx.x
#define UBC_THREADS blockDim.x
#define UBC_BLOCKS gridDim.x
#endif

// Everything is inlined: only then does the compiler leave the parameters where the launch has put them. A kernel's
// registers are limited so that `grids` blocks fit on a multiprocessor.
#define UBC_FN static __device__ inline __attribute__((always_inline))
#define UBC_KERNEL_OF(T, name, grids, body) \
	extern "C" __global__ void __launch_bounds__(512, grids) name(const T p) { \
		ubc_grid_dependency();                                               \
		if (!ubc_shut(p))                                                    \
			body(p);                                                           \
	}
// word returns 8 bytes of a kernel's parameters at an offset that the compiler does not know. By itself the compiler
// would first copy all parameters to the stack, or select among all of them.
#define UBC_QUOTED(name) #name
#define UBC_PARAM_WORDS(T, name, word)                                  \
	UBC_FN ubc_u64 word(const T &, ubc_u64 at) {                          \
		ubc_u64 v;                                                          \
		asm("{\n\t.reg .b64 a;\n\tmov.b64 a, " UBC_QUOTED(name) "_param_0;\n\t" \
				"add.s64 a, a, %1;\n\tld.param.u64 %0, [a];\n\t}"             \
				: "=l"(v) : "l"(at));                                           \
		return v;                                                           \
	}
#define UBC_SHARED(T, name, n, id) static __shared__ T name[n]
#define UBC_OPAQUE(x) asm("" : "+l"(x))
#define UBC_UNROLL _Pragma("unroll")
#define UBC_ROLLED _Pragma("unroll 1")

// UBC_SMALL: the longest part that goes as packets where lengths differ, if rows have room for it. UBC_CHUNK: the
// longest message of a ring. UBC_PIECE and UBC_FIFO_DEPTH: the pieces of a large message, and how many fit into a
// separate FIFO. UBC_NARROW: with more rounds than this, staging memory in areas counts as too small.
enum {
	UBC_POLLS = 1024,
	UBC_SMALL = 128 << 10,
	UBC_CHUNK = 256 << 10,
	UBC_PIECE = UBC_FIFO_SLOT_BYTES,
	UBC_FIFO_DEPTH = UBC_FIFO_SLOTS,
	UBC_NARROW = 8
};

UBC_FN void ubc_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// ubc_grid_dependency waits until the kernel before this one in the stream has ended, in case this one was launched
// early. Then it lets the next one launch, one at a time, so that kernels that only wait do not fill the device. The
// host removes the comment marks for devices that have these instructions.
UBC_FN void ubc_grid_dependency() {
	asm volatile("/*sm_90 griddepcontrol.wait; sm_90*/\n\t/*sm_90 griddepcontrol.launch_dependents; sm_90*/" ::: "memory");
}

// ubc_sync_and is a barrier of the block. It reports whether ok was true for all its threads.
UBC_FN bool ubc_sync_and(bool ok) {
	ubc_u32 r;
	asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.and.pred q, 0, p;\n\t"
				 "selp.u32 %0, 1, 0, q;\n\t}"
				 : "=r"(r) : "r"((ubc_u32)ok) : "memory");
	return r != 0;
}

UBC_FN void ubc_pause() {}

UBC_FN ubc_u64 ubc_now() {
	ubc_u64 t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

// User data. A thread reads what another one writes only after a barrier or a flag.
UBC_FN ubc_pair ubc_load8(ubc_u64 a) {
	ubc_pair v;
	asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(a));
	return v;
}

UBC_FN void ubc_store8(ubc_u64 a, ubc_pair v) {
	asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(a), "r"(v.w[0]), "r"(v.w[1]) : "memory");
}

UBC_FN ubc_quad ubc_load16(ubc_u64 a) {
	ubc_quad v;
	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
				 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(a));
	return v;
}

UBC_FN void ubc_store16(ubc_u64 a, ubc_quad v) {
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
				 ::"l"(a), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

// A packet is one access of 16 bytes. Kernels rely only on this: neither of its halves of 8 bytes is torn.
UBC_FN ubc_quad ubc_load_packet(ubc_u64 a) {
	ubc_quad v;
	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
				 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(a) : "memory");
	return v;
}

UBC_FN void ubc_store_packet(ubc_u64 a, ubc_pair v, ubc_u32 flag) {
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
				 ::"l"(a), "r"(v.w[0]), "r"(flag), "r"(v.w[1]), "r"(flag) : "memory");
}

// Stores or loads a thread's part of a line (see lines.h). The last of eight threads has the flag, an epoch and a
// number, in its upper half. All threads of a warp should access a line together. The assembler brings them back
// together after they diverge, but nothing guarantees that, so they check. If they are apart, a store writes the flags
// after the data, and a load clears together: its data does not count.
UBC_FN void ubc_store_line(ubc_u64 a, const ubc_quad &v, ubc_u32 e, ubc_u32 number) {
	bool last = UBC_THREAD % 8 == 7;
	ubc_u32 x = last ? number << 4 | 8 : v.w[2], y = last ? e : v.w[3], mask;
	asm volatile("{\n\t.reg .pred p;\n\tbar.warp.sync 0xffffffff;\n\tactivemask.b32 %0;\n\t"
				 "setp.eq.u32 p, %0, 0xffffffff;\n\t@p st.volatile.global.v4.u32 [%1], {%2, %3, %4, %5};\n\t}"
				 : "=r"(mask) : "l"(a), "r"(v.w[0]), "r"(v.w[1]), "r"(x), "r"(y) : "memory");
	if (mask == 0xffffffff)
		return;
	if (!last)
		asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
					 ::"l"(a), "r"(v.w[0]), "r"(v.w[1]), "r"(x), "r"(y) : "memory");
	asm volatile("fence.acq_rel.sys;\n\tbar.warp.sync 0xffffffff;" ::: "memory");
	if (last)
		asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
					 ::"l"(a), "r"(v.w[0]), "r"(v.w[1]), "r"(x), "r"(y) : "memory");
}

UBC_FN bool ubc_load_line(ubc_u64 a, ubc_quad &v, ubc_u32 e, ubc_u32 number, bool &together) {
	ubc_u32 mask;
	asm volatile("bar.warp.sync 0xffffffff;\n\tactivemask.b32 %4;\n\tld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%5];"
				 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]), "=r"(mask) : "l"(a) : "memory");
	together = together && mask == 0xffffffff;
	return UBC_THREAD % 8 != 7 || (v.w[3] == e && v.w[2] == (number << 4 | 8));
}

UBC_FN bool ubc_warp_and(bool ok) {
	ubc_u32 r;
	asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.all.pred q, p, 0xffffffff;\n\t"
				 "selp.u32 %0, 1, 0, q;\n\t}"
				 : "=r"(r) : "r"((ubc_u32)ok) : "memory");
	return r != 0;
}

// Words that kernels share with each other or with the host.
UBC_FN ubc_u32 ubc_get32(ubc_u64 a) {
	ubc_u32 v;
	asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(a) : "memory");
	return v;
}

UBC_FN ubc_u64 ubc_get64(ubc_u64 a) {
	ubc_u64 v;
	asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory");
	return v;
}

UBC_FN void ubc_put32(ubc_u64 a, ubc_u32 v) {
	asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
}

UBC_FN void ubc_put64(ubc_u64 a, ubc_u64 v) {
	asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(a), "l"(v) : "memory");
}

UBC_FN ubc_u32 ubc_exchange32(ubc_u64 a, ubc_u32 v) {
	ubc_u32 old;
	asm volatile("atom.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(a), "r"(v) : "memory");
	return old;
}

// ubc_fetch_add32 adds to a word of this device's kernels with acquire-release order.
UBC_FN ubc_u32 ubc_fetch_add32(ubc_u64 a, ubc_u32 v) {
	ubc_u32 old;
	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(a), "r"(v) : "memory");
	return old;
}

// Add to a word of any device to which several blocks add: after their earlier writes (release), or in any order
// (relaxed).
UBC_FN void ubc_release_add32(ubc_u64 a, ubc_u32 v) {
	asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
}

UBC_FN void ubc_relaxed_add32(ubc_u64 a, ubc_u32 v) {
	asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
}

UBC_FN void ubc_release32(ubc_u64 a, ubc_u32 v) {
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
}

UBC_FN void ubc_release64(ubc_u64 a, ubc_u64 v) {
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(a), "l"(v) : "memory");
}

// Callers must use the result of an acquire, else the assembler drops it.
UBC_FN ubc_u32 ubc_acquire32(ubc_u64 a) {
	ubc_u32 v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(a) : "memory");
	return v;
}

UBC_FN ubc_u64 ubc_acquire64(ubc_u64 a) {
	ubc_u64 v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory");
	return v;
}

// ubc_divide leaves it to the assembler to choose a shorter division. The compiler would add its own fast path to this
// one.
UBC_FN ubc_u32 ubc_divide(ubc_u32 x, ubc_u32 n) { return x / n; }
UBC_FN ubc_u64 ubc_divide(ubc_u64 x, ubc_u32 n) {
	ubc_u64 q;
	asm("div.u64 %0, %1, %2;" : "=l"(q) : "l"(x), "l"((ubc_u64)n));
	return q;
}

// Half types. bfloat16 is widened by a shift, since cvt does that from sm_90 only.
UBC_FN float ubc_widen_f16(unsigned short h) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

UBC_FN unsigned short ubc_narrow_f16(float f) {
	unsigned short h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

UBC_FN float ubc_widen_bf16(unsigned short h) {
	float f;
	asm("mov.b32 %0, %1;" : "=f"(f) : "r"((ubc_u32)h << 16));
	return f;
}

UBC_FN unsigned short ubc_narrow_bf16(float f) {
	unsigned short h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

UBC_FN float ubc_min(float x, float y) {
	float r;
	asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
	return r;
}

UBC_FN float ubc_max(float x, float y) {
	float r;
	asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
	return r;
}

#else // UBC_EMULATE

#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
unsigned emu_thread(void), emu_block(void), emu_threads(void), emu_blocks(void);
void emu_sync(void);
void emu_yield(void);
uint64_t emu_now(void);
void *emu_shared(int id, size_t n);
}

#define UBC_THREAD emu_thread()
#define UBC_BLOCK emu_block()
#define UBC_THREADS emu_threads()
#define UBC_BLOCKS emu_blocks()
#define UBC_FN [[maybe_unused]] static inline
#define UBC_KERNEL_OF(T, name, grids, body) \
	extern "C" void name(const T *q) { const T p = *q; if (!ubc_shut(p)) body(p); }
#define UBC_PARAM_WORDS(T, name, word) \
	UBC_FN ubc_u64 word(const T &p, ubc_u64 at) { return ubc_emu_load<ubc_u64>((uintptr_t)&p + at); }
#define UBC_SHARED(T, name, n, id) T *name = (T *)emu_shared(id, (n) * sizeof(T))
#define UBC_OPAQUE(x)
#define UBC_UNROLL
#define UBC_ROLLED

// Small values, so that small tests take several rounds.
enum { UBC_POLLS = 64, UBC_SMALL = 1024, UBC_CHUNK = 512, UBC_PIECE = 8192, UBC_FIFO_DEPTH = 3, UBC_NARROW = 8 };

UBC_FN void ubc_sync() { emu_sync(); }

UBC_FN bool ubc_sync_and(bool ok) {
	UBC_SHARED(ubc_u32, bad, 1, 0);
	if (!ok)
		*bad = 1;
	emu_sync();
	ok = *bad == 0;
	emu_sync(); // a later barrier must not set bad before all have read it
	if (!ok) {
		*bad = 0;
		emu_sync();
	}
	return ok;
}

UBC_FN void ubc_pause() { emu_yield(); }
UBC_FN ubc_u64 ubc_now() { return emu_now(); }

template <class T> static inline T ubc_emu_load(ubc_u64 a) {
	T v;
	memcpy(&v, (const void *)(uintptr_t)a, sizeof v);
	return v;
}

template <class T> static inline void ubc_emu_store(ubc_u64 a, T v) { memcpy((void *)(uintptr_t)a, &v, sizeof v); }

// A vector access traps if it is not aligned, as on a GPU.
UBC_FN void ubc_aligned(ubc_u64 a, unsigned n) {
	if (a % n != 0)
		__builtin_trap();
}

UBC_FN ubc_pair ubc_load8(ubc_u64 a) { return ubc_aligned(a, 8), ubc_emu_load<ubc_pair>(a); }
UBC_FN void ubc_store8(ubc_u64 a, ubc_pair v) { ubc_aligned(a, 8), ubc_emu_store(a, v); }
UBC_FN ubc_quad ubc_load16(ubc_u64 a) { return ubc_aligned(a, 16), ubc_emu_load<ubc_quad>(a); }
UBC_FN void ubc_store16(ubc_u64 a, ubc_quad v) { ubc_aligned(a, 16), ubc_emu_store(a, v); }

template <class T> static inline T ubc_emu_get(ubc_u64 a) {
	return __atomic_load_n((T *)(uintptr_t)a, __ATOMIC_ACQUIRE);
}

template <class T> static inline void ubc_emu_put(ubc_u64 a, T v) {
	__atomic_store_n((T *)(uintptr_t)a, v, __ATOMIC_RELEASE);
}

UBC_FN ubc_u32 ubc_get32(ubc_u64 a) { return ubc_emu_get<ubc_u32>(a); }
UBC_FN ubc_u64 ubc_get64(ubc_u64 a) { return ubc_emu_get<ubc_u64>(a); }
UBC_FN void ubc_put32(ubc_u64 a, ubc_u32 v) { ubc_emu_put(a, v); }
UBC_FN void ubc_put64(ubc_u64 a, ubc_u64 v) { ubc_emu_put(a, v); }
UBC_FN ubc_u32 ubc_exchange32(ubc_u64 a, ubc_u32 v) {
	return __atomic_exchange_n((ubc_u32 *)(uintptr_t)a, v, __ATOMIC_ACQ_REL);
}
UBC_FN ubc_u32 ubc_fetch_add32(ubc_u64 a, ubc_u32 v) {
	return __atomic_fetch_add((ubc_u32 *)(uintptr_t)a, v, __ATOMIC_ACQ_REL);
}
// Yields first, so that others may get far ahead of this block.
UBC_FN void ubc_release_add32(ubc_u64 a, ubc_u32 v) {
	emu_yield();
	__atomic_fetch_add((ubc_u32 *)(uintptr_t)a, v, __ATOMIC_RELEASE);
}
UBC_FN void ubc_relaxed_add32(ubc_u64 a, ubc_u32 v) { ubc_release_add32(a, v); }
UBC_FN void ubc_release32(ubc_u64 a, ubc_u32 v) { ubc_emu_put(a, v); }
UBC_FN void ubc_release64(ubc_u64 a, ubc_u64 v) { ubc_emu_put(a, v); }
UBC_FN ubc_u32 ubc_acquire32(ubc_u64 a) { return ubc_emu_get<ubc_u32>(a); }
UBC_FN ubc_u64 ubc_acquire64(ubc_u64 a) { return ubc_emu_get<ubc_u64>(a); }

// The halves of a packet are written one by one; the second may be much later.
UBC_FN ubc_quad ubc_load_packet(ubc_u64 a) {
	ubc_u64 x = ubc_get64(a), y = ubc_get64(a + 8);
	return {{(ubc_u32)x, (ubc_u32)(x >> 32), (ubc_u32)y, (ubc_u32)(y >> 32)}};
}

UBC_FN void ubc_store_packet(ubc_u64 a, ubc_pair v, ubc_u32 flag) {
	ubc_aligned(a, 16);
	ubc_put64(a, (ubc_u64)flag << 32 | v.w[0]);
	emu_yield();
	ubc_put64(a + 8, (ubc_u64)flag << 32 | v.w[1]);
}

UBC_FN ubc_u32 ubc_divide(ubc_u32 x, ubc_u32 n) { return x / n; }
UBC_FN ubc_u64 ubc_divide(ubc_u64 x, ubc_u32 n) { return x / n; }

// Each thread of a line stores its part by itself, and the flag counts the parts.
UBC_FN void ubc_store_line(ubc_u64 a, const ubc_quad &v, ubc_u32 e, ubc_u32 number) {
	ubc_aligned(a, 16);
	ubc_u64 at = (a & ~127ull) + 120, none = (ubc_u64)e << 32 | number << 4, now;
	ubc_put64(a, (ubc_u64)v.w[1] << 32 | v.w[0]);
	if (a % 128 != 112)
		ubc_put64(a + 8, (ubc_u64)v.w[3] << 32 | v.w[2]);
	emu_yield();
	ubc_u64 old = ubc_get64(at);
	do
		now = (old & ~15ull) == none ? old + 1 : none + 1;
	while (!__atomic_compare_exchange_n((ubc_u64 *)(uintptr_t)at, &old, now, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

UBC_FN bool ubc_load_line(ubc_u64 a, ubc_quad &v, ubc_u32 e, ubc_u32 number, bool &) {
	if (ubc_get64((a & ~127ull) + 120) != ((ubc_u64)e << 32 | number << 4 | 8))
		return false;
	ubc_u64 x = ubc_get64(a), y = ubc_get64(a + 8);
	v = {{(ubc_u32)x, (ubc_u32)(x >> 32), (ubc_u32)y, (ubc_u32)(y >> 32)}};
	return true;
}

UBC_FN bool ubc_warp_and(bool ok) { return ok; } // each thread decides for itself

UBC_FN ubc_u32 ubc_bits(float f) { return ubc_emu_load<ubc_u32>((uintptr_t)&f); }
UBC_FN float ubc_of_bits(ubc_u32 u) { return ubc_emu_load<float>((uintptr_t)&u); }

UBC_FN float ubc_widen_f16(unsigned short h) {
	ubc_u32 sign = (ubc_u32)(h & 0x8000) << 16, exp = h >> 10 & 0x1f, frac = h & 0x3ff;
	if (exp == 0)
		return ubc_of_bits(sign | ubc_bits((float)frac * 0x1p-24f));
	return ubc_of_bits(sign | (exp == 31 ? 0x7f800000 : (exp + 112) << 23) | frac << 13);
}

UBC_FN unsigned short ubc_narrow_f16(float f) {
	ubc_u32 b = ubc_bits(f), sign = b >> 16 & 0x8000, abs = b & 0x7fffffff;
	if (abs > 0x7f800000)
		return 0x7fff; // like cvt
	if (abs >= 0x477ff000)
		return (unsigned short)(sign | 0x7c00);
	if (abs < 0x38800000)
		return (unsigned short)(sign | (ubc_bits(ubc_of_bits(abs) + 0.5f) - 0x3f000000));
	return (unsigned short)(sign | (abs + 0xfff + (abs >> 13 & 1) - 0x38000000) >> 13);
}

UBC_FN float ubc_widen_bf16(unsigned short h) { return ubc_of_bits((ubc_u32)h << 16); }

UBC_FN unsigned short ubc_narrow_bf16(float f) {
	ubc_u32 b = ubc_bits(f);
	return f != f ? 0x7fff : (unsigned short)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

UBC_FN float ubc_min(float x, float y) {
	if (x == y) // at most the signs of zeros differ
		return __builtin_signbit(x) ? x : y;
	return x < y || x != x ? x : y;
}

UBC_FN float ubc_max(float x, float y) {
	if (x == y)
		return __builtin_signbit(x) ? y : x;
	return x > y || x != x ? x : y;
}

#endif

#define UBC_KERNEL(name, body) UBC_KERNEL_OF(ubc_params, name, 1, body)

// ubc_shut reports whether a kernel is to do nothing.
template <class T> UBC_FN bool ubc_shut(const T &) { return false; }
UBC_FN bool ubc_shut(const ubc_params &p) { return p.gated && ubc_get64(p.area[0] + UBC_AREA_GATE) == 0; }

// PTX has no min or max of doubles in which a NaN wins.
UBC_FN double ubc_min(double x, double y) {
	if (x == y)
		return __builtin_signbit(x) ? x : y;
	return x < y || x != x ? x : y;
}

UBC_FN double ubc_max(double x, double y) {
	if (x == y)
		return __builtin_signbit(x) ? y : x;
	return x > y || x != x ? x : y;
}

#endif
