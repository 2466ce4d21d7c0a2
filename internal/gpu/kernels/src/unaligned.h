// Loads from addresses that are not aligned.
#ifndef UBC_UNALIGNED_H
#define UBC_UNALIGNED_H

#include "port.h"

// ubc_load_unaligned loads 16 bytes from a, which is not a multiple of 16, with two aligned loads. These also read up
// to 15 bytes before and after, which are on the same pages.
UBC_FN ubc_quad ubc_load_unaligned(ubc_u64 a) {
	ubc_quad lo = ubc_load16(a & ~15ull), hi = ubc_load16((a & ~15ull) + 16);
	ubc_u64 x = (ubc_u64)lo.w[1] << 32 | lo.w[0], y = (ubc_u64)lo.w[3] << 32 | lo.w[2];
	ubc_u64 z = (ubc_u64)hi.w[1] << 32 | hi.w[0], last = (ubc_u64)hi.w[3] << 32 | hi.w[2];
	if ((a & 8) != 0) {
		x = y;
		y = z;
		z = last;
	}
	ubc_u32 bits = (ubc_u32)(a & 7) * 8;
	x = x >> bits | (y << 1) << (63 - bits);
	y = y >> bits | (z << 1) << (63 - bits);
	return {{(ubc_u32)x, (ubc_u32)(x >> 32), (ubc_u32)y, (ubc_u32)(y >> 32)}};
}

#endif
