// Compares reductions of whole vectors of integers with the reference: lanes SEED. For bytes it tries every pair of
// elements, each in lanes between others; for other types, pairs of edge cases and random numbers. Prints differences
// and fails.
#include "reference.h"
#include "../src/types.h"

#include <cstdlib>

static uint64_t state;
static uint64_t draw() { // xorshift
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state;
}

// number returns an edge case or a random number.
static uint64_t number(int t) {
	uint64_t top = 1ull << (8 * sizes[t] - 1), some[] = {0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 0x80, 0xff00};
	return draw() % 3 ? draw() : some[draw() % 10];
}

template <class E, class V> static void compare(int t, const char *input, ubc_u32 n, ubc_u32 op, ubc_u64 factor) {
	enum { BYTES = sizeof(V), ELEMENTS = BYTES / sizeof(typename E::T) };
	ubc_params p = {};
	p.op = op, p.signature = (ubc_u64)t << 55;
	V v[UBC_MAX_RANKS], got;
	memcpy(v, input, n * BYTES);
	if (op == UBC_PREMULSUM)
		v[0] = ubc_scale<E>(v[0], E::factor((double)factor));
	got = ubc_combine<E, UBC_MAX_RANKS>(v, n, ubc_op<E>(p));
	for (size_t i = 0; i < ELEMENTS; i++) {
		std::vector<uint64_t> each;
		for (ubc_u32 r = 0; r < n; r++)
			each.push_back(get(t, input + r * BYTES, i));
		if (op == UBC_PREMULSUM)
			each[0] = multiplied(t, each[0], (double)factor);
		uint64_t want = reduced(t, (int)op, each, n), is = get(t, (const char *)&got, i);
		if (!same(t, want, is))
			FAIL("%s, reduction %u of %u ranks, element %zu: %#lx, not %#lx; rank 0 has %#lx, rank 1 %#lx", types[t], op, n, i,
				(unsigned long)is, (unsigned long)want, (unsigned long)each[0], (unsigned long)(n > 1 ? each[1] : 0));
	}
}

template <class E> static void check(int t) {
	char input[UBC_MAX_RANKS * sizeof(ubc_quad)];
	size_t elements = sizeof input / sizeof(typename E::T);
	for (int i = 0; i < (sizes[t] == 1 ? 1 << 16 : 1 << 14); i++) {
		for (size_t k = 0; k < elements; k++)
			put(t, input, k, number(t));
		size_t lane = draw() % 8;
		if (sizes[t] == 1)
			put(t, input, lane, i & 0xff), put(t, input, 8 + lane, i >> 8), put(t, input, 16 + lane, i >> 8);
		for (ubc_u32 op = UBC_SUM; op <= UBC_PREMULSUM; op++) {
			if (t == BOOL && op != UBC_MIN && op != UBC_MAX)
				continue;
			ubc_u32 n = op == UBC_AVG ? 1 + draw() % UBC_MAX_RANKS : draw() % 8 ? 2 : 1 + draw() % UBC_MAX_RANKS;
			compare<E, ubc_pair>(t, input, n, op, draw() >> 12);
			compare<E, ubc_quad>(t, input, n, op, draw() >> 12);
		}
	}
}

int main(int, char **args) {
	state = strtoull(args[1], 0, 0) | 1;
	check<ubc_uint8>(INT8), check<ubc_uint8>(UINT8), check<ubc_uint8>(BOOL);
	check<ubc_uint16>(INT16), check<ubc_uint16>(UINT16);
	check<ubc_uint32>(INT32), check<ubc_uint32>(UINT32);
	check<ubc_uint64>(INT64), check<ubc_uint64>(UINT64);
}
