// The operations that only move bytes, and the barrier.
#ifndef UBC_MOVE_H
#define UBC_MOVE_H

#include "lines.h"

// What one rank sends to another: bytes at src in the sender's source go to dst in the receiver's destination.
struct ubc_route {
	bool any;
	ubc_u64 src, dst;
};

UBC_FN ubc_route ubc_route_between(const ubc_params &p, ubc_u32 from, ubc_u32 to, ubc_u64 bytes) {
	switch (UBC_KIND(p.signature)) {
	case UBC_ALL_GATHER:
		return {true, 0, from * bytes};
	case UBC_BROADCAST:
		return {from == p.root && to != p.root, 0, 0};
	case UBC_GATHER:
		return {to == p.root, 0, from * bytes};
	case UBC_SCATTER:
		return {from == p.root, to * bytes, 0};
	case UBC_ALL_TO_ALL:
		return {true, to * bytes, from * bytes};
	}
	return {false, 0, 0};
}

// ubc_width returns the largest of 16, 8, 4 and 1 that divides x, which is all addresses and lengths or-ed together.
UBC_FN ubc_u32 ubc_width(ubc_u64 x) { return (x & 15) == 0 ? 16 : (x & 7) == 0 ? 8 : (x & 3) == 0 ? 4 : 1; }

// ubc_pair_width returns the width of the accesses that move 8 bytes: 8, 4 or 1. x is all addresses or-ed together.
UBC_FN ubc_u32 ubc_pair_width(ubc_u64 x, ubc_u64 bytes) {
	ubc_u32 width = ubc_width(x);
	return width >= 8 ? 8 : width == 4 && bytes % 4 == 0 ? 4 : 1;
}

UBC_FN ubc_pair ubc_load_pair(ubc_u64 a, ubc_u64 left, ubc_u32 width) {
	return width == 4 ? ubc_load<ubc_pair, ubc_u32>(a, left, false)
					  : ubc_load<ubc_pair, unsigned char>(a, left, width == 8);
}

UBC_FN void ubc_store_pair(ubc_u64 a, const ubc_pair &v, ubc_u64 left, ubc_u32 width) {
	if (width == 4)
		ubc_store<ubc_pair, ubc_u32>(a, v, left, false);
	else
		ubc_store<ubc_pair, unsigned char>(a, v, left, width == 8);
}

// ubc_copy_by copies bytes / sizeof(T) elements. Tiles of 16 bytes per thread go to the blocks in turn, whatever T is,
// so that a block reads what the block of the same number wrote.
template <class T>
UBC_FN void ubc_copy_by(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes, ubc_u32 block, ubc_u32 blocks) {
	enum { U = 16 / sizeof(T) };
	ubc_u64 n = bytes / sizeof(T), threads = UBC_THREADS;
	UBC_OPAQUE(threads); // keeps the compiler from holding its products in registers across calls
	for (ubc_u64 i = U * threads * block + UBC_THREAD; i - UBC_THREAD < n; i += U * threads * blocks) {
		T v[U] = {}; // else the compiler keeps an earlier call's values for elements that are not loaded
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (i + u * threads < n)
				v[u] = ((const volatile T *)src)[i + u * threads];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (i + u * threads < n)
				((volatile T *)dst)[i + u * threads] = v[u];
	}
}

// ubc_copy_share does one block's share of a copy by `blocks` blocks.
UBC_FN void ubc_copy_share(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes, ubc_u32 block, ubc_u32 blocks) {
	enum { U = 4 };
	ubc_u32 width = ubc_width(dst | src);
	ubc_u64 full = bytes & ~(ubc_u64)(width - 1), at = 16ull * (block * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = 16ull * blocks * UBC_THREADS;
	switch (width) {
	case 16:
		for (; at < full; at += U * step) {
			ubc_quad v[U] = {};
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < full)
					v[u] = ubc_load16(src + at + u * step);
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < full)
					ubc_store16(dst + at + u * step, v[u]);
		}
		break;
	case 8:
		ubc_copy_by<ubc_u64>(dst, src, full, block, blocks);
		break;
	case 4:
		ubc_copy_by<ubc_u32>(dst, src, full, block, blocks);
		break;
	default:
		ubc_copy_by<unsigned char>(dst, src, full, block, blocks);
	}
	// What is left is less than one element. It belongs to the block of its tile.
	if (full < bytes && full / (16ull * UBC_THREADS) % blocks == block)
		for (ubc_u64 i = full + UBC_THREAD; i < bytes; i += UBC_THREADS)
			((volatile unsigned char *)dst)[i] = ((const volatile unsigned char *)src)[i];
}

// ubc_copy copies bytes, with all blocks of the grid.
UBC_FN void ubc_copy(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes) {
	ubc_copy_share(dst, src, bytes, UBC_BLOCK, UBC_BLOCKS);
}

// ubc_copy_own does one block's share of copying what a rank sends to itself. In place there is nothing to copy.
UBC_FN void ubc_copy_own(const ubc_params &p, ubc_u64 bytes, ubc_u32 block, ubc_u32 blocks) {
	ubc_route own = ubc_route_between(p, p.rank, p.rank, bytes);
	if (own.any && p.dst + own.dst != p.src + own.src)
		ubc_copy_share(p.dst + own.dst, p.src + own.src, bytes, block, blocks);
}

// ubc_beside returns how many of the blocks copy what stays on the rank, while the others move the rest: enough to
// finish first. Ranks in place do not need them, but blocks of the same number must work together on all ranks.
// ranks.
UBC_FN ubc_u32 ubc_beside(const ubc_params &p) {
	return p.ranks > 1 && UBC_KIND(p.signature) != UBC_BROADCAST ? UBC_BLOCKS / 7 : 0;
}

// Each rank writes its parts straight to the peers' destinations or, in rounds, to the staging memory of peers whose
// destination is staged.
UBC_FN void ubc_do_move(const ubc_params &p) {
	enum { R = UBC_MAX_RANKS };
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	ubc_u64 bytes = p.count * p.size;
	UBC_SHARED(ubc_u64, words, 3 * R, 1);
	UBC_SHARED(ubc_u64, found, R, 2);
	UBC_SHARED(ubc_u64, staging, R, 5);
	ubc_post_words(p, e, target);
	bool ok = ubc_entry_barrier(p, e, words), whole = true, copies = false;
	if (ok && bytes > 0) {
		for (ubc_u32 r = 0; r < p.ranks; r++) {
			// A rank receives if any other rank sends to it; to ask about the next rank, or the root, is enough.
			bool receives = ubc_route_between(p, r == p.root ? (r + 1) % p.ranks : p.root, r, bytes).any;
			if (receives && (words[2 * r + 1] & UBC_DIRECT) == 0) {
				whole = false;
				copies = copies || r == p.rank;
			}
		}
		for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS) {
			bool sends = r != p.rank && ubc_route_between(p, p.rank, r, bytes).any;
			found[r] = ubc_find(p, e, r, words[2 * r + 1], sends, ok);
			if (!whole)
				ok = ubc_find_staging(p, e, words, r, staging) && ok;
		}
		ok = ubc_sync_and(ok);
	}
	ubc_staging stage = ubc_staging_slots(p, words, staging, p.ranks); // a slot for what each peer pushes
	ubc_u64 window = whole || p.ranks == 1 ? bytes : stage.bytes;
	ubc_u32 rounds = ok && bytes > 0 ? (ubc_u32)((bytes + window - 1) / window) : 0;
	ubc_note_rounds(p, e, stage, rounds);
	ubc_u32 beside = ubc_beside(p), blocks = UBC_BLOCKS - beside;
	if (rounds > 0 && (beside == 0 || UBC_BLOCK >= blocks))
		ubc_copy_own(p, bytes, beside == 0 ? UBC_BLOCK : UBC_BLOCK - blocks, beside == 0 ? UBC_BLOCKS : beside);
	if (UBC_BLOCK >= blocks)
		rounds = 0;
	for (ubc_u32 i = 0; ok && rounds > 0 && i <= rounds; i++) { // reading is one round behind writing
		if (i < rounds) {
			ubc_u64 offset = i * window;
			UBC_ROLLED
			for (ubc_u32 q = 1; q < p.ranks; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_route to = ubc_route_between(p, p.rank, peer, bytes);
				if (to.any)
					ubc_copy_share(
						found[peer] != 0 ? found[peer] + to.dst + offset
										 : ubc_slot(stage, q, i, p.rank),
						p.src + to.src + offset, ubc_clip(bytes, offset, window), UBC_BLOCK, blocks);
			}
			ubc_signal(p, e, i + 1);
		}
		if (i == 0 || !(ok = ubc_wait_signals(p, e, i)) || !copies)
			continue;
		ubc_u64 offset = (i - 1) * window;
		UBC_ROLLED
		for (ubc_u32 q = 1; q < p.ranks; q++) {
			ubc_u32 peer = ubc_peer(p, q);
			ubc_route from = ubc_route_between(p, peer, p.rank, bytes);
			if (from.any)
				ubc_copy_share(p.dst + from.dst + offset, ubc_slot(stage, 0, i - 1, peer),
					ubc_clip(bytes, offset, window), UBC_BLOCK, blocks);
		}
	}
	ubc_finish(p, e);
}

// The same with packets; receivers read them where they arrive. Each part fits into a row.
UBC_FN void ubc_do_move_packets(const ubc_params &p) {
	enum { R = UBC_PARAM_RANKS }; // ranks whose packets are awaited together
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	ubc_u64 bytes = p.count * p.size;
	ubc_u64 first = 8ull * (UBC_BLOCK * UBC_THREADS + UBC_THREAD), step = 8ull * (UBC_BLOCKS * UBC_THREADS);
	// A buffer of several parts has them `bytes` apart.
	ubc_u32 in = ubc_pair_width(p.src | ubc_route_between(p, 0, 1, bytes).src, bytes);
	ubc_u32 out = ubc_pair_width(p.dst | ubc_route_between(p, 1, 0, bytes).dst, bytes);
	for (ubc_u64 at = first; at < bytes; at += step)
		for (ubc_u32 i = 1; i < p.ranks; i++) {
			ubc_u32 peer = ubc_peer(p, i);
			ubc_route to = ubc_route_between(p, p.rank, peer, bytes);
			if (to.any) {
				ubc_pair v = ubc_load_pair(p.src + to.src + at, bytes - at, in);
				ubc_store_packet(ubc_packets_to(p, e, ubc_area(p, i), i) + 2 * at, v, e);
			}
		}
	ubc_post_desc(p, e, target);
	ubc_copy_own(p, bytes, UBC_BLOCK, UBC_BLOCKS);
	bool ok = true;
	UBC_ROLLED
	for (ubc_u32 some = 0; ok && some < (UBC_MANY ? p.ranks : 1); some += R) {
		ubc_u64 from[R];
		ubc_u32 wanted = 0;
		UBC_UNROLL
		for (ubc_u32 r = 0; r < R; r++) {
			ubc_u32 peer = some + r;
			from[r] = ubc_packets_from(p, e, peer);
			if (peer < p.ranks && peer != p.rank && ubc_route_between(p, peer, p.rank, bytes).any)
				wanted |= 1u << r;
		}
		for (ubc_u64 at = first; wanted != 0 && at < bytes; at += step) {
			ubc_pair v[R];
			if (!(ok = ubc_recv_packets<R>(p, e, from, wanted, 2 * at, v, some)))
				break;
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++)
				if (wanted >> r & 1)
					ubc_store_pair(p.dst + ubc_route_between(p, some + r, p.rank, bytes).dst + at, v[r], bytes - at, out);
		}
	}
	ubc_wait_descs(p, e);
	ubc_finish(p, e);
}

// ubc_send_parts sends turn k's tile of each part to its rank, and ubc_take_parts takes what the others send. Parts
// that are not aligned to 16 bytes are aligned to T.
template <class T> UBC_FN void ubc_send_parts(
	const ubc_params &p, const ubc_tiles &t, ubc_u32 e, ubc_u32 k, ubc_u32 place, ubc_u64 bytes, bool aligned) {
	ubc_u64 at = ubc_rows(p, e) + ubc_place(t, place), tile = ubc_tile(t, k);
	UBC_ROLLED
	for (ubc_u32 i = 1; tile < bytes && i < p.ranks; i++) {
		ubc_u32 peer = ubc_peer(p, i);
		ubc_route to = ubc_route_between(p, p.rank, peer, bytes);
		if (to.any)
			ubc_store_line(ubc_area(p, i) + at + ubc_row(p, p.rank, peer),
				ubc_load_part<T>(t, p.src + to.src, tile, bytes, aligned), e, k);
	}
}

template <class T> UBC_FN bool ubc_take_parts(
	const ubc_params &p, const ubc_tiles &t, ubc_u32 e, ubc_u32 k, ubc_u32 place, ubc_u64 bytes, bool aligned) {
	ubc_u64 at = ubc_rows(p, e) + ubc_place(t, place), tile = ubc_tile(t, k);
	UBC_ROLLED
	for (ubc_u32 i = 1; tile < bytes && i < p.ranks; i++) {
		ubc_u32 peer = ubc_peer(p, i);
		ubc_route from = ubc_route_between(p, peer, p.rank, bytes);
		ubc_quad v;
		if (!from.any)
			continue;
		if (!ubc_wait_lines<1>(p, e, k, 1, p.area[0] + at, &v, peer))
			return false;
		ubc_store_part<T>(t, p.dst + from.dst, v, tile, bytes, aligned);
	}
	return true;
}

// The same with lines, for longer parts.
UBC_FN void ubc_do_move_lines(const ubc_params &p) {
	ubc_u64 bytes = p.count * p.size;
	ubc_tiles t = ubc_tiles::of();
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	// A buffer of several parts has them `bytes` apart.
	ubc_u64 places = p.src | p.dst | ubc_route_between(p, 0, 1, bytes).src | ubc_route_between(p, 1, 0, bytes).dst;
	bool aligned = (places & 15) == 0, words = ((places | bytes) & 3) == 0, around = p.steps > p.turns, ok = true;
	ubc_u32 lag = ubc_lag(p), sent = 0, taken = 0;
	for (ubc_u32 k = 0; ok && k < p.steps + lag; k++) {
		if (around && k >= p.turns && k < p.steps && !ubc_wait_signals(p, e, k - p.turns + 1))
			break;
		if (k < p.steps) {
			if (words)
				ubc_send_parts<ubc_u32>(p, t, e, k, sent, bytes, aligned);
			else
				ubc_send_parts<unsigned char>(p, t, e, k, sent, bytes, aligned);
			sent = ubc_next(p, sent);
		}
		if (k == 0) {
			ubc_post_desc(p, e, target);
			ubc_copy_own(p, bytes, UBC_BLOCK, UBC_BLOCKS);
		}
		if (k >= lag) {
			ok = words ? ubc_take_parts<ubc_u32>(p, t, e, k - lag, taken, bytes, aligned)
					   : ubc_take_parts<unsigned char>(p, t, e, k - lag, taken, bytes, aligned);
			taken = ubc_next(p, taken);
		}
		if (around)
			ok = ubc_free_turns(p, e, k, ok);
	}
	ubc_wait_descs(p, e);
	ubc_finish(p, e);
}

// The barrier is an exchange of descriptors.
UBC_FN void ubc_do_barrier(const ubc_params &p) {
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	ubc_post_desc(p, e, target);
	ubc_wait_descs(p, e);
	ubc_finish(p, e);
}

#define UBC_MOVE_KERNELS                                       \
	UBC_KERNEL(UBC_NAMED(move), ubc_do_move)                 \
	UBC_KERNEL(UBC_NAMED(move_packets), ubc_do_move_packets) \
	UBC_KERNEL(UBC_NAMED(barrier), ubc_do_barrier)

#define UBC_MOVE_LINES_KERNEL UBC_KERNEL_OF(ubc_params, ubc_move_lines, 2, ubc_do_move_lines)

#endif
