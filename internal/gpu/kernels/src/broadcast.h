// The broadcast of large data to several ranks: the root sends a different part of the data to each rank, and each rank
// passes its part on to the others, so that no link carries more than the data once.
#ifndef UBC_BROADCAST_H
#define UBC_BROADCAST_H

#include "copy.h"

// ubc_copy_to_all copies bytes to each to[i], i < MAX_RANKS, that is not 0, in the tiles of ubc_copy.
UBC_FN void ubc_copy_to_all(const ubc_u64 *to, ubc_u64 src, ubc_u64 bytes) {
	enum { R = UBC_MAX_RANKS, U = 4 };
	ubc_u64 all = src;
	UBC_ROLLED
	for (int i = 0; i < R; i++)
		all |= to[i];
	ubc_u64 full = bytes & ~15ull, step = 16ull * UBC_BLOCKS * UBC_THREADS;
	if ((all & 15) != 0) {
		UBC_ROLLED
		for (int i = 0; i < R; i++)
			if (to[i] != 0)
				ubc_copy_any(to[i], src, bytes);
		return;
	}
	for (ubc_u64 at = 16ull * (UBC_BLOCK * UBC_THREADS + UBC_THREAD); at < full; at += U * step) {
		ubc_quad v[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < full)
				v[u] = ubc_load16(src + at + u * step);
		UBC_ROLLED
		for (int i = 0; i < R; i++) {
			if (to[i] == 0)
				continue;
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < full)
					ubc_store16(to[i] + at + u * step, v[u]);
		}
	}
	if (full / (16ull * UBC_THREADS) % UBC_BLOCKS == UBC_BLOCK)
		for (ubc_u64 at = full + UBC_THREAD; at < bytes; at += UBC_THREADS) {
			unsigned char v = ((const volatile unsigned char *)src)[at];
			UBC_ROLLED
			for (int i = 0; i < R; i++)
				if (to[i] != 0)
					((volatile unsigned char *)to[i])[at] = v;
		}
}

// The rank at distance d > 0 from the root has slice d - 1. In each round the root sends the next window of each slice
// to its rank. Each rank passes its window on as soon as it arrives, and takes what the others passed on a round
// before. As in ubc_do_move, a rank writes to a buffer only after every peer has read it four rounds before: waiting
// for peers' data implies this. The root gets no data, so it waits explicitly.
UBC_FN void ubc_do_broadcast(const ubc_params &p) {
	enum { R = UBC_MAX_RANKS };
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last), n = p.ranks;
	if (ubc_broken_before(broken, e))
		return;
	ubc_u64 bytes = p.count * p.size;
	UBC_SHARED(ubc_u64, words, 3 * R, 1);
	UBC_SHARED(ubc_u64, found, R, 2);
	UBC_SHARED(ubc_u64, to, R, 3); // by distance: where this rank passes on a window of its slice
	UBC_SHARED(ubc_u64, staging, R, 5);
	ubc_post_words(p, e, target);
	bool ok = ubc_entry_barrier(p, e, words), whole = true;
	if (ok && bytes > 0) {
		for (ubc_u32 r = 0; r < n; r++)
			whole = whole && (r == p.root || (words[2 * r + 1] & UBC_DIRECT) != 0);
		for (ubc_u32 r = UBC_THREAD; r < n; r += UBC_THREADS) {
			found[r] = ubc_find(p, e, r, words[2 * r + 1], r != p.rank && r != p.root, ok);
			if (!whole)
				ok = ubc_find_staging(p, e, words, r, staging) && ok;
		}
		ok = ubc_sync_and(ok);
	}
	ubc_u64 stride = n > 1 ? ((bytes + n - 2) / (n - 1) + 15) / 16 * 16 : 0;
	ubc_staging stage = ubc_staging_slots(p, words, staging, n); // a slot for what each peer sends
	// About eight rounds, if a window then still has a vector for each thread of the grid.
	ubc_u64 window = (stride / 8 + 127) / 128 * 128, least = 16ull * UBC_BLOCKS * UBC_THREADS;
	window = window > least ? window : least;
	ubc_u64 most = whole ? 4ull * UBC_STAGING / n : stage.bytes;
	window = window < most ? window : most;
	ubc_u32 rounds = ok ? (ubc_u32)((stride + window - 1) / window) : 0;
	ubc_note_rounds(p, e, stage, rounds);
	bool root = p.rank == p.root, staged = !root && ok && (words[2 * p.rank + 1] & UBC_DIRECT) == 0;
	ubc_u32 behind = ubc_distance(p, p.root); // distance from this rank to the root
	for (ubc_u32 i = 0; ok && rounds > 0 && i <= rounds; i++) {
		ubc_u64 offset = i * window;
		if (i < rounds && root) {
			if (!whole && i >= 4 && !(ok = ubc_wait_signals(p, e, i - 3)))
				break;
			UBC_ROLLED
			for (ubc_u32 q = 1; q < n; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_u64 begin = (q - 1) * stride, length = ubc_clip(bytes, begin, stride);
				ubc_copy_any(
					found[peer] != 0 ? found[peer] + begin + offset : ubc_slot(stage, q, i, p.rank),
					p.src + begin + offset, ubc_clip(length, offset, window));
			}
			ubc_signal(p, e, i + 1);
		}
		if (root)
			continue;
		if (i < rounds) {
			ubc_u64 begin = (n - behind - 1) * stride, length = ubc_clip(bytes, begin, stride);
			ubc_u64 own = p.dst + begin + offset;
			for (ubc_u32 q = UBC_THREAD; q < R; q += UBC_THREADS) {
				ubc_u64 dst = q == 0 && staged ? own : 0;
				if (q != 0 && q < n && q != behind) {
					dst = found[ubc_peer(p, q)];
					dst = dst != 0 ? dst + begin + offset : ubc_slot(stage, q, i, p.rank);
				}
				to[q] = dst;
			}
			ok = UBC_THREAD != 0 || ubc_wait_flag(p, e, i + 1, p.root, ubc_flag(p.area[0], p.root));
			if (!(ok = ubc_sync_and(ok)))
				break;
			ubc_copy_to_all(to, staged ? ubc_slot(stage, 0, i, p.root) : own, ubc_clip(length, offset, window));
			ubc_signal(p, e, i + 1);
		}
		if (i == 0)
			continue;
		if (!(ok = ubc_wait_signals(p, e, i)) || !staged)
			continue;
		offset = (i - 1) * window;
		UBC_ROLLED
		for (ubc_u32 q = 1; q < n; q++) {
			if (q == behind)
				continue;
			ubc_u64 begin = (ubc_u64)((q + n - behind) % n - 1) * stride, length = ubc_clip(bytes, begin, stride);
			ubc_copy_any(p.dst + begin + offset, ubc_slot(stage, 0, i - 1, ubc_peer(p, q)),
				ubc_clip(length, offset, window));
		}
	}
	ubc_finish(p, e);
}

#define UBC_BROADCAST_KERNELS UBC_KERNEL(UBC_NAMED(broadcast), ubc_do_broadcast)

#endif
