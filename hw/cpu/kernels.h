// One level of the kernels. kernels.c includes this file once for each level, with LEVEL (the suffix of every name) and
// TARGET (the function attribute that lets the compiler use the level's instructions) defined. The loops are plain C,
// and the compiler vectorizes them. Macros give only what it cannot derive: WIDEN_F16 and the like convert HALF_STEP
// elements of a half type, STREAM stores STREAM_BYTES past the caches.

#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define NAME(x) GLUE(x, LEVEL)

// d[i] = expr of x = a[i] and y = b[i]. d may equal a or b: each element is read before it is written. INDEPENDENT
// tells the compiler that there is no other overlap.
#define BINARY(name, T, expr)                                                      \
	TARGET static void NAME(name)(void *d_, const void *a_, const void *b_, size_t n) { \
		T *d = d_;                                                                 \
		const T *a = a_, *b = b_;                                                  \
		INDEPENDENT for (size_t i = 0; i < n; i++) {                               \
			T x = a[i], y = b[i];                                                  \
			d[i] = (T)(expr);                                                      \
		}                                                                          \
	}

// d[i] = expr of x = a[i] and the number f or the integer k. d may equal a.
#define UNARY(name, D, S, expr)                                                    \
	TARGET static void NAME(name)(void *d_, const void *a_, size_t n, double f, uint64_t k) { \
		D *d = d_;                                                                 \
		const S *a = a_;                                                           \
		(void)f, (void)k;                                                          \
		INDEPENDENT for (size_t i = 0; i < n; i++) {                               \
			S x = a[i];                                                            \
			d[i] = (D)(expr);                                                      \
		}                                                                          \
	}

// Sums and products of integers wrap, which C allows for unsigned types only. The bits are the same for signed types.
#define UNSIGNED(s, T)                  \
	BINARY(sum_u##s, T, 1u * x + y)     \
	BINARY(prod_u##s, T, 1u * x * y)    \
	UNARY(scale_u##s, T, T, 1u * x * (T)k)
#define ORDERED(s, T)                   \
	BINARY(min_##s, T, x < y ? x : y)   \
	BINARY(max_##s, T, x < y ? y : x)
#define FLOATING(s, T)                  \
	BINARY(sum_##s, T, x + y)           \
	BINARY(prod_##s, T, x * y)          \
	BINARY(min_##s, T, min_##s(x, y))   \
	BINARY(max_##s, T, max_##s(x, y))   \
	UNARY(div_##s, T, T, x / (T)f)      \
	UNARY(scale_##s, T, T, x * (T)f)

UNSIGNED(8, uint8_t)
UNSIGNED(16, uint16_t)
UNSIGNED(32, uint32_t)
UNSIGNED(64, uint64_t)
ORDERED(i8, int8_t)
ORDERED(u8, uint8_t)
ORDERED(i16, int16_t)
ORDERED(u16, uint16_t)
ORDERED(i32, int32_t)
ORDERED(u32, uint32_t)
ORDERED(i64, int64_t)
ORDERED(u64, uint64_t)
FLOATING(f32, float)
FLOATING(f64, double)

// Bools: a byte other than 0 is 1.
BINARY(min_bool, uint8_t, (x < y ? x : y) != 0)
BINARY(max_bool, uint8_t, (x | y) != 0)

// Integer division truncates. A float can hold the quotient of 16-bit integers, and a double that of 32-bit ones: the
// rounded quotient never reaches the next integer. These divisions are vectorized.
UNARY(div_i8, int8_t, int8_t, (int32_t)((float)x / (float)f))
UNARY(div_u8, uint8_t, uint8_t, (int32_t)((float)x / (float)f))
UNARY(div_i16, int16_t, int16_t, (int32_t)((float)x / (float)f))
UNARY(div_u16, uint16_t, uint16_t, (int32_t)((float)x / (float)f))
UNARY(div_i32, int32_t, int32_t, (int32_t)((double)x / f))
UNARY(div_u32, uint32_t, uint32_t, (uint32_t)((double)x / f))
UNARY(div_i64, int64_t, int64_t, x / (int64_t)k)
UNARY(div_u64, uint64_t, uint64_t, x / k)

// A conversion by CONVERT, which takes HALF_STEP elements. The rest is converted in a copy.
#define CONVERSION(name, D, S, CONVERT)                                            \
	TARGET static void NAME(name)(void *d_, const void *a_, size_t n, double f, uint64_t k) { \
		D *d = d_, out[HALF_STEP];                                                 \
		const S *a = a_;                                                           \
		S in[HALF_STEP] = {0};                                                     \
		(void)f, (void)k;                                                          \
		for (; n >= HALF_STEP; n -= HALF_STEP, d += HALF_STEP, a += HALF_STEP)     \
			CONVERT(d, a);                                                         \
		if (n > 0) {                                                               \
			memcpy(in, a, n * sizeof(S));                                          \
			CONVERT(out, in);                                                      \
			memcpy(d, out, n * sizeof(D));                                         \
		}                                                                          \
	}

#ifdef WIDEN_F16
CONVERSION(widen_f16, float, uint16_t, WIDEN_F16)
CONVERSION(narrow_f16, uint16_t, float, NARROW_F16)
#else
UNARY(widen_f16, float, uint16_t, float_of_f16(x))
UNARY(narrow_f16, uint16_t, float, f16_of_float(x))
#endif
#ifdef WIDEN_BF16
CONVERSION(widen_bf16, float, uint16_t, WIDEN_BF16)
CONVERSION(narrow_bf16, uint16_t, float, NARROW_BF16)
#else
UNARY(widen_bf16, float, uint16_t, float_of_bf16(x))
UNARY(narrow_bf16, uint16_t, float, bf16_of_float(x))
#endif

// Copies bytes past the caches, in whole lines of d; the head and the tail are copied normally. Lines of four pages
// take turns, which keeps more banks of the memory busy than one page would. The caller fences.
TARGET static void NAME(stream)(void *d_, const void *s_, size_t bytes) {
#ifdef STREAM
	uint8_t *d = d_;
	const uint8_t *s = s_;
	enum { line = 64, page = 4096, pages = 4 };
	size_t i = -(uintptr_t)d % line;
	if (i > bytes)
		i = bytes;
	memcpy(d, s, i);
	for (; i + pages * page <= bytes; i += pages * page)
		for (size_t j = i; j < i + page; j += line)
			for (size_t p = j; p < j + pages * page; p += page) {
				__builtin_prefetch(s + p + 8 * line);
				for (size_t k = p; k < p + line; k += STREAM_BYTES)
					STREAM(d + k, s + k);
			}
	for (; i + STREAM_BYTES <= bytes; i += STREAM_BYTES)
		STREAM(d + i, s + i);
	memcpy(d + i, s + i, bytes - i);
#else
	memmove(d_, s_, bytes);
#endif
}

// The rows are in dtype's order. Half types are widened first, so they have no binary kernels of their own.
static const struct level NAME(level) = {
	.binary = {
		{0},
		{NAME(sum_u8), NAME(prod_u8), NAME(min_i8), NAME(max_i8)},
		{NAME(sum_u8), NAME(prod_u8), NAME(min_u8), NAME(max_u8)},
		{NAME(sum_u16), NAME(prod_u16), NAME(min_i16), NAME(max_i16)},
		{NAME(sum_u16), NAME(prod_u16), NAME(min_u16), NAME(max_u16)},
		{NAME(sum_u32), NAME(prod_u32), NAME(min_i32), NAME(max_i32)},
		{NAME(sum_u32), NAME(prod_u32), NAME(min_u32), NAME(max_u32)},
		{NAME(sum_u64), NAME(prod_u64), NAME(min_i64), NAME(max_i64)},
		{NAME(sum_u64), NAME(prod_u64), NAME(min_u64), NAME(max_u64)},
		{0},
		{0},
		{NAME(sum_f32), NAME(prod_f32), NAME(min_f32), NAME(max_f32)},
		{NAME(sum_f64), NAME(prod_f64), NAME(min_f64), NAME(max_f64)},
		{0, 0, NAME(min_bool), NAME(max_bool)},
	},
	.divide = {0, NAME(div_i8), NAME(div_u8), NAME(div_i16), NAME(div_u16), NAME(div_i32), NAME(div_u32),
		NAME(div_i64), NAME(div_u64), 0, 0, NAME(div_f32), NAME(div_f64)},
	.scale = {0, NAME(scale_u8), NAME(scale_u8), NAME(scale_u16), NAME(scale_u16), NAME(scale_u32), NAME(scale_u32),
		NAME(scale_u64), NAME(scale_u64), 0, 0, NAME(scale_f32), NAME(scale_f64)},
	.widen = {NAME(widen_f16), NAME(widen_bf16)},
	.narrow = {NAME(narrow_f16), NAME(narrow_bf16)},
	.stream = NAME(stream),
};

#undef GLUE_
#undef GLUE
#undef NAME
#undef BINARY
#undef UNARY
#undef UNSIGNED
#undef ORDERED
#undef FLOATING
#undef LEVEL
#undef TARGET
#undef CONVERSION
#undef HALF_STEP
#undef WIDEN_F16
#undef NARROW_F16
#undef WIDEN_BF16
#undef NARROW_BF16
#undef STREAM
#undef STREAM_BYTES
