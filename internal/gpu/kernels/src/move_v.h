// The operations that move parts of different lengths. All ranks tell each other all their counts. From these, each
// rank finds out whether the counts agree, where its parts go, and which way of moving all ranks choose.
#ifndef UBC_MOVE_V_H
#define UBC_MOVE_V_H

#include "copy.h"


// ubc_count_slot returns where rank `from` posts its i-th count in an area.
UBC_FN ubc_u64 ubc_count_slot(ubc_u64 area, ubc_u32 e, ubc_u32 from, ubc_u32 i) {
	return area + UBC_AREA_COUNTS + (((e & 1) * UBC_MAX_RANKS + from) * 2 * UBC_MAX_RANKS + i) * UBC_PACKET;
}

UBC_PARAM_WORDS(ubc_vector_params, UBC_NAMED(move_v), ubc_vector_word)

// ubc_own_sent returns how many elements this rank sends to rank r, and ubc_own_due how many it expects from rank r.
UBC_FN ubc_u64 ubc_own_sent(const ubc_vector_params &v, ubc_u32 r) {
	return ubc_vector_word(v, sizeof(ubc_params) + 16ull * r);
}
UBC_FN ubc_u64 ubc_own_due(const ubc_vector_params &v, ubc_u32 r) {
	return ubc_vector_word(v, sizeof(ubc_params) + 16ull * r + 8);
}

// ubc_own_count returns the i-th of all these counts, in the order in which they are posted.
UBC_FN ubc_u64 ubc_own_count(const ubc_vector_params &v, ubc_u32 i) {
	return i < UBC_MAX_RANKS ? ubc_own_sent(v, i) : ubc_own_due(v, i - UBC_MAX_RANKS);
}

// Where a block finds the counts of all ranks: in its shared memory or, with too many ranks for that, in the area where
// they are posted, including its own.
struct ubc_counts {
	ubc_u64 *rows; // [ranks][2 * MAX_RANKS]
	ubc_u64 area;
	ubc_u32 e;
};

UBC_FN ubc_u64 ubc_count(const ubc_counts &c, ubc_u32 rank, ubc_u32 i) {
	if (UBC_MANY)
		return ubc_packet_data(ubc_load_packet(ubc_count_slot(c.area, c.e, rank, i)));
	return c.rows[rank * 2 * UBC_MAX_RANKS + i];
}

// ubc_send_count returns what rank `from` sends to rank `to`, and ubc_recv_count what rank `to` expects from rank
// `from`.
UBC_FN ubc_u64 ubc_send_count(const ubc_counts &c, ubc_u32 from, ubc_u32 to) { return ubc_count(c, from, to); }
UBC_FN ubc_u64 ubc_recv_count(const ubc_counts &c, ubc_u32 from, ubc_u32 to) {
	return ubc_count(c, to, UBC_MAX_RANKS + from);
}

// ubc_post_counts posts this rank's counts to all ranks that read them there.
UBC_FN void ubc_post_counts(const ubc_vector_params &v, ubc_u32 e) {
	enum { K = 2 * UBC_MAX_RANKS, NEAREST = UBC_MANY ? 0 : 1 };
	if (UBC_BLOCK != 0)
		return;
	for (ubc_u32 t = UBC_THREAD; t < (v.p.ranks - NEAREST) * K; t += UBC_THREADS)
		ubc_store_packet(ubc_count_slot(ubc_area(v.p, t / K + NEAREST), e, v.p.rank, t % K),
			ubc_split(ubc_own_count(v, t % K)), e);
}

// ubc_wait_counts waits for the counts of all ranks and compares them, so that all ranks come to the same verdict. All
// ranks are known to take part. The result is the same for the whole block.
UBC_FN bool ubc_wait_counts(const ubc_vector_params &v, ubc_u32 e, const ubc_counts &c) {
	enum { R = UBC_MAX_RANKS, K = 2 * R };
	const ubc_params &p = v.p;
	bool ok = true;
	for (ubc_u32 t = UBC_THREAD; t < p.ranks * K; t += UBC_THREADS) {
		ubc_u32 r = t / K;
		ubc_u64 from = ubc_count_slot(p.area[0], e, r, t % K);
		ubc_wait w = {0, 0};
		if (!UBC_MANY && r == p.rank)
			c.rows[t] = ubc_own_count(v, t % K);
		while (ok && (UBC_MANY || r != p.rank)) {
			ubc_quad q = ubc_load_packet(from);
			if (ubc_ready(q, e)) {
				if (!UBC_MANY)
					c.rows[t] = ubc_packet_data(q);
				break;
			}
			ok = ubc_keep_polling(p, e, r, w, true);
		}
	}
	if (!ubc_sync_and(ok))
		return false;
	for (ubc_u32 t = UBC_THREAD; t < p.ranks * R; t += UBC_THREADS)
		ok = ok && (t % R >= p.ranks || ubc_send_count(c, t / R, t % R) == ubc_recv_count(c, t / R, t % R));
	if (ubc_sync_and(ok))
		return true;
	if (UBC_THREAD == 0) // the first pair, so that all ranks report the same one
		for (ubc_u32 t = 0; t < p.ranks * R; t++) {
			ubc_u32 s = t / R, d = t % R;
			if (d >= p.ranks)
				continue;
			ubc_u64 sent = ubc_send_count(c, s, d), due = ubc_recv_count(c, s, d);
			if (sent != due) {
				ubc_report(p, e, UBC_COUNTS, d, sent, (ubc_u64)s << 48 | due);
				break;
			}
		}
	return false;
}

// What this rank and each other one send each other, in bytes, in a block's shared memory.
struct ubc_routes {
	ubc_u64 src[UBC_MAX_RANKS], out[UBC_MAX_RANKS]; // sent: offset in the own source, and length
	ubc_u64 dst[UBC_MAX_RANKS], in[UBC_MAX_RANKS];  // received: offset in the own destination, and length
	ubc_u64 to[UBC_MAX_RANKS];                      // sent: at first an offset in the peer's destination, then an
	                                                // address; 0: staged
	ubc_u64 longest[UBC_MAX_RANKS], due[UBC_MAX_RANKS]; // of each rank: the longest part that it sends; what it
	                                                    // receives
};

// ubc_small returns the length up to which a part goes as packets.
UBC_FN ubc_u64 ubc_small(const ubc_params &p) { return p.row / 2 < UBC_SMALL ? p.row / 2 : UBC_SMALL; }

// ubc_plan_routes fills in what follows from this rank's own counts, and reports whether all its parts are small. The
// result is the same for the whole block.
UBC_FN bool ubc_plan_routes(const ubc_vector_params &v, ubc_routes *routes) {
	const ubc_params &p = v.p;
	bool small = true, gathers = UBC_KIND(p.signature) == UBC_ALL_GATHER_V;
	ubc_u64 most = ubc_small(p);
	for (ubc_u32 r = UBC_THREAD; r < UBC_MAX_RANKS; r += UBC_THREADS) {
		ubc_u64 src = 0, dst = 0, out = 0, in = 0;
		UBC_ROLLED
		for (ubc_u32 q = 0; q < r; q++) {
			src += gathers ? 0 : ubc_own_sent(v, q);
			dst += ubc_own_due(v, q);
		}
		out = ubc_own_sent(v, r);
		in = ubc_own_due(v, r);
		routes->src[r] = src * p.size;
		routes->dst[r] = dst * p.size;
		routes->out[r] = out * p.size;
		routes->in[r] = in * p.size;
		if (r < p.ranks && r != p.rank)
			small = small && out * p.size <= most && in * p.size <= most;
	}
	return ubc_sync_and(small);
}

// ubc_send_part sends one peer's part as packets. `threads` threads of each block do it; this one is number t.
UBC_FN void ubc_send_part(
	const ubc_params &p, ubc_u32 e, const ubc_routes *routes, ubc_u32 distance, ubc_u32 t, ubc_u32 threads) {
	ubc_u32 peer = ubc_peer(p, distance);
	ubc_u64 src = p.src + routes->src[peer], bytes = routes->out[peer];
	ubc_u64 to = ubc_packets_to(p, e, ubc_area(p, distance), distance);
	ubc_u32 width = ubc_pair_width(src, bytes);
	for (ubc_u64 at = 8ull * (UBC_BLOCK * threads + t); at < bytes; at += 8ull * UBC_BLOCKS * threads)
		ubc_store_packet(to + 2 * at, ubc_load_pair(src + at, bytes - at, width), e);
}

// ubc_recv_part receives what ubc_send_part sends.
UBC_FN void ubc_recv_part(
	const ubc_params &p, ubc_u32 e, const ubc_routes *routes, ubc_u32 distance, ubc_u32 t, ubc_u32 threads) {
	ubc_u32 peer = ubc_peer(p, distance);
	ubc_u64 dst = p.dst + routes->dst[peer], bytes = routes->in[peer];
	ubc_u64 from = ubc_packets_from(p, e, peer);
	ubc_u32 width = ubc_pair_width(dst, bytes);
	for (ubc_u64 at = 8ull * (UBC_BLOCK * threads + t); at < bytes; at += 8ull * UBC_BLOCKS * threads) {
		ubc_wait w = {0, 0};
		ubc_quad q;
		for (;;) {
			q = ubc_load_packet(from + 2 * at);
			if (ubc_ready(q, e))
				break;
			if (!ubc_keep_polling(p, e, peer, w, false))
				return;
		}
		ubc_store_pair(dst + at, {{q.w[0], q.w[2]}}, bytes - at, width);
	}
}

// ubc_part_lengths fills in what follows from all ranks' counts. It returns the longest part that a rank sends another.
UBC_FN ubc_u64 ubc_part_lengths(const ubc_params &p, const ubc_counts &c, ubc_routes *routes) {
	for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS) {
		ubc_u64 longest = 0, due = 0, before = 0;
		for (ubc_u32 q = 0; q < p.ranks; q++) {
			ubc_u64 sent = q != r ? ubc_send_count(c, r, q) : 0, expected = ubc_recv_count(c, q, r);
			longest = longest > sent ? longest : sent;
			due += q != r ? expected : 0;
			before += q < p.rank ? expected : 0;
		}
		routes->longest[r] = longest * p.size;
		routes->due[r] = due;
		routes->to[r] = before * p.size;
	}
	ubc_sync();
	ubc_u64 longest = 0;
	for (ubc_u32 r = 0; r < p.ranks; r++)
		longest = longest > routes->longest[r] ? longest : routes->longest[r];
	return longest;
}

// ubc_move_parts is ubc_do_move with different lengths. All ranks wait for all others: a rank that ended early could
// release its destination before others have resolved it.
UBC_FN void ubc_move_parts(
	const ubc_params &p, ubc_u32 e, const ubc_u64 *words, ubc_routes *routes, ubc_u64 longest) {
	UBC_SHARED(ubc_u64, staging, UBC_MAX_RANKS, 5);
	bool ok = true, whole = true;
	for (ubc_u32 r = 0; r < p.ranks; r++)
		whole = whole && (routes->due[r] == 0 || (words[2 * r + 1] & UBC_DIRECT) != 0);
	for (ubc_u32 r = UBC_THREAD; r < p.ranks; r += UBC_THREADS) {
		ubc_u64 at = ubc_find(p, e, r, words[2 * r + 1], r != p.rank && routes->out[r] > 0, ok);
		routes->to[r] = at != 0 ? at + routes->to[r] : 0;
		if (!whole)
			ok = ubc_find_staging(p, e, words, r, staging) && ok;
	}
	if (!ubc_sync_and(ok))
		return;
	bool copies = routes->due[p.rank] > 0 && (words[2 * p.rank + 1] & UBC_DIRECT) == 0;
	ubc_staging stage = ubc_staging_slots(p, words, staging, p.ranks);
	ubc_u64 window = whole ? longest : stage.bytes;
	ubc_u32 rounds = (ubc_u32)((longest + window - 1) / window);
	ubc_note_rounds(p, e, stage, rounds);
	for (ubc_u32 i = 0; i <= rounds; i++) { // reading is one round behind writing
		if (i < rounds) {
			ubc_u64 offset = i * window;
			UBC_ROLLED
			for (ubc_u32 q = 1; q < p.ranks; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_u64 to = routes->to[peer];
				ubc_copy_any(to != 0 ? to + offset : ubc_slot(stage, q, i, p.rank),
					p.src + routes->src[peer] + offset, ubc_clip(routes->out[peer], offset, window));
			}
			ubc_signal(p, e, i + 1);
		}
		if (i == 0)
			continue;
		if (!ubc_wait_signals(p, e, i))
			return;
		if (!copies)
			continue;
		ubc_u64 offset = (i - 1) * window;
		UBC_ROLLED
		for (ubc_u32 q = 1; q < p.ranks; q++) {
			ubc_u32 peer = ubc_peer(p, q);
			ubc_copy_any(p.dst + routes->dst[peer] + offset, ubc_slot(stage, 0, i - 1, peer),
				ubc_clip(routes->in[peer], offset, window));
		}
	}
}

// Small parts go as packets, which are sent before all counts are known. If any part of any rank is not small, all
// parts go as in ubc_do_move.
UBC_FN void ubc_do_move_v(const ubc_vector_params &v) {
	enum { R = UBC_MAX_RANKS };
	const ubc_params &p = v.p;
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	UBC_SHARED(ubc_u64, words, 3 * R, 1);
	UBC_SHARED(ubc_u64, rows, (UBC_MANY ? 1 : 2 * R * R), 2);
	ubc_counts counts = {rows, p.area[0], e};
	UBC_SHARED(ubc_routes, routes, 1, 3);
	ubc_post_words(p, e, target);
	ubc_post_counts(v, e);
	// The same number of threads for each peer, and for what stays on this rank.
	ubc_u32 threads = UBC_THREADS / p.ranks, distance = UBC_THREAD / threads, t = UBC_THREAD % threads;
	bool packets = ubc_plan_routes(v, routes);
	if (packets && distance > 0 && distance < p.ranks)
		ubc_send_part(p, e, routes, distance, t, threads);
	if (ubc_entry_barrier(p, e, words) && ubc_wait_counts(v, e, counts)) {
		ubc_u64 longest = ubc_part_lengths(p, counts, routes);
		ubc_u64 src = p.src + routes->src[p.rank], dst = p.dst + routes->dst[p.rank];
		if (src != dst) // else it is in place
			ubc_copy_any(dst, src, routes->out[p.rank]);
		if (longest > ubc_small(p))
			ubc_move_parts(p, e, words, routes, longest);
		else if (distance > 0 && distance < p.ranks)
			ubc_recv_part(p, e, routes, distance, t, threads);
	}
	ubc_finish(p, e);
}

#define UBC_MOVE_V_KERNELS UBC_KERNEL_OF(ubc_vector_params, UBC_NAMED(move_v), 1, ubc_do_move_v)

#endif
