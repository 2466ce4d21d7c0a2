// A kernel that copies what the host tells it to, between the device and page-locked host memory, in its place on a stream.
// The host may wait for other hosts between two copies. The two meet on a page of host memory.
#ifndef UBC_COPIER_H
#define UBC_COPIER_H

#include "move.h"

// ubc_copier_next waits for copy n, and reports whether there is one. The result is the same for the whole block.
UBC_FN bool ubc_copier_next(const ubc_copier_params &p, ubc_u64 serial, ubc_u32 n) {
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_u64 v = ubc_acquire64(p.page + UBC_COPIER_TOLD);
			if (v >> 32 == serial && (ubc_u32)v > n)
				break;
			ubc_pause();
			if (++w.polls % UBC_POLLS == 0 && ubc_check_abort(p.status, ~0ull, w) != UBC_OK) {
				ok = false;
				break;
			}
		}
	}
	return ubc_sync_and(ok);
}

UBC_FN void ubc_do_copier(const ubc_copier_params &p) {
	UBC_SHARED(ubc_copy_told, told, 1, 3);
	ubc_u64 serial = 0, done = p.page + UBC_COPIER_DONE + 8 * UBC_BLOCK;
	if (UBC_THREAD == 0) {
		serial = ubc_get64(p.page + UBC_COPIER_SERIAL);
		ubc_release64(done, serial << 32 | 1);
	}
	bool last = false;
	UBC_ROLLED
	for (ubc_u32 n = 0; !last; n++) {
		if (!ubc_copier_next(p, serial, n))
			return;
		if (UBC_THREAD == 0) {
			ubc_u64 at = p.page + UBC_COPIER_COPIES + n % UBC_COPIER_RING * sizeof(ubc_copy_told);
			told->to = ubc_get64(at + 0);
			told->from = ubc_get64(at + 8);
			told->bytes = ubc_get64(at + 16);
			told->last = ubc_get64(at + 24);
		}
		ubc_sync();
		ubc_copy(told->to, told->from, told->bytes);
		last = told->last != 0;
		ubc_sync();
		if (UBC_THREAD == 0)
			ubc_release64(done, serial << 32 | (last ? UBC_COPIER_ENDED : n + 2));
	}
}

#define UBC_COPIER_KERNEL UBC_KERNEL_OF(ubc_copier_params, ubc_copier, 2, ubc_do_copier)

#endif
