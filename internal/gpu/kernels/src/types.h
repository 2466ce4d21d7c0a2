// Element types and their reductions, bit for bit as on the host (hw/cpu): integers wrap, half types are combined as
// float32 and rounded once, a NaN wins in min and max, and -0 is less than +0. Bools are reduced as uint8, where max is
// a logical or, and min a logical and; the result is then made 0 or 1.
//
// Signed and unsigned integers share kernels, because they differ only in min, max and averages; the signature tells
// which they are. Types narrower than a word are reduced as whole words, all lanes together. Both keep the kernels
// short: the driver's assembler takes time for each instruction.
#ifndef UBC_TYPES_H
#define UBC_TYPES_H

#include "port.h"

// Integers T. An L holds one or several of them, its lanes.
template <class T_, class L_> struct ubc_integer {
	enum { BITS = 8 * sizeof(T_), LANES = sizeof(L_) / sizeof(T_) };
	enum { INTEGER = 1, BOOLS = BITS == 8, FRACTIONS = 0 };
	typedef T_ T;
	typedef L_ L; // element of vectors
	typedef L A;  // accumulator
	typedef L F;  // PREMULSUM's factor in every lane

	UBC_FN L low() { return (T)~(T)0; } // mask of the lowest lane
	UBC_FN L spread(L x) { return (x & low()) * (~(L)0 / low()); } // copies the lowest lane to all lanes
	UBC_FN L top() { return spread((L)1 << (BITS - 1)); }
	UBC_FN A widen(L x) { return x; }
	UBC_FN L narrow(A x) { return x; }
	UBC_FN A sum(A x, A y) {
		return LANES == 1 ? x + y : ((x & ~top()) + (y & ~top())) ^ ((x ^ y) & top());
	}
	// The low bits of a product depend only on the low bits of the factors, so the lanes above do no harm.
	UBC_FN A prod(A x, A y) {
		L all = 0;
		UBC_UNROLL
		for (int i = 0; i < LANES; i++)
			all |= ((x & low() << i * BITS) * (y >> i * BITS)) & low() << i * BITS;
		return all;
	}
	// less sets every bit of the lanes in which x < y, for several lanes.
	UBC_FN L less(L x, L y) {
		L below = ~((x | top()) - (y & ~top())); // compares without the top bits, which decide if they differ
		L less = (((x ^ y) & y) | (~(x ^ y) & below)) & top();
		return (less >> (BITS - 1)) * low();
	}
	UBC_FN L flip(bool is_signed) { return is_signed ? top() : 0; } // maps signed order to unsigned order
	UBC_FN A min(A x, A y, bool is_signed) {
		if (LANES == 1)
			return (y ^ flip(is_signed)) < (x ^ flip(is_signed)) ? y : x;
		L m = less(y ^ flip(is_signed), x ^ flip(is_signed));
		return (y & m) | (x & ~m);
	}
	UBC_FN A max(A x, A y, bool is_signed) {
		if (LANES == 1)
			return (x ^ flip(is_signed)) < (y ^ flip(is_signed)) ? y : x;
		L m = less(x ^ flip(is_signed), y ^ flip(is_signed));
		return (y & m) | (x & ~m);
	}
	// Rounds towards 0.
	UBC_FN A divide(A x, ubc_u32 n, bool is_signed) {
		UBC_ROLLED
		for (int i = 0; i < LANES; i++) { // divides the lowest lane, and rotates it to the top
			L negative = is_signed && (x >> (BITS - 1) & 1) != 0 ? ~(L)0 : 0;
			L lane = ubc_divide(((x ^ negative) - negative) & low(), n);
			lane = (lane ^ negative) - negative;
			x = LANES == 1 ? lane : x >> BITS % (8 * sizeof(L)) | lane << (8 * sizeof(L) - BITS);
		}
		return x;
	}
	// The integer part modulo 2^64, or 0 if no 64-bit integer holds it.
	UBC_FN F factor(double f) {
		if (f >= 0 && f < 18446744073709551616.0)
			return spread((L)(ubc_u64)f);
		if (f < 0 && f >= -9223372036854775808.0)
			return spread((L)(ubc_u64)(long long)f);
		return 0;
	}
	UBC_FN L scale(L x, F f) { return prod(x, f); }
	UBC_FN L truth(L x) { // adding 127 carries into the top bit unless the lane is 0
		return (((x & ~top()) + ~top()) | x) >> (BITS - 1) & top() >> (BITS - 1);
	}
};

template <class A> struct ubc_float {
	enum { INTEGER = 0, LANES = 1, BOOLS = 0 };
	UBC_FN A sum(A x, A y) { return x + y; }
	UBC_FN A prod(A x, A y) { return x * y; }
	UBC_FN A min(A x, A y, bool) { return ubc_min(x, y); }
	UBC_FN A max(A x, A y, bool) { return ubc_max(x, y); }
	UBC_FN A divide(A x, ubc_u32 n, bool) { return x / (A)n; }
	template <class L> UBC_FN L truth(L x) { return x; }
};

template <class T_> struct ubc_real : ubc_float<T_> {
	enum { FRACTIONS = 0 };
	typedef T_ T;
	typedef T_ L;
	typedef T_ A;
	typedef T_ F;

	UBC_FN A widen(L x) { return x; }
	UBC_FN L narrow(A x) { return x; }
	UBC_FN F factor(double f) { return (F)f; }
	UBC_FN L scale(L x, F f) { return x * f; }
};

template <float (*WIDEN)(unsigned short), unsigned short (*NARROW)(float)> struct ubc_half : ubc_float<float> {
	enum { FRACTIONS = 1 }; // see ubc_fraction in ring.h
	typedef unsigned short T;
	typedef unsigned short L;
	typedef float A;
	typedef float F;

	UBC_FN A widen(L x) { return WIDEN(x); }
	UBC_FN L narrow(A x) { return NARROW(x); }
	UBC_FN F factor(double f) { return (F)f; }
	UBC_FN L scale(L x, F f) { return NARROW(WIDEN(x) * f); }
};

typedef ubc_integer<unsigned char, ubc_u32> ubc_uint8;
typedef ubc_integer<unsigned short, ubc_u32> ubc_uint16;
typedef ubc_integer<ubc_u32, ubc_u32> ubc_uint32;
typedef ubc_integer<ubc_u64, ubc_u64> ubc_uint64;
typedef ubc_half<ubc_widen_f16, ubc_narrow_f16> ubc_float16;
typedef ubc_half<ubc_widen_bf16, ubc_narrow_bf16> ubc_bfloat16;
typedef ubc_real<float> ubc_float32;
typedef ubc_real<double> ubc_float64;

template <class V, class T> union ubc_pack {
	V v;
	T e[sizeof(V) / sizeof(T)];
};

// ubc_one is a vector of one element, in a lane by itself.
template <class E> struct ubc_one {
	typename E::L lane;
};

template <class E> UBC_FN ubc_one<E> ubc_load_one(ubc_u64 a) {
	typename E::T x = *(const volatile typename E::T *)a;
	return {(typename E::L)x};
}

template <class E> UBC_FN void ubc_store_one(ubc_u64 a, ubc_one<E> v) {
	*(volatile typename E::T *)a = (typename E::T)v.lane;
}

UBC_FN void ubc_load_vector(ubc_u64 a, ubc_pair &v) { v = ubc_load8(a); }
UBC_FN void ubc_load_vector(ubc_u64 a, ubc_quad &v) { v = ubc_load16(a); }
UBC_FN void ubc_store_vector(ubc_u64 a, const ubc_pair &v) { ubc_store8(a, v); }
UBC_FN void ubc_store_vector(ubc_u64 a, const ubc_quad &v) { ubc_store16(a, v); }

// ubc_load loads the vector at a, or only `left` bytes of it if that is less; the rest is 0. aligned: a is a multiple
// of V's size; else it is a multiple of T's.
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

// ubc_scale multiplies a vector of PREMULSUM's source.
template <class E, class V> UBC_FN V ubc_scale(const V &v, typename E::F f) {
	ubc_pack<V, typename E::L> u;
	u.v = v;
	UBC_UNROLL
	for (ubc_u32 i = 0; i < sizeof(V) / sizeof(typename E::L); i++)
		u.e[i] = E::scale(u.e[i], f);
	return u.v;
}

// Flags in the op of an integer reduction whose elements are bools, or signed.
enum { UBC_OF_BOOLS = 8, UBC_OF_SIGNED = 16, UBC_OP = 7 };

template <class E> UBC_FN ubc_u32 ubc_op(const ubc_params &p) {
	if (!E::INTEGER)
		return p.op;
	return p.op | (E::BOOLS && UBC_IS_BOOL(p.signature) ? UBC_OF_BOOLS : 0) |
		   (UBC_IS_SIGNED(p.signature) ? UBC_OF_SIGNED : 0);
}

template <class E> UBC_FN bool ubc_of_bools(ubc_u32 op) { return E::BOOLS && (op & UBC_OF_BOOLS) != 0; }
template <class E> UBC_FN bool ubc_of_signed(ubc_u32 op) { return E::INTEGER && (op & UBC_OF_SIGNED) != 0; }

// ubc_turn rotates a by one element, and puts `last` at the end. It keeps code for many lanes short: a loop that is not
// unrolled finds each element in turn at a[0], and appends its result.
template <int K, class A> UBC_FN void ubc_turn(A *a, A last) {
	UBC_UNROLL
	for (int i = 0; i + 1 < K; i++)
		a[i] = a[i + 1];
	a[K - 1] = last;
}

// ubc_apply combines a and next.
template <class E> UBC_FN typename E::A ubc_apply(typename E::A a, typename E::A next, ubc_u32 op, bool is_signed) {
	if (op == UBC_PROD)
		return E::prod(a, next);
	if (op == UBC_MIN)
		return E::min(a, next, is_signed);
	if (op == UBC_MAX)
		return E::max(a, next, is_signed);
	return E::sum(a, next);
}

// ubc_apply_all combines a and next, element by element.
template <class E, int K>
UBC_FN void ubc_apply_all(typename E::A *a, const typename E::A *next, ubc_u32 op, bool is_signed) {
#define UBC_APPLY(x)            \
	UBC_UNROLL                  \
	for (int i = 0; i < K; i++) \
		a[i] = x;
	if (E::LANES > 1 && K > 2) {
		typename E::A turn[K];
		UBC_UNROLL
		for (int i = 0; i < K; i++)
			turn[i] = next[i];
		UBC_ROLLED
		for (int i = 0; i < K; i++) {
			ubc_turn<K>(a, ubc_apply<E>(a[0], turn[0], op, is_signed));
			ubc_turn<K>(turn, turn[0]);
		}
	} else if (op == UBC_PROD) {
		UBC_APPLY(E::prod(a[i], next[i]))
	} else if (op == UBC_MIN) {
		UBC_APPLY(E::min(a[i], next[i], is_signed))
	} else if (op == UBC_MAX) {
		UBC_APPLY(E::max(a[i], next[i], is_signed))
	} else {
		UBC_APPLY(E::sum(a[i], next[i]))
	}
#undef UBC_APPLY
}

// ubc_divide_all divides each element of a, for an average. Divisions are long, so most loops are not unrolled.
template <class E, int K> UBC_FN void ubc_divide_all(typename E::A *a, ubc_u32 n, bool is_signed) {
	if (K <= 2) {
		UBC_UNROLL
		for (int i = 0; i < K; i++)
			a[i] = E::divide(a[i], n, is_signed);
	} else {
		UBC_ROLLED
		for (int i = 0; i < K; i++)
			ubc_turn<K>(a, E::divide(a[0], n, is_signed));
	}
}

// ubc_total is the combination of some vectors.
template <class E, class V> struct ubc_total {
	enum { K = sizeof(V) / sizeof(typename E::L) };
	typename E::A a[K];
};

// ubc_widened starts a total with a vector.
template <class E, class V> UBC_FN ubc_total<E, V> ubc_widened(const V &v) {
	ubc_total<E, V> t;
	ubc_pack<V, typename E::L> u;
	u.v = v;
	UBC_UNROLL
	for (int i = 0; i < t.K; i++)
		t.a[i] = E::widen(u.e[i]);
	return t;
}

// ubc_add combines t with one more vector.
template <class E, class V> UBC_FN void ubc_add(ubc_total<E, V> &t, const V &v, ubc_u32 op) {
	ubc_total<E, V> next = ubc_widened<E>(v);
	ubc_apply_all<E, ubc_total<E, V>::K>(t.a, next.a, E::INTEGER ? op & UBC_OP : op, ubc_of_signed<E>(op));
}

// ubc_result returns the result of t, which combines n vectors.
template <class E, class V> UBC_FN V ubc_result(ubc_total<E, V> &t, ubc_u32 n, ubc_u32 op) {
	ubc_pack<V, typename E::L> u;
	if ((E::INTEGER ? op & UBC_OP : op) == UBC_AVG)
		ubc_divide_all<E, ubc_total<E, V>::K>(t.a, n, ubc_of_signed<E>(op));
	UBC_UNROLL
	for (int i = 0; i < t.K; i++)
		u.e[i] = E::narrow(t.a[i]);
	if (ubc_of_bools<E>(op)) {
		UBC_UNROLL
		for (int i = 0; i < t.K; i++)
			u.e[i] = E::truth(u.e[i]);
	}
	return u.v;
}

// ubc_combine reduces the vectors of n ranks, n <= R, in rank order.
template <class E, int R, class V> UBC_FN V ubc_combine(const V *v, ubc_u32 n, ubc_u32 op) {
	ubc_total<E, V> t = ubc_widened<E>(v[0]);
	UBC_UNROLL
	for (int r = 1; r < R; r++) {
		if (r >= (int)n)
			break;
		ubc_add<E>(t, v[r], op);
	}
	return ubc_result<E>(t, n, op);
}

#endif
