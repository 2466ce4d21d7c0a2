// How the kernels of different ranks meet: epochs, descriptors, flags, and waits that end.
//
// Each kernel is one operation of its rank. All ranks run the same kernels in the same order. No kernel ends before it
// has heard from every peer in this operation, so no rank is ever more than one operation ahead. Memory that peers
// write is therefore reused two operations later at the earliest (descriptors and packets, by the epoch's parity), or
// after the peers' descriptors of the next operation have arrived (staging). So consecutive operations may use
// different staging memory.
#ifndef UBC_SYNC_H
#define UBC_SYNC_H

#include "port.h"

// ubc_next_epoch returns the epoch after e. 0 is no epoch: fresh memory holds it.
UBC_FN ubc_u32 ubc_next_epoch(ubc_u32 e) { return e == 0xffffffff ? 2 : e + 1; }

// ubc_last_epoch returns this block's last epoch. It loads it from memory: callers do what does not depend on it
// meanwhile.
UBC_FN ubc_u32 ubc_last_epoch(const ubc_params &p) { return ubc_get32(p.area[0] + UBC_AREA_EPOCH + 4 * UBC_BLOCK); }

// ubc_broken_epoch returns the operation that broke the communicator, 0: none. Its load overlaps with the epoch's.
UBC_FN ubc_u32 ubc_broken_epoch(const ubc_params &p) { return ubc_get32(p.area[0] + UBC_AREA_BROKEN); }

// ubc_broken_before reports whether an operation before e broke the communicator. Then e does nothing and does not even
// count, so that queued kernels end as fast as they can be launched. All threads of a block get the same answer: only
// that operation wrote the word, and it has ended. If e itself breaks the communicator, blocks that start later find
// out while they poll, as the other blocks do.
UBC_FN bool ubc_broken_before(ubc_u32 broken, ubc_u32 e) { return broken != 0 && broken != e; }

// Peers are numbered by distance: distance d, from 1 to ranks - 1, is the d-th rank after this one; 0 is this rank. The
// parameters list areas in this order, so that unrolled loops over peers use constant indices. With an index that the
// compiler does not know it would first copy all parameters to the stack.
UBC_FN ubc_u32 ubc_peer(const ubc_params &p, ubc_u32 d) {
	ubc_u32 r = p.rank + d;
	return r < p.ranks ? r : r - p.ranks;
}

UBC_FN ubc_u32 ubc_distance(const ubc_params &p, ubc_u32 r) { return r < p.rank ? r + p.ranks - p.rank : r - p.rank; }

// ubc_select returns element i < PARAM_RANKS of an array in the parameters, for an i that the compiler does not know.
UBC_FN ubc_u64 ubc_select(const ubc_u64 *a, ubc_u32 i) {
	ubc_u64 v = a[0];
	UBC_UNROLL
	for (ubc_u32 k = 1; k < UBC_PARAM_RANKS; k++) {
		ubc_u64 x = a[k];
		UBC_OPAQUE(x); // else the compiler turns the choice into a load with a variable index
		v = i == k ? x : v;
	}
	return v;
}

// ubc_area returns the area of the rank at distance d, and ubc_table the table of where its extents are mapped here.
UBC_FN ubc_u64 ubc_area(const ubc_params &p, ubc_u32 d) {
#ifdef UBC_WIDE
	return d == 0 ? p.area[0] : ubc_get64(p.area[0] + UBC_AREA_PEERS + 8 * d);
#else
	return ubc_select(p.area, d);
#endif
}

UBC_FN ubc_u64 ubc_table(const ubc_params &p, ubc_u32 d) {
#ifdef UBC_WIDE
	return ubc_get64(p.area[0] + UBC_AREA_PEERS + 8 * (UBC_MAX_RANKS + d));
#else
	return ubc_select(p.table, d);
#endif
}

// ubc_desc_slot returns where rank `from` posts its descriptor in an area.
UBC_FN ubc_u64 ubc_desc_slot(ubc_u64 area, ubc_u32 e, ubc_u32 from) {
	return area + UBC_AREA_DESC + ((e & 1) * UBC_MAX_RANKS + from) * (4 * UBC_PACKET);
}

// ubc_ready reports whether a packet has arrived: both flags are this epoch.
UBC_FN bool ubc_ready(const ubc_quad &v, ubc_u32 e) { return v.w[1] == e && v.w[3] == e; }

// ubc_packet_data returns the 8 bytes of data in a packet, and ubc_split turns 8 bytes into data for one.
UBC_FN ubc_u64 ubc_packet_data(const ubc_quad &v) { return (ubc_u64)v.w[2] << 32 | v.w[0]; }
UBC_FN ubc_pair ubc_split(ubc_u64 v) { return {{(ubc_u32)v, (ubc_u32)(v >> 32)}}; }

// ubc_post_error writes an error to the host's status words.
UBC_FN void ubc_post_error(
	ubc_u64 status, ubc_u32 code, ubc_u32 peer, ubc_u32 e, ubc_u64 mine, ubc_u64 theirs, ubc_u64 detail) {
	ubc_put32(status + 8, peer);
	ubc_put32(status + 12, e);
	ubc_put64(status + 16, mine);
	ubc_put64(status + 24, theirs);
	ubc_put64(status + 32, detail);
	ubc_release32(status + 4, code);
}

// ubc_report reports the operation's first error to the host, unless the host has not yet taken an earlier operation's.
// Epochs count kernels, and some kernels were several operations; EXTRA corrects for that.
UBC_FN void ubc_report(const ubc_params &p, ubc_u32 e, ubc_u32 code, ubc_u32 peer, ubc_u64 theirs, ubc_u64 detail) {
	if (ubc_exchange32(p.area[0] + UBC_AREA_ERROR, e) == e || ubc_get32(p.status + 4) != UBC_OK)
		return;
	ubc_post_error(p.status, code, peer, e + ubc_get32(p.area[0] + UBC_AREA_EXTRA), p.signature, theirs, detail);
}

// ubc_abort is ubc_report for an error that ends all operations of the communicator. If the host has not yet taken an
// earlier error, it learns of this one by the abort word.
UBC_FN void ubc_abort(const ubc_params &p, ubc_u32 e, ubc_u32 code, ubc_u32 peer, ubc_u64 theirs, ubc_u64 detail) {
	ubc_report(p, e, code, peer, theirs, detail);
	if (ubc_exchange32(p.area[0] + UBC_AREA_BROKEN, e) != e)
		ubc_release32(p.status, 1);
}

// ubc_matches compares a peer's signature with this rank's, and reports a difference. A rank that refuses accepts any
// signature of its peers with the same number of operations: with another number, later kernels would not match up.
UBC_FN bool ubc_matches(const ubc_params &p, ubc_u32 e, ubc_u32 peer, ubc_u64 theirs) {
	if (theirs == p.signature)
		return true;
	ubc_u32 mine = UBC_BEYOND_ONE(p.signature), other = UBC_BEYOND_ONE(theirs);
	if (mine != other && mine != UBC_ALL_OF_THEM && other != UBC_ALL_OF_THEM) {
		ubc_abort(p, e, UBC_MISMATCH, peer, theirs, 0);
		return false;
	}
	if (UBC_KIND(p.signature) == 0)
		return true;
	ubc_report(p, e, UBC_KIND(theirs) == 0 ? UBC_REFUSED : UBC_MISMATCH, peer, theirs, 0);
	return false;
}

// How long a wait has lasted.
struct ubc_wait {
	ubc_u32 polls;
	ubc_u64 since; // 0: the wait is short so far
};

// ubc_check_abort returns why a wait must end early, abort or the deadline, or UBC_OK. Callers call it every UBC_POLLS
// polls.
UBC_FN ubc_u32 ubc_check_abort(ubc_u64 status, ubc_u64 timeout, ubc_wait &w) {
	// The abort word is far away, in host memory. A wait sees it within some 10 ms.
	if (w.polls / UBC_POLLS % 8 == 1 && ubc_get32(status) != 0)
		return UBC_ABORTED;
	ubc_u64 now = ubc_now();
	if (w.since == 0)
		w.since = now;
	return now - w.since > timeout ? UBC_TIMEOUT : UBC_OK;
}

// ubc_keep_polling is called after each poll that found nothing from peer, and reports whether to poll again. Every
// UBC_POLLS calls it looks for a reason to stop: another thread's error, a descriptor which says that the data will
// never come, abort, the deadline. With descriptors, the caller waits for descriptors, and the first two are no reason
// to stop.
UBC_FN bool ubc_keep_polling(const ubc_params &p, ubc_u32 e, ubc_u32 peer, ubc_wait &w, bool descriptors) {
	ubc_pause();
	if (++w.polls % UBC_POLLS != 0)
		return true;
	ubc_u64 own = p.area[0];
	if (ubc_get32(own + UBC_AREA_BROKEN) == e)
		return false;
	if (!descriptors) {
		if (ubc_get32(own + UBC_AREA_ERROR) == e)
			return false;
		for (ubc_u32 r = 0; r < p.ranks; r++) {
			if (r == p.rank)
				continue;
			ubc_quad v = ubc_load_packet(ubc_desc_slot(p.area[0], e, r));
			if (ubc_ready(v, e) && !ubc_matches(p, e, r, ubc_packet_data(v)))
				return false;
		}
	}
	ubc_u32 code = ubc_check_abort(p.status, p.timeout, w);
	if (code == UBC_OK)
		return true;
	ubc_abort(p, e, code, peer, 0, 0);
	return false;
}

// ubc_post_target returns the area in which this thread posts the descriptor, or 0. The last threads of block 0 post,
// because they have no data if there is little; a block has at least as many threads as there are ranks.
UBC_FN ubc_u64 ubc_post_target(const ubc_params &p) {
	ubc_u32 d = UBC_THREADS - 1 - UBC_THREAD;
	return UBC_BLOCK == 0 && d != 0 && d < p.ranks ? ubc_area(p, d) : 0;
}

// ubc_post_desc posts the signature to all peers: kernels that send packets need no more of the descriptor.
UBC_FN void ubc_post_desc(const ubc_params &p, ubc_u32 e, ubc_u64 target) {
	if (target != 0)
		ubc_store_packet(ubc_desc_slot(target, e, p.rank), ubc_split(p.signature), e);
}

// ubc_post_words posts the descriptor with all words, for an operation with an entry barrier.
UBC_FN void ubc_post_words(const ubc_params &p, ubc_u32 e, ubc_u64 target) {
	if (target == 0)
		return;
	ubc_u64 at = ubc_desc_slot(target, e, p.rank);
	ubc_post_desc(p, e, target);
	ubc_store_packet(at + UBC_PACKET, ubc_split(p.src_word), e);
	ubc_store_packet(at + 2 * UBC_PACKET, ubc_split(p.dst_word), e);
	ubc_store_packet(at + 3 * UBC_PACKET, ubc_split(p.stage_word), e);
}

// ubc_wait_descs waits until every peer has posted this operation, and compares signatures. Every kernel must do this
// before it ends; block 0 does it.
UBC_FN void ubc_wait_descs(const ubc_params &p, ubc_u32 e) {
	ubc_u32 r = UBC_THREADS - 1 - UBC_THREAD;
	if (UBC_BLOCK != 0 || r == p.rank || r >= p.ranks)
		return;
	ubc_wait w = {0, 0};
	for (;;) {
		ubc_quad v = ubc_load_packet(ubc_desc_slot(p.area[0], e, r));
		if (ubc_ready(v, e)) {
			ubc_matches(p, e, r, ubc_packet_data(v));
			return;
		}
		if (!ubc_keep_polling(p, e, r, w, true))
			return;
	}
}

// ubc_entry_barrier waits for all descriptors, and reports whether they agree. It fills words, in the block's shared
// memory: each rank's source and destination word, then each rank's staging word. A peer that runs another operation
// may have posted its signature alone. The result is the same for the whole block.
UBC_FN bool ubc_entry_barrier(const ubc_params &p, ubc_u32 e, ubc_u64 *words) {
	bool ok = true;
	for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS) {
		if (r == p.rank) {
			words[2 * r] = p.src_word;
			words[2 * r + 1] = p.dst_word;
			words[2 * p.ranks + r] = p.stage_word;
			continue;
		}
		ubc_u64 from = ubc_desc_slot(p.area[0], e, r);
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad sig = ubc_load_packet(from), src = ubc_load_packet(from + UBC_PACKET),
					 dst = ubc_load_packet(from + 2 * UBC_PACKET), stage = ubc_load_packet(from + 3 * UBC_PACKET);
			bool all = ubc_ready(src, e) && ubc_ready(dst, e) && ubc_ready(stage, e);
			if (ubc_ready(sig, e) && (all || ubc_packet_data(sig) != p.signature)) {
				words[2 * r] = ubc_packet_data(src);
				words[2 * r + 1] = ubc_packet_data(dst);
				words[2 * p.ranks + r] = ubc_packet_data(stage);
				// Orders later reads after what the peer wrote before its descriptor. The result is used, else the
				// assembler drops the load.
				sig.w[0] = (ubc_u32)ubc_acquire64(from);
				ok = ubc_matches(p, e, r, ubc_packet_data(sig)) && ok;
				break;
			}
			if (!ubc_keep_polling(p, e, r, w, true)) {
				ok = false;
				break;
			}
		}
	}
	return ubc_sync_and(ok && UBC_KIND(p.signature) != 0);
}

UBC_FN ubc_u64 ubc_flag(ubc_u64 area, ubc_u32 from) {
	return area + UBC_AREA_FLAG + (from * UBC_MAX_BLOCKS + UBC_BLOCK) * 8;
}

// ubc_signal tells the peers' blocks of the same number that this block has finished step. Steps only grow within an
// operation. A block that waits for the step can read everything that this block's threads wrote before.
UBC_FN void ubc_signal(const ubc_params &p, ubc_u32 e, ubc_u32 step) {
	ubc_sync();
	for (ubc_u32 d = UBC_THREAD; d < p.ranks; d += UBC_THREADS)
		if (d != 0)
			ubc_release64(ubc_flag(ubc_area(p, d), p.rank), (ubc_u64)e << 32 | step);
}

// ubc_wait_signals waits for all peers' signals of step. The result is the same for the whole block.
UBC_FN bool ubc_wait_signals(const ubc_params &p, ubc_u32 e, ubc_u32 step) {
	bool ok = true;
	for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS) {
		ubc_wait w = {0, 0};
		while (ok && r != p.rank) {
			ubc_u64 v = ubc_acquire64(ubc_flag(p.area[0], r));
			ubc_u32 at = (ubc_u32)(v >> 32);
			// The peer may already be in the next operation. Any other epoch is old, even if it is a greater number.
			if ((at == e && (ubc_u32)v >= step) || at == ubc_next_epoch(e))
				break;
			ok = ubc_keep_polling(p, e, r, w, false);
		}
	}
	return ubc_sync_and(ok);
}

// ubc_wait_flag waits until a flag that peer's block writes has reached step. One thread calls it.
UBC_FN bool ubc_wait_flag(const ubc_params &p, ubc_u32 e, ubc_u32 step, ubc_u32 peer, ubc_u64 flag) {
	ubc_wait w = {0, 0};
	for (;;) {
		ubc_u64 v = ubc_acquire64(flag);
		ubc_u32 at = (ubc_u32)(v >> 32);
		if ((at == e && (ubc_u32)v >= step) || at == ubc_next_epoch(e)) // as in ubc_wait_signals
			return true;
		if (!ubc_keep_polling(p, e, peer, w, false))
			return false;
	}
}

// ubc_finish ends the operation, even a failed one. It also sets the epoch of blocks that this kernel does not have.
UBC_FN void ubc_finish(const ubc_params &p, ubc_u32 e) {
	ubc_u64 at = p.area[0] + UBC_AREA_EPOCH;
	ubc_sync();
	if (UBC_THREAD == 0) {
		ubc_put32(at + 4 * UBC_BLOCK, e);
		ubc_u32 kind = UBC_KIND(p.signature);
		if (UBC_BLOCK == 0 && (kind == UBC_GROUP || kind == 0) && p.count > 1)
			ubc_put32(p.area[0] + UBC_AREA_EXTRA, ubc_get32(p.area[0] + UBC_AREA_EXTRA) + (ubc_u32)p.count - 1);
	}
	if (UBC_BLOCK == 0)
		for (ubc_u32 b = UBC_BLOCKS + UBC_THREAD; b < UBC_MAX_BLOCKS; b += UBC_THREADS)
			ubc_put32(at + 4 * b, e);
}

// ubc_resolve returns where the buffer of a peer's word is mapped here. If it is not mapped, it reports that and
// returns 0.
UBC_FN ubc_u64 ubc_resolve(const ubc_params &p, ubc_u32 e, ubc_u32 peer, ubc_u64 word) {
	ubc_u32 extent = UBC_EXTENT(word);
	ubc_u64 base = extent < UBC_MAX_EXTENTS ? ubc_get64(ubc_table(p, ubc_distance(p, peer)) + 8 * extent) : 0;
	if (base == 0) {
		ubc_abort(p, e, UBC_NO_EXTENT, peer, p.signature, word);
		return 0;
	}
	return base + UBC_OFFSET(word);
}

// ubc_find returns where a peer's buffer is mapped here. It returns 0 for a buffer that is staged, or that this rank does
// not use, and for one that is not mapped: then it clears ok.
UBC_FN ubc_u64 ubc_find(const ubc_params &p, ubc_u32 e, ubc_u32 peer, ubc_u64 word, bool used, bool &ok) {
	if (!used || (word & UBC_DIRECT) == 0)
		return 0;
	ubc_u64 at = ubc_resolve(p, e, peer, word);
	ok = at != 0 && ok;
	return at;
}

// ubc_packet_row returns the row of packets, in an area, from the rank at that distance from the area's owner.
UBC_FN ubc_u64 ubc_packet_row(const ubc_params &p, ubc_u32 e, ubc_u64 area, ubc_u32 distance) {
	return area + UBC_AREA_PACKETS + (ubc_u64)((e & 1) * (p.ranks - 1) + distance - 1) * p.row;
}

// ubc_packets_to returns this rank's row in `area`, which belongs to the peer at distance d. ubc_packets_from returns
// rank r's row here; this rank itself has none.
UBC_FN ubc_u64 ubc_packets_to(const ubc_params &p, ubc_u32 e, ubc_u64 area, ubc_u32 d) {
	return ubc_packet_row(p, e, area, p.ranks - d);
}
UBC_FN ubc_u64 ubc_packets_from(const ubc_params &p, ubc_u32 e, ubc_u32 r) {
	return ubc_packet_row(p, e, p.area[0], ubc_distance(p, r));
}

// ubc_recv_packets waits for one packet of each rank first + r, r < R, whose bit is in wanted, at offset `at` of
// from[r]. It polls all of them together.
template <int R>
UBC_FN bool ubc_recv_packets(const ubc_params &p, ubc_u32 e, const ubc_u64 *from, ubc_u32 wanted, ubc_u64 at, ubc_pair *v,
	ubc_u32 first = 0) {
	ubc_wait w = {0, 0};
	for (;;) {
		ubc_u32 missing = 0, late = 0;
		ubc_quad q[R];
		UBC_UNROLL
		for (int r = 0; r < R; r++)
			if (wanted >> r & 1)
				q[r] = ubc_load_packet(from[r] + at);
		UBC_UNROLL
		for (int r = 0; r < R; r++)
			if (wanted >> r & 1) {
				if (ubc_ready(q[r], e)) {
					v[r].w[0] = q[r].w[0];
					v[r].w[1] = q[r].w[2];
				} else {
					missing |= 1u << r;
					late = r;
				}
			}
		if (missing == 0)
			return true;
		wanted = missing;
		if (!ubc_keep_polling(p, e, first + late, w, false))
			return false;
	}
}

// Staging memory is used in rounds, which take turns on four buffers, each made of slots of `bytes`. There are four
// because a rank writes the next round's data before it knows that the peers have read the last round's. Every area has
// a small staging memory. If all ranks have announced separate staging memory, they use that: all see the same
// announcements.
struct ubc_staging {
	const ubc_u64 *at; // by distance, in the block's shared memory
	ubc_u64 buffer, bytes;
};

// ubc_announced reports whether all ranks have announced it in the words of the entry barrier.
UBC_FN bool ubc_announced(const ubc_params &p, const ubc_u64 *words) {
	bool all = true;
	for (ubc_u32 r = 0; r < p.ranks; r++)
		all = all && (words[2 * p.ranks + r] & UBC_DIRECT) != 0;
	return all;
}

// ubc_find_staging stores where rank r's staging memory is, and reports whether it is mapped. One thread calls it.
UBC_FN bool ubc_find_staging(const ubc_params &p, ubc_u32 e, const ubc_u64 *words, ubc_u32 r, ubc_u64 *at) {
	ubc_u32 d = ubc_distance(p, r);
	if (!ubc_announced(p, words))
		at[d] = ubc_area(p, d) + UBC_AREA_PACKETS + 2ull * (p.ranks - 1) * p.row;
	else
		at[d] = r == p.rank ? p.stage : ubc_resolve(p, e, r, words[2 * p.ranks + r]);
	return at[d] != 0;
}

// ubc_staging_slots divides that memory into slots. `at` may still be filled in later.
UBC_FN ubc_staging ubc_staging_slots(const ubc_params &p, const ubc_u64 *words, const ubc_u64 *at, ubc_u32 slots) {
	ubc_u64 buffer = ubc_announced(p, words) ? p.large : p.little;
	return {at, buffer, buffer / slots / 128 * 128};
}

// ubc_slot returns where a slot of the rank at distance d is.
UBC_FN ubc_u64 ubc_slot(const ubc_staging &s, ubc_u32 d, ubc_u32 round, ubc_u32 slot) {
	return s.at[d] + (round & 3) * s.buffer + slot * s.bytes;
}

// ubc_note_rounds tells the host if the staging memory in areas makes an operation take many rounds.
UBC_FN void ubc_note_rounds(const ubc_params &p, ubc_u32 e, const ubc_staging &s, ubc_u64 rounds) {
	if (rounds > UBC_NARROW && s.buffer == p.little && UBC_BLOCK == 0 && UBC_THREAD == 0)
		ubc_put32(p.status + 48, e);
}

// ubc_slot_index returns the slot, of ranks - 1, for what rank `from` sends to rank `to`.
UBC_FN ubc_u32 ubc_slot_index(const ubc_params &p, ubc_u32 from, ubc_u32 to) {
	return (from < to ? from + p.ranks - to : from - to) - 1;
}

// ubc_clip returns how many of length bytes lie in the window of size bytes that begins at offset.
UBC_FN ubc_u64 ubc_clip(ubc_u64 length, ubc_u64 offset, ubc_u64 size) {
	ubc_u64 left = length > offset ? length - offset : 0;
	return left < size ? left : size;
}

#endif
