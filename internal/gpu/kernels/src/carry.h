// Collectives between hosts: a kernel carries the data of an operation between the device and page-locked host memory, part
// by part, and the host moves the parts between hosts. The two meet on a page of host memory. Kernels of one communicator
// run one after the other.
//
// Blocks do not wait for each other: each one copies its share of a part, and tells the host, which waits for all blocks.
#ifndef UBC_CARRY_H
#define UBC_CARRY_H

#include "move.h"

// ubc_carry_part copies a part of each block of the device's memory at `device` to the host's memory, or back. count is
// the bytes of a block.
UBC_FN void ubc_carry_part(const ubc_carry_params &p, ubc_u32 part, ubc_u64 device, ubc_u64 host, ubc_u64 count,
	ubc_u32 blocks, bool back) {
	ubc_u64 at = part * p.most, n = ubc_clip(count, at, p.most);
	UBC_ROLLED
	for (ubc_u32 b = 0; n > 0 && b < blocks; b++) {
		ubc_u64 mine = device + b * count + at, there = host + b * n;
		ubc_copy(back ? mine : there, back ? there : mine, n);
	}
}

// ubc_carry_wait waits until the host has answered `parts` parts, and reports whether their results are to be copied back.
// The result is the same for the whole block.
UBC_FN bool ubc_carry_wait(ubc_u64 status, ubc_u64 page, ubc_u64 serial, ubc_u32 parts) {
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_u64 v = ubc_acquire64(page + UBC_CARRY_ANSWER);
			if (v >> 32 == serial && (ubc_u32)v >= parts) {
				ok = (ubc_u32)v != UBC_CARRY_NOTHING;
				break;
			}
			ubc_pause();
			if (++w.polls % UBC_POLLS == 0 && ubc_check_abort(status, ~0ull, w) != UBC_OK) {
				ok = false;
				break;
			}
		}
	}
	return ubc_sync_and(ok);
}

UBC_FN void ubc_do_carry(const ubc_carry_params &p) {
	ubc_u64 serial = 0;
	if (UBC_THREAD == 0)
		serial = ubc_get64(p.page + UBC_CARRY_SERIAL);
	bool ok = true;
	UBC_ROLLED
	for (ubc_u32 i = 0; ok && i <= p.parts; i++) {
		if (i < p.parts) {
			ubc_carry_part(p, i, p.src, p.in[i & 1], p.src_count, p.src_blocks, false);
			ubc_sync();
			if (UBC_THREAD == 0) {
				if (UBC_BLOCK == 0)
					ubc_put32(p.page + UBC_CARRY_ID, p.id);
				ubc_release64(p.page + UBC_CARRY_RUNG + 8 * UBC_BLOCK, serial << 32 | (i + 1));
			}
		}
		if (i > 0) {
			ok = ubc_carry_wait(p.status, p.page, serial, i);
			if (ok)
				ubc_carry_part(p, i - 1, p.dst, p.out[(i - 1) & 1], p.dst_count, p.dst_blocks, true);
		}
	}
	if (p.tells) {
		ubc_sync();
		if (UBC_THREAD == 0)
			ubc_release64(p.page + UBC_CARRY_RUNG + 8 * UBC_BLOCK, serial << 32 | (p.parts + 1));
	}
}

// ubc_do_carry_step is one step of an item that consists of several kernels.
UBC_FN void ubc_do_carry_step(const ubc_carry_step_params &p) {
	ubc_u64 serial = 0;
	if (UBC_THREAD == 0)
		serial = ubc_get64(p.opens ? p.page + UBC_CARRY_SERIAL : p.gate);
	if (!ubc_sync_and(UBC_THREAD != 0 || serial != 0))
		return;
	if (p.rings != 0 && UBC_THREAD == 0) {
		if (UBC_BLOCK == 0)
			ubc_put32(p.page + UBC_CARRY_ID, p.id);
		ubc_release64(p.page + UBC_CARRY_RUNG + 8 * UBC_BLOCK, serial << 32 | p.rings);
	}
	bool ok = p.awaits == 0 || ubc_carry_wait(p.status, p.page, serial, p.awaits);
	if (p.opens && UBC_BLOCK == 0 && UBC_THREAD == 0)
		ubc_put64(p.gate, ok ? serial : 0);
	UBC_ROLLED
	for (ubc_u32 i = 0; ok && i < 2; i++)
		ubc_copy(p.to[i], p.from[i], p.bytes[i]);
}

#define UBC_CARRY_KERNELS                                           \
	UBC_KERNEL_OF(ubc_carry_params, ubc_carry, 2, ubc_do_carry)       \
	UBC_KERNEL_OF(ubc_carry_step_params, ubc_carry_step, 2, ubc_do_carry_step)

#endif
