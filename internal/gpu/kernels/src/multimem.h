// Access to the memory of all ranks at once, through a multicast object. There are three kinds: the device's
// instructions; the emulator's calls (UBC_EMULATE); and, to run the kernels on devices without multicast, in tests, a
// stand-in (UBC_STAND_IN) that accesses each rank's memory by itself.
//
// An object is mapped at p.multi. In the kernels that use it, the words of buffers are DIRECT and the offset in the
// object, or 0. The first four buffers of p.large bytes of the object are every rank's separate staging memory, p.stage.
// With the stand-in, words are those of other kernels, and staging memory is found as there.
//
// What multimem.ld_reduce can do, from the section on multimem in the PTX ISA:
//
//	.add         .u32 .u64 .s32, .f16 .f16x2 .bf16 .bf16x2 .f32 .f64
//	.min .max    .u32 .s32 .u64 .s64, .f16 .f16x2 .bf16 .bf16x2
//
// Floats fill 32, 64 or 128 bits (.v4.f32, .v4.f16x2), without .vec for .f64; integers are single. There is no min or
// max of .f32, and no product. Sums of .s64 are those of .u64. ".acc::f32" (PTX 8.2) adds halves as floats. The order of
// additions is not specified, nor is rounding; so one rank alone reduces an element. It is not specified either what
// becomes of a NaN in min and max, or which zero is less: unlike in the other kernels, a number may win.
//
// Memory that has a multicast and a plain address has aliases: "fence.proxy.alias" must be between an access by the
// one and a later access by the other, on the way by which they are ordered (the section on proxies). Threads do it
// before they signal, and after they have waited.
#ifndef UBC_MULTIMEM_H
#define UBC_MULTIMEM_H

#include "sync.h"
#include "types.h"

// UBC_ONCE: up to so many bytes, if the result does not depend on the order, every rank reduces all.
#ifdef UBC_EMULATE
enum { UBC_ONCE = 512 };
#else
enum { UBC_ONCE = 64 << 10 };
#endif

// ubc_multi is a place in every rank's memory.
#ifdef UBC_STAND_IN
struct ubc_multi {
	const ubc_u64 *at; // by rank, in the block's shared memory
	ubc_u32 n;
};
#else
struct ubc_multi {
	ubc_u64 at;
};
#endif

// ubc_multi_aligned reports whether vectors of the buffers with these words lie at multiples of 16. stride: as
// ubc_multi_find's.
UBC_FN bool ubc_multi_aligned(ubc_u64 word, ubc_u64 stride) { return ((UBC_OFFSET(word) | stride) & 15) == 0; }

#ifdef UBC_STAND_IN

UBC_FN void ubc_alias_fence() {}

// ubc_multi_find finds all ranks' sources (side 0) or destinations (1), unless one is staged. It reports whether they
// are direct. stride is the distance of what different ranks access.
UBC_FN bool ubc_multi_find(
	const ubc_params &p, ubc_u32 e, const ubc_u64 *words, ubc_u32 side, ubc_u64 stride, ubc_u64 *found, ubc_multi &m, bool &ok) {
	m = {found, p.ranks};
	bool direct = true;
	for (ubc_u32 r = 0; r < p.ranks; r++)
		direct = direct && (words[2 * r + side] & UBC_DIRECT) != 0 && ubc_multi_aligned(words[2 * r + side], stride);
	if (direct)
		for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS)
			found[r] = r == p.rank ? (side == 0 ? p.src : p.dst) : ubc_find(p, e, r, words[2 * r + side], true, ok);
	return direct;
}

// ubc_multi_staging finds the staging memory, and where it is mapped as this rank's own. It returns the bytes of each
// of its four buffers.
UBC_FN ubc_u64 ubc_multi_staging(
	const ubc_params &p, ubc_u32 e, const ubc_u64 *words, ubc_u64 *found, ubc_multi &m, ubc_u64 &own, bool &ok) {
	m = {found, p.ranks};
	bool large = ubc_announced(p, words);
	ubc_u64 little = UBC_AREA_PACKETS + 2ull * (p.ranks - 1) * p.row;
	own = large ? p.stage : p.area[0] + little;
	for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS)
		found[r] = r == p.rank ? own : large ? ubc_find(p, e, r, words[2 * p.ranks + r], true, ok)
											 : ubc_area(p, ubc_distance(p, r)) + little;
	return large ? p.large : p.little;
}

// ubc_multi_load reduces 16 bytes of all ranks, at an offset. op: as ubc_op's; an average is only added up.
template <class E> UBC_FN ubc_quad ubc_multi_load(const ubc_multi &m, ubc_u64 at, ubc_u32 op) {
	ubc_total<E, ubc_quad> t = ubc_widened<E>(ubc_load16(m.at[0] + at));
	UBC_ROLLED
	for (ubc_u32 r = 1; r < m.n; r++)
		ubc_add<E>(t, ubc_load16(m.at[r] + at), op);
	return ubc_result<E>(t, 1, op);
}

// ubc_multi_store stores 16 bytes to all ranks.
UBC_FN void ubc_multi_store(const ubc_multi &m, ubc_u64 at, const ubc_quad &v) {
	ubc_pause();
	UBC_ROLLED
	for (ubc_u32 r = 0; r < m.n; r++)
		ubc_store16(m.at[r] + at, v);
}

#else

UBC_FN bool ubc_multi_find(
	const ubc_params &p, ubc_u32, const ubc_u64 *words, ubc_u32 side, ubc_u64 stride, ubc_u64 *, ubc_multi &m, bool &) {
	bool direct = (words[side] & UBC_DIRECT) != 0 && ubc_multi_aligned(words[side], stride);
	for (ubc_u32 r = 1; direct && r < p.ranks; r++)
		direct = words[2 * r + side] == words[side];
	m = {direct ? p.multi + UBC_OFFSET(words[side]) : 0};
	return direct;
}

UBC_FN ubc_u64 ubc_multi_staging(
	const ubc_params &p, ubc_u32, const ubc_u64 *, ubc_u64 *, ubc_multi &m, ubc_u64 &own, bool &) {
	m = {p.multi};
	own = p.stage;
	return p.large;
}

#ifdef UBC_EMULATE

extern "C" {
void emu_multimem_st(void *p, const void *value, size_t n);
void emu_multimem_ld_each(const void *p, size_t n, void *sum, void (*take)(void *sum, const void *x));
}

UBC_FN void ubc_alias_fence() {}

// The accumulator of an emulated load, whose values are summed in the order of the devices.
template <class E, class V> struct ubc_emu_total {
	ubc_total<E, V> t;
	ubc_u32 n, op;
};

template <class E, class V> static void ubc_emu_take(void *sum, const void *x) {
	ubc_emu_total<E, V> &s = *(ubc_emu_total<E, V> *)sum;
	V v = ubc_emu_load<V>((uintptr_t)x);
	if (s.n++ == 0)
		s.t = ubc_widened<E>(v);
	else
		ubc_add<E>(s.t, v, s.op);
}

template <class E, class V> UBC_FN V ubc_emu_reduce(ubc_u64 a, ubc_u32 op) {
	ubc_emu_total<E, V> s = {{}, 0, op};
	emu_multimem_ld_each((const void *)(uintptr_t)a, sizeof(V), &s, ubc_emu_take<E, V>);
	return ubc_result<E>(s.t, 1, op);
}

// Integers are loaded one by one, as by the instructions.
template <class E> UBC_FN ubc_quad ubc_multi_load(const ubc_multi &m, ubc_u64 at, ubc_u32 op) {
	emu_yield();
	if (!E::INTEGER)
		return ubc_emu_reduce<E, ubc_quad>(m.at + at, op);
	ubc_pack<ubc_quad, ubc_one<E>> u;
	for (ubc_u32 i = 0; i < 16 / sizeof(ubc_one<E>); i++)
		u.e[i] = ubc_emu_reduce<E, ubc_one<E>>(m.at + at + i * sizeof(ubc_one<E>), op);
	return u.v;
}

UBC_FN void ubc_multi_store(const ubc_multi &m, ubc_u64 at, const ubc_quad &v) {
	emu_yield();
	emu_multimem_st((void *)(uintptr_t)(m.at + at), &v, sizeof v);
}

#else

UBC_FN void ubc_alias_fence() { asm volatile("fence.proxy.alias;" ::: "memory"); }

#define UBC_LOAD_VECTOR(what)                                                           \
	asm volatile("multimem.ld_reduce.relaxed.sys.global." what " {%0, %1, %2, %3}, [%4];" \
				 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(a) : "memory")
#define UBC_LOAD_WORD(what, x, a) \
	asm volatile("multimem.ld_reduce.relaxed.sys.global." what " %0, [%1];" : "=r"(x) : "l"(a) : "memory")
#define UBC_LOAD_LONG(what, x, a) \
	asm volatile("multimem.ld_reduce.relaxed.sys.global." what " %0, [%1];" : "=l"(x) : "l"(a) : "memory")

// ubc_reduce_at loads a vector of E. There is none for other types. op is without flags.
template <class E> struct ubc_reduce_at;

template <> struct ubc_reduce_at<ubc_float32> {
	UBC_FN ubc_quad load(ubc_u64 a, ubc_u32, bool) {
		ubc_quad v;
		UBC_LOAD_VECTOR("add.v4.f32");
		return v;
	}
};

#define UBC_REDUCE_HALVES(E, type)                            \
	template <> struct ubc_reduce_at<E> {                       \
		UBC_FN ubc_quad load(ubc_u64 a, ubc_u32 op, bool) {       \
			ubc_quad v;                                             \
			if (op == UBC_MIN)                                      \
				UBC_LOAD_VECTOR("min.v4." type);                      \
			else if (op == UBC_MAX)                                 \
				UBC_LOAD_VECTOR("max.v4." type);                      \
			else                                                    \
				UBC_LOAD_VECTOR("add.acc::f32.v4." type);             \
			return v;                                               \
		}                                                         \
	};
UBC_REDUCE_HALVES(ubc_float16, "f16x2")
UBC_REDUCE_HALVES(ubc_bfloat16, "bf16x2")

template <> struct ubc_reduce_at<ubc_uint32> {
	UBC_FN ubc_quad load(ubc_u64 a, ubc_u32 op, bool is_signed) {
		ubc_quad v;
		UBC_UNROLL
		for (int i = 0; i < 4; i++)
			if (op == UBC_MIN && is_signed)
				UBC_LOAD_WORD("min.s32", v.w[i], a + 4 * i);
			else if (op == UBC_MIN)
				UBC_LOAD_WORD("min.u32", v.w[i], a + 4 * i);
			else if (op == UBC_MAX && is_signed)
				UBC_LOAD_WORD("max.s32", v.w[i], a + 4 * i);
			else if (op == UBC_MAX)
				UBC_LOAD_WORD("max.u32", v.w[i], a + 4 * i);
			else
				UBC_LOAD_WORD("add.u32", v.w[i], a + 4 * i);
		return v;
	}
};

template <> struct ubc_reduce_at<ubc_uint64> {
	UBC_FN ubc_quad load(ubc_u64 a, ubc_u32 op, bool is_signed) {
		ubc_pack<ubc_quad, ubc_u64> u;
		UBC_UNROLL
		for (int i = 0; i < 2; i++)
			if (op == UBC_MIN && is_signed)
				UBC_LOAD_LONG("min.s64", u.e[i], a + 8 * i);
			else if (op == UBC_MIN)
				UBC_LOAD_LONG("min.u64", u.e[i], a + 8 * i);
			else if (op == UBC_MAX && is_signed)
				UBC_LOAD_LONG("max.s64", u.e[i], a + 8 * i);
			else if (op == UBC_MAX)
				UBC_LOAD_LONG("max.u64", u.e[i], a + 8 * i);
			else
				UBC_LOAD_LONG("add.u64", u.e[i], a + 8 * i);
		return u.v;
	}
};

template <class E> UBC_FN ubc_quad ubc_multi_load(const ubc_multi &m, ubc_u64 at, ubc_u32 op) {
	return ubc_reduce_at<E>::load(m.at + at, E::INTEGER ? op & UBC_OP : op, ubc_of_signed<E>(op));
}

// Any type's bits pass as floats.
UBC_FN void ubc_multi_store(const ubc_multi &m, ubc_u64 at, const ubc_quad &v) {
	asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
				 ::"l"(m.at + at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

#endif
#endif

// Signals between which the ranks access the same memory by multicast and by plain addresses.
UBC_FN void ubc_multi_signal(const ubc_params &p, ubc_u32 e, ubc_u32 step) {
	ubc_alias_fence();
	ubc_signal(p, e, step);
}

UBC_FN bool ubc_multi_wait(const ubc_params &p, ubc_u32 e, ubc_u32 step) {
	bool ok = ubc_wait_signals(p, e, step);
	ubc_alias_fence();
	return ok;
}

#endif
