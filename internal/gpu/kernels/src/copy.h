// A copy that is about as fast when addresses are not aligned.
#ifndef UBC_COPY_H
#define UBC_COPY_H

#include "move.h"

// ubc_copy_vectors copies the whole vectors of each tile, which begin at offset head in the tile.
template <bool UNALIGNED> UBC_FN void ubc_copy_vectors(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes, ubc_u32 head) {
	enum { U = 4 };
	ubc_u64 at = 16ull * (UBC_BLOCK * UBC_THREADS + UBC_THREAD) + head, step = 16ull * UBC_BLOCKS * UBC_THREADS;
	if (head != 0 && UBC_THREAD == UBC_THREADS - 1)
		return;
	for (; at + 16 <= bytes; at += U * step) {
		ubc_quad v[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step + 16 <= bytes)
				v[u] = UNALIGNED ? ubc_load_unaligned(src + at + u * step) : ubc_load16(src + at + u * step);
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step + 16 <= bytes)
				ubc_store16(dst + at + u * step, v[u]);
	}
}

// ubc_copy_any copies bytes in the tiles of ubc_copy: first the destination's whole vectors, then the bytes of each
// tile before and after them.
UBC_FN void ubc_copy_any(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes) {
	ubc_u32 head = (ubc_u32)(0 - dst) & 15;
	if (((src + head) & 15) == 0)
		ubc_copy_vectors<false>(dst, src, bytes, head);
	else
		ubc_copy_vectors<true>(dst, src, bytes, head);
	ubc_u64 tile = 16ull * UBC_THREADS, step = tile * UBC_BLOCKS, first = tile * UBC_BLOCK;
	if (head == 0) { // then only the last tile has such bytes
		first += first < bytes ? (bytes - 1 - first) / step * step : 0;
	}
	for (ubc_u64 k = UBC_THREAD;; k += UBC_THREADS) {
		ubc_u64 begin = first + k / 32 * step, i = k % 32;
		if (begin >= bytes)
			return;
		ubc_u64 length = ubc_clip(bytes, begin, tile), whole = length > head ? (length - head) / 16 * 16 : 0;
		if (i >= 16)
			i = head + whole + i - 16;
		else if (i >= head)
			continue;
		if (i < length)
			((volatile unsigned char *)dst)[begin + i] = ((const volatile unsigned char *)src)[begin + i];
	}
}

#endif
