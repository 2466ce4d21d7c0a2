// Element types and what the reductions do with them, bit for bit as on the host (hw/cpu): integers wrap, half types
// are combined as float32 and rounded once, a NaN wins in min and max, and -0 is less than +0. Bools are reduced as
// uint8, in which max is or, and min is and, of what is not 0; what that comes to is then made 0 or 1.
#ifndef UBC_TYPES_H
#define UBC_TYPES_H

#include "port.h"

// W is an unsigned type in which T's sums and products do not overflow.
template <class T_, class W> struct ubc_integer {
	enum { BOOLS = (T_)-1 == 255 }; // bools may be reduced as these
	typedef T_ T;
	typedef T_ A; // accumulator
	typedef W F;  // PREMULSUM's factor

	UBC_FN A widen(T x) { return x; }
	UBC_FN T narrow(A x) { return x; }
	UBC_FN A sum(A x, A y) { return (A)((W)x + (W)y); }
	UBC_FN A prod(A x, A y) { return (A)((W)x * (W)y); }
	UBC_FN A min(A x, A y) { return y < x ? y : x; }
	UBC_FN A max(A x, A y) { return x < y ? y : x; }
	UBC_FN A divide(A x, ubc_u32 n) {
		if ((T)-1 > (T)0)
			return (A)((W)x / n);
		return sizeof(T) == 8 ? (A)((long long)x / (long long)n) : (A)((int)x / (int)n);
	}
	// The integer part modulo 2^64; what no 64-bit integer holds counts as 0.
	UBC_FN F factor(double f) {
		if (f >= 0 && f < 18446744073709551616.0)
			return (F)(ubc_u64)f;
		if (f < 0 && f >= -9223372036854775808.0)
			return (F)(ubc_u64)(long long)f;
		return 0;
	}
	UBC_FN T scale(T x, F f) { return (T)((W)x * f); }
};

template <class A> struct ubc_float {
	enum { BOOLS = 0 };
	UBC_FN A sum(A x, A y) { return x + y; }
	UBC_FN A prod(A x, A y) { return x * y; }
	UBC_FN A min(A x, A y) { return ubc_min(x, y); }
	UBC_FN A max(A x, A y) { return ubc_max(x, y); }
	UBC_FN A divide(A x, ubc_u32 n) { return x / (A)n; }
};

template <class T_> struct ubc_real : ubc_float<T_> {
	typedef T_ T;
	typedef T_ A;
	typedef T_ F;

	UBC_FN A widen(T x) { return x; }
	UBC_FN T narrow(A x) { return x; }
	UBC_FN F factor(double f) { return (F)f; }
	UBC_FN T scale(T x, F f) { return x * f; }
};

template <float (*WIDEN)(unsigned short), unsigned short (*NARROW)(float)> struct ubc_half : ubc_float<float> {
	typedef unsigned short T;
	typedef float A;
	typedef float F;

	UBC_FN A widen(T x) { return WIDEN(x); }
	UBC_FN T narrow(A x) { return NARROW(x); }
	UBC_FN F factor(double f) { return (F)f; }
	UBC_FN T scale(T x, F f) { return NARROW(WIDEN(x) * f); }
};

typedef ubc_integer<signed char, ubc_u32> ubc_int8;
typedef ubc_integer<unsigned char, ubc_u32> ubc_uint8;
typedef ubc_integer<short, ubc_u32> ubc_int16;
typedef ubc_integer<unsigned short, ubc_u32> ubc_uint16;
typedef ubc_integer<int, ubc_u32> ubc_int32;
typedef ubc_integer<ubc_u32, ubc_u32> ubc_uint32;
typedef ubc_integer<long long, ubc_u64> ubc_int64;
typedef ubc_integer<ubc_u64, ubc_u64> ubc_uint64;
typedef ubc_half<ubc_widen_f16, ubc_narrow_f16> ubc_float16;
typedef ubc_half<ubc_widen_bf16, ubc_narrow_bf16> ubc_bfloat16;
typedef ubc_real<float> ubc_float32;
typedef ubc_real<double> ubc_float64;

template <class V, class T> union ubc_pack {
	V v;
	T e[sizeof(V) / sizeof(T)];
};

UBC_FN void ubc_load_vector(ubc_u64 a, ubc_pair &v) { v = ubc_load8(a); }
UBC_FN void ubc_load_vector(ubc_u64 a, ubc_quad &v) { v = ubc_load16(a); }
UBC_FN void ubc_store_vector(ubc_u64 a, const ubc_pair &v) { ubc_store8(a, v); }
UBC_FN void ubc_store_vector(ubc_u64 a, const ubc_quad &v) { ubc_store16(a, v); }

// ubc_load is the vector at a, or as much of it as there is, `left` bytes; the rest is 0. aligned: a is on a multiple
// of V's size; else it is one of T's.
template <class V, class T> UBC_FN V ubc_load(ubc_u64 a, ubc_u64 left, bool aligned) {
	ubc_pack<V, T> u;
	if (aligned && left >= sizeof(V)) {
		ubc_load_vector(a, u.v);
		return u.v;
	}
	UBC_UNROLL
	for (ubc_u32 i = 0; i < sizeof(V) / sizeof(T); i++)
		u.e[i] = i * sizeof(T) < left ? ((const volatile T *)a)[i] : 0;
	return u.v;
}

template <class V, class T> UBC_FN void ubc_store(ubc_u64 a, const V &v, ubc_u64 left, bool aligned) {
	if (aligned && left >= sizeof(V)) {
		ubc_store_vector(a, v);
		return;
	}
	ubc_pack<V, T> u;
	u.v = v;
	UBC_UNROLL
	for (ubc_u32 i = 0; i < sizeof(V) / sizeof(T); i++)
		if (i * sizeof(T) < left)
			((volatile T *)a)[i] = u.e[i];
}

// ubc_scale multiplies what PREMULSUM's source holds.
template <class E, class V> UBC_FN V ubc_scale(const V &v, typename E::F f) {
	ubc_pack<V, typename E::T> u;
	u.v = v;
	UBC_UNROLL
	for (ubc_u32 i = 0; i < sizeof(V) / sizeof(typename E::T); i++)
		u.e[i] = E::scale(u.e[i], f);
	return u.v;
}

// ubc_truth makes bytes 1 that are not 0, four at a time: adding 127 carries into the upper bit of those.
template <class V> UBC_FN V ubc_truth(V v) {
	UBC_UNROLL
	for (ubc_u32 i = 0; i < sizeof(V) / 4; i++)
		v.w[i] = (((v.w[i] & 0x7f7f7f7f) + 0x7f7f7f7f) | v.w[i]) >> 7 & 0x01010101;
	return v;
}

// The reduction of bools, which E has, is one with BOOLS in it.
enum { UBC_OF_BOOLS = 8 };

template <class E> UBC_FN ubc_u32 ubc_op(const ubc_params &p) {
	return E::BOOLS && UBC_IS_BOOL(p.signature) ? p.op | UBC_OF_BOOLS : p.op;
}

template <class E> UBC_FN bool ubc_of_bools(ubc_u32 op) { return E::BOOLS && (op & UBC_OF_BOOLS) != 0; }

// ubc_combine reduces the vectors of n ranks, n <= R, in rank order.
template <class E, int R, class V> UBC_FN V ubc_combine(const V *v, ubc_u32 n, ubc_u32 op) {
	typedef typename E::T T;
	typedef typename E::A A;
	enum { K = sizeof(V) / sizeof(T) };
	bool bools = ubc_of_bools<E>(op);
	if (bools)
		op -= UBC_OF_BOOLS;
	ubc_pack<V, T> u;
	A a[K];
	u.v = v[0];
	UBC_UNROLL
	for (int i = 0; i < K; i++)
		a[i] = E::widen(u.e[i]);
#define UBC_APPLY(f)                  \
	UBC_UNROLL                        \
	for (int i = 0; i < K; i++)       \
		a[i] = E::f(a[i], E::widen(u.e[i]));
	UBC_UNROLL
	for (int r = 1; r < R; r++) {
		if (r >= (int)n)
			break;
		u.v = v[r];
		if (op == UBC_PROD) {
			UBC_APPLY(prod)
		} else if (op == UBC_MIN) {
			UBC_APPLY(min)
		} else if (op == UBC_MAX) {
			UBC_APPLY(max)
		} else {
			UBC_APPLY(sum)
		}
	}
#undef UBC_APPLY
	if (op == UBC_AVG) {
		UBC_UNROLL
		for (int i = 0; i < K; i++)
			a[i] = E::divide(a[i], n);
	}
	UBC_UNROLL
	for (int i = 0; i < K; i++)
		u.e[i] = E::narrow(a[i]);
	if (bools)
		u.v = ubc_truth(u.v);
	return u.v;
}

#endif
