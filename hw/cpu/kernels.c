//go:build cgo && !race

// The reductions in C, one set of kernels for each level of instructions; the caller chooses the level. Results equal
// those of go.go bit for bit (except for the payload of a NaN), so nothing here may reassociate or contract.

#if defined(__GNUC__) && !defined(__clang__)
// Comparisons with NaN may raise floating-point exceptions, which nobody checks. Without this the compiler would not
// vectorize them.
#pragma GCC optimize("O3", "no-trapping-math", "no-math-errno")
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#pragma STDC FP_CONTRACT OFF
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#endif

#include "cpu.h"
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { INT8 = 1, FLOAT16 = 9, BFLOAT16, FLOAT32, FLOAT64, BOOL, TYPES }; // as in package dtype
enum { BLOCK = 4096, STREAM_BLOCK = 1024 }; // bytes of accumulators, which fit in the first-level cache

static const size_t sizes[TYPES] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

typedef void binary_fn(void *d, const void *a, const void *b, size_t n);
typedef void unary_fn(void *d, const void *a, size_t n, double f, uint64_t k);

struct level {
	binary_fn *binary[TYPES][4];
	unary_fn *divide[TYPES], *scale[TYPES];
	unary_fn *widen[2], *narrow[2]; // float16, bfloat16
	void (*stream)(void *d, const void *s, size_t bytes);
};

static inline uint32_t bits32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float float32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint64_t bits64(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
static inline double float64(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }

// As Go's min and max: a NaN wins, and -0 is less than +0 (equal operands differ at most in the sign of a zero).
#define MINMAX(s, T, U, bits, value)                          \
	static inline T min_##s(T x, T y) {                       \
		T r = x < y ? x : y;                                  \
		r = x == y ? value(bits(x) | bits(y)) : r;            \
		return x != x ? x : r;                                \
	}                                                         \
	static inline T max_##s(T x, T y) {                       \
		T r = x > y ? x : y;                                  \
		r = x == y ? value(bits(x) & bits(y)) : r;            \
		return x != x ? x : r;                                \
	}
MINMAX(f32, float, uint32_t, bits32, float32)
MINMAX(f64, double, uint64_t, bits64, float64)

static inline float float_of_bf16(uint16_t h) { return float32((uint32_t)h << 16); }

static inline uint16_t bf16_of_float(float f) {
	uint32_t b = bits32(f), r = (b + 0x7fff + (b >> 16 & 1)) >> 16;
	return (uint16_t)(f != f ? b >> 16 | 0x40 : r);
}

static inline float float_of_f16(uint16_t h) {
	uint32_t u = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t small = bits32(float32(u + 0x38800000) - 0x1p-14f); // zero and subnormals; exact
	uint32_t r = u < 0x00800000 ? small : u + 0x38000000;
	r = u >= 0x0f800000 ? u | 0x7f800000 : r;
	return float32(r | sign);
}

static inline uint16_t f16_of_float(float f) {
	uint32_t b = bits32(f), abs = b & 0x7fffffff;
	uint32_t r = (abs + 0xfff + (abs >> 13 & 1) - 0x38000000) >> 13;
	r = abs < 0x38800000 ? bits32(float32(abs) + 0.5f) - 0x3f000000 : r; // the addition rounds to units of 2^-24
	r = abs >= 0x477ff000 ? 0x7c00 : r;
	r = abs > 0x7f800000 ? 0x7e00 | (abs >> 13 & 0x1ff) : r;
	return (uint16_t)(r | (b >> 16 & 0x8000));
}

#define LEVEL portable
#define TARGET
#if defined(__x86_64__)
#define STREAM_BYTES 16
#define STREAM(d, s) _mm_stream_si128((__m128i *)(d), _mm_loadu_si128((const __m128i *)(s)))
#endif
#include "kernels.h"

#if defined(__x86_64__)

// bf16_of_float for 8 values in a register.
__attribute__((target("avx2"))) static inline __m128i narrow8(__m256 f) {
	__m256i b = _mm256_castps_si256(f), r = _mm256_srli_epi32(b, 16);
	__m256i quiet = _mm256_or_si256(r, _mm256_set1_epi32(0x40));
	__m256i even = _mm256_and_si256(r, _mm256_set1_epi32(1));
	r = _mm256_srli_epi32(_mm256_add_epi32(b, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
	r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q)));
	return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

__attribute__((target("avx512f"))) static inline __m256i narrow16(__m512 f) {
	__m512i b = _mm512_castps_si512(f), r = _mm512_srli_epi32(b, 16);
	__m512i quiet = _mm512_or_si512(r, _mm512_set1_epi32(0x40));
	__m512i even = _mm512_and_si512(r, _mm512_set1_epi32(1));
	r = _mm512_srli_epi32(_mm512_add_epi32(b, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
	return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q), quiet));
}

#define LEVEL avx2
#define TARGET __attribute__((target("avx2,f16c")))
#define HALF_STEP 8
#define WIDEN_F16(d, s) _mm256_storeu_ps(d, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s))))
#define NARROW_F16(d, s) \
	_mm_storeu_si128((__m128i *)(d), _mm256_cvtps_ph(_mm256_loadu_ps(s), _MM_FROUND_TO_NEAREST_INT))
#define WIDEN_BF16(d, s) _mm256_storeu_si256((__m256i *)(d), \
	_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(s))), 16))
#define NARROW_BF16(d, s) _mm_storeu_si128((__m128i *)(d), narrow8(_mm256_loadu_ps(s)))
#define STREAM_BYTES 32
#define STREAM(d, s) _mm256_stream_si256((__m256i *)(d), _mm256_loadu_si256((const __m256i *)(s)))
#include "kernels.h"

#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#define HALF_STEP 16
#define WIDEN_F16(d, s) _mm512_storeu_ps(d, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(s))))
#define NARROW_F16(d, s) \
	_mm256_storeu_si256((__m256i *)(d), _mm512_cvtps_ph(_mm512_loadu_ps(s), _MM_FROUND_TO_NEAREST_INT))
#define WIDEN_BF16(d, s) _mm512_storeu_si512((d), \
	_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(s))), 16))
#define NARROW_BF16(d, s) _mm256_storeu_si256((__m256i *)(d), narrow16(_mm512_loadu_ps(s)))
#define STREAM_BYTES 64
#define STREAM(d, s) _mm512_stream_si512((__m512i *)(d), _mm512_loadu_si512((const __m512i *)(s)))
#include "kernels.h"

static const struct level *const levels[UBC_LEVELS] = {&level_portable, 0, &level_avx2, &level_avx512};

int ubc_best(void) {
	unsigned a, b, c = 0, d;
	__get_cpuid(1, &a, &b, &c, &d);
	if (!__builtin_cpu_supports("avx2") || !(c & bit_F16C)) // avx2 implies that the operating system saves the registers
		return UBC_PORTABLE;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return UBC_AVX512;
	return UBC_AVX2;
}

static void fence(void) { _mm_sfence(); }

#elif defined(__aarch64__)

#define LEVEL neon
#define TARGET
#define HALF_STEP 4
#define WIDEN_F16(d, s) vst1q_f32(d, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(s))))
#define NARROW_F16(d, s) vst1_u16(d, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(s))))
#include "kernels.h"

static const struct level *const levels[UBC_LEVELS] = {&level_portable, &level_neon, 0, 0};

int ubc_best(void) { return UBC_NEON; } // every arm64 has NEON

static void fence(void) {}

#else

static const struct level *const levels[UBC_LEVELS] = {&level_portable, 0, 0, 0};

int ubc_best(void) { return UBC_PORTABLE; }

static void fence(void) {}

#endif

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void reduce(const struct level *l, int type, int op, size_t n, long div, int stream, const uint8_t *in,
	uint8_t *out, int ns, const uint8_t *const *s, int nd, uint8_t *const *d) {
	const size_t size = sizes[type];
	const int half = type == FLOAT16 || type == BFLOAT16;
	const int wide = half ? FLOAT32 : type; // the type of the accumulators
	const size_t wsize = sizes[wide];
	binary_fn *f = l->binary[wide][op];
	unary_fn *widen = l->widen[type == BFLOAT16], *narrow = l->narrow[type == BFLOAT16];
	// Division by a power of two is exact as a multiplication, too, which is faster.
	const int shift = wide >= FLOAT32 && div > 1 && (div & (div - 1)) == 0;
	unary_fn *post = shift ? l->scale[wide] : l->divide[wide];
	const double factor = shift ? 1.0 / (double)div : (double)div;
	// Computing and streaming alternate; short turns keep the memory busy.
	const size_t block = (stream ? STREAM_BLOCK : BLOCK) / wsize;
	_Alignas(64) uint8_t acc[BLOCK], tmp[BLOCK];
	// If the result needs nothing more, the last kernel of a block writes the one destination directly.
	const int direct = !half && !out && nd == 1 && div <= 1 && !stream;

	for (size_t i = 0, k; i < n; i += k) {
		k = least(n - i, block);
		const uint8_t *r = in ? in + i * wsize : s[0] + i * size;
		int j = in ? 0 : 1;
		if (!in && half) {
			widen(acc, r, k, 0, 0);
			r = acc;
		}
		if (type == BOOL && !in && ns == 1) { // r holds source bytes, not yet 0 or 1
			f(acc, r, r, k);
			r = acc;
		}
		for (; j < ns; j++) {
			const uint8_t *x = s[j] + i * size;
			if (half) {
				widen(tmp, x, k, 0, 0);
				x = tmp;
			}
			uint8_t *to = direct && j == ns - 1 ? d[0] + i * size : acc;
			f(to, r, x, k);
			r = to;
		}
		if (out) {
			memcpy(out + i * wsize, r, k * wsize);
			continue;
		}
		if (div > 1) {
			post(acc, r, k, factor, (uint64_t)div);
			r = acc;
		}
		if (half) {
			narrow(tmp, r, k, 0, 0);
			r = tmp;
		}
		for (j = 0; j < nd; j++) {
			uint8_t *to = d[j] + i * size;
			if (stream)
				l->stream(to, r, k * size);
			else if (to != r)
				memcpy(to, r, k * size);
		}
	}
	if (stream)
		fence();
}

void ubc_reduce(int level, int type, int op, long n, long div, int stream, const uint8_t *in, uint8_t *out,
	int ns, const uint8_t *s0, const uint8_t *s1, const uint8_t *s2, const uint8_t *s3,
	const uint8_t *s4, const uint8_t *s5, const uint8_t *s6, const uint8_t *s7,
	const uint8_t *s8, const uint8_t *s9, const uint8_t *s10, const uint8_t *s11,
	const uint8_t *s12, const uint8_t *s13, const uint8_t *s14, const uint8_t *s15,
	int nd, uint8_t *d0, uint8_t *d1, uint8_t *d2, uint8_t *d3, uint8_t *d4, uint8_t *d5, uint8_t *d6, uint8_t *d7) {
	const uint8_t *const s[16] = {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15};
	uint8_t *const d[8] = {d0, d1, d2, d3, d4, d5, d6, d7};
	reduce(levels[level], type, op, (size_t)n, div, stream, in, out, ns, s, nd, d);
}

void ubc_reduce2(int level, int type, int op, long n, int stream, uint8_t *d, const uint8_t *a, const uint8_t *b) {
	const uint8_t *const s[2] = {a, b};
	if (!stream && type != FLOAT16 && type != BFLOAT16)
		levels[level]->binary[type][op](d, a, b, (size_t)n);
	else
		reduce(levels[level], type, op, (size_t)n, 0, stream, NULL, NULL, 2, s, 1, &d);
}

void ubc_scale(int level, int type, long n, double f, uint64_t k, uint8_t *d, const uint8_t *a) {
	const struct level *l = levels[level];
	if (type != FLOAT16 && type != BFLOAT16) {
		l->scale[type](d, a, (size_t)n, f, k);
		return;
	}
	_Alignas(64) uint8_t tmp[BLOCK];
	for (size_t i = 0, m; i < (size_t)n; i += m) {
		m = least((size_t)n - i, BLOCK / 4);
		l->widen[type == BFLOAT16](tmp, a + 2 * i, m, 0, 0);
		l->scale[FLOAT32](tmp, tmp, m, f, 0);
		l->narrow[type == BFLOAT16](d + 2 * i, tmp, m, 0, 0);
	}
}

void ubc_stream(int level, uint8_t *d, const uint8_t *s, long bytes) {
	levels[level]->stream(d, s, (size_t)bytes);
	fence();
}
