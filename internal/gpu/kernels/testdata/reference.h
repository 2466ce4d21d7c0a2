// The results of the reductions, element by element: written in another way than src/types.h, with doubles and wide
// integers.
#ifndef REFERENCE_H
#define REFERENCE_H

#include "coroutines.h"

#include <algorithm>
#include <cmath>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))

enum type {
	INT8 = 1, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL, TYPES
};
static const char *const types[] = {"", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
	"float16", "bfloat16", "float32", "float64", "bool"};
static const unsigned sizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

// A half type, by the number of mantissa bits and the least exponent.
struct format { int mantissa, least, bias; };
static format formatOf(int t) { return t == FLOAT16 ? format{10, -14, 15} : format{7, -126, 127}; }

static double half(int t, unsigned bits) {
	format f = formatOf(t);
	unsigned frac = bits & ((1u << f.mantissa) - 1), exp = (bits & 0x7fff) >> f.mantissa;
	unsigned top = 0x7fffu >> f.mantissa;
	double v = exp == 0 ? std::ldexp((double)frac, f.least - f.mantissa)
		: exp < top ? std::ldexp((double)(frac + (1u << f.mantissa)), (int)exp - f.bias - f.mantissa)
		: frac ? NAN : INFINITY;
	return bits & 0x8000 ? -v : v;
}

static unsigned toHalf(int t, double v) {
	format f = formatOf(t);
	unsigned sign = std::signbit(v) ? 0x8000 : 0, infinite = 0x7fffu >> f.mantissa << f.mantissa;
	if (v != v)
		return 0x7fff;
	v = std::fabs(v);
	if (std::isinf(v))
		return sign | infinite;
	if (v == 0)
		return sign;
	int exp;
	std::frexp(v, &exp);
	exp = std::max(exp - 1, f.least);
	double units = std::nearbyint(std::ldexp(v, f.mantissa - exp)); // to even
	unsigned bits = (unsigned)units + ((unsigned)(exp - f.least) << f.mantissa);
	return sign | std::min(bits, infinite);
}

static uint64_t get(int t, const char *p, size_t i) {
	uint64_t v = 0;
	memcpy(&v, p + i * sizes[t], sizes[t]);
	return v;
}

static void put(int t, char *p, size_t i, uint64_t v) { memcpy(p + i * sizes[t], &v, sizes[t]); }

static bool isFloat(int t) { return t >= FLOAT16 && t <= FLOAT64; }

static double real(int t, uint64_t v) {
	float f;
	double d;
	switch (t) {
	case FLOAT32:
		memcpy(&f, &v, 4);
		return f;
	case FLOAT64:
		memcpy(&d, &v, 8);
		return d;
	}
	return half(t, (unsigned)v);
}

static uint64_t bits(int t, double d) {
	float f = (float)d;
	uint64_t v = 0;
	switch (t) {
	case FLOAT32:
		memcpy(&v, &f, 4);
		return v;
	case FLOAT64:
		memcpy(&v, &d, 8);
		return v;
	}
	return toHalf(t, d);
}

static int64_t extend(int t, uint64_t v) { // integers
	int shift = 64 - 8 * (int)sizes[t];
	return t % 2 ? (int64_t)(v << shift) >> shift : (int64_t)(v << shift >> shift);
}

static uint64_t truncated(double f) {
	f = std::trunc(f);
	return f >= 0 && f < 0x1p64 ? (uint64_t)f : f < 0 && f >= -0x1p63 ? (uint64_t)(int64_t)f : 0;
}

static uint64_t multiplied(int t, uint64_t v, double factor) {
	if (!isFloat(t))
		return v * truncated(factor);
	if (t == FLOAT64)
		return bits(t, real(t, v) * factor);
	volatile float x = (float)real(t, v) * (float)factor;
	return bits(t, x);
}

static double apply(int t, int op, double x, double y) {
	volatile float f;
	switch (op) {
	case UBC_MIN:
	case UBC_MAX:
		if (x != x || y != y)
			return NAN;
		if (x == y)
			return std::signbit(x) == (op == UBC_MIN) ? x : y;
		return (x < y) == (op == UBC_MIN) ? x : y;
	case UBC_PROD:
		f = (float)x * (float)y;
		return t == FLOAT64 ? x * y : f;
	}
	f = (float)x + (float)y;
	return t == FLOAT64 ? x + y : f;
}

// reduced returns the reduction of v; for an average it is divided by n.
static uint64_t reduced(int t, int op, const std::vector<uint64_t> &v, size_t n) {
	if (isFloat(t)) {
		double a = real(t, v[0]);
		for (size_t i = 1; i < v.size(); i++)
			a = apply(t, op, a, real(t, v[i]));
		if (op == UBC_AVG && n > 1) {
			volatile float f = (float)a / (float)n;
			a = t == FLOAT64 ? a / (double)n : f;
		}
		return bits(t, a);
	}
	if (t == BOOL) {
		size_t trues = 0;
		for (uint64_t x : v)
			trues += (x & 0xff) != 0;
		return op == UBC_MAX ? trues > 0 : trues == v.size();
	}
	uint64_t a = v[0];
	for (size_t i = 1; i < v.size(); i++) {
		int64_t x = extend(t, a), y = extend(t, v[i]);
		bool less = t % 2 ? x < y : (uint64_t)x < (uint64_t)y;
		switch (op) {
		case UBC_MIN:
			a = less ? x : y;
			break;
		case UBC_MAX:
			a = less ? y : x;
			break;
		case UBC_PROD:
			a = a * v[i];
			break;
		default:
			a = a + v[i];
		}
	}
	if (op == UBC_AVG) {
		int64_t x = extend(t, a);
		a = t % 2 ? (uint64_t)(x / (int64_t)n) : (uint64_t)x / (uint64_t)n;
	}
	return a;
}

// fraction returns the smallest power of two that is at least n.
static unsigned fraction(unsigned n) {
	unsigned k = 1;
	while (k < n)
		k *= 2;
	return k;
}

// carried returns (sum * scale + x) / div for a half type: sum is a fraction, 1/scale, of the ranks' sum.
static uint64_t carried(int t, uint64_t sum, uint64_t x, unsigned scale, unsigned div) {
	volatile float a = (float)half(t, (unsigned)sum) * (float)scale;
	a = a + (float)half(t, (unsigned)x);
	volatile float f = a / (float)div;
	return toHalf(t, f);
}

static bool same(int t, uint64_t want, uint64_t got) {
	uint64_t mask = ~0ull >> (64 - 8 * sizes[t]);
	if (isFloat(t) && real(t, want) != real(t, want))
		return real(t, got & mask) != real(t, got & mask);
	return (want & mask) == (got & mask);
}

#endif
