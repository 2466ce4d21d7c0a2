// The reductions, for elements of type E.
#ifndef UBC_REDUCE_H
#define UBC_REDUCE_H

#include "lines.h"

// What every reduction kernel starts with.
template <class E> struct ubc_reduction {
	ubc_u32 e; // the kernel sets it
	ubc_u32 n, op;
	bool scaled; // the source must be multiplied first
	typename E::F factor;
	ubc_u64 bytes; // count in bytes
	ubc_u32 thread, threads;

	UBC_FN ubc_reduction begin(const ubc_params &p) {
		ubc_reduction o;
		o.n = p.ranks;
		o.op = ubc_op<E>(p);
		o.scaled = p.op == UBC_PREMULSUM;
		o.factor = E::factor(p.factor);
		o.bytes = p.count * sizeof(typename E::T);
		o.thread = UBC_BLOCK * UBC_THREADS + UBC_THREAD;
		o.threads = UBC_BLOCKS * UBC_THREADS;
		return o;
	}
};

// ubc_load_source loads from this rank's own source, and multiplies if necessary.
template <class E, class V>
UBC_FN V ubc_load_source(const ubc_reduction<E> &o, ubc_u64 a, ubc_u64 left, bool aligned) {
	V v = ubc_load<V, typename E::T>(a, left, aligned);
	return o.scaled ? ubc_scale<E>(v, o.factor) : v;
}

// ubc_oneshot: every rank sends its source as packets to all ranks that get the result, and these reduce all sources
// themselves. For ALL_REDUCE and REDUCE.
template <class E, int R> UBC_FN void ubc_oneshot(const ubc_params &p) {
	typedef typename E::T T;
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	bool aligned = ((p.src | p.dst) & 7) == 0;
	ubc_pair first = {{0, 0}}; // its load overlaps with the epoch's, which sending needs
	if (8ull * o.thread < o.bytes)
		first = ubc_load<ubc_pair, T>(p.src + 8ull * o.thread, o.bytes - 8ull * o.thread, aligned);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	if (o.scaled)
		first = ubc_scale<E>(first, o.factor);
	ubc_u64 to[R], from[R]; // by distance; by rank
	bool one = UBC_KIND(p.signature) == UBC_REDUCE;
	ubc_u32 wants = one ? ubc_distance(p, p.root) : 0; // distance of the only rank that gets the result, if `one`
	UBC_UNROLL
	for (ubc_u32 i = 1; i < R; i++)
		to[i] = ubc_packets_to(p, o.e, p.area[i], i);
	UBC_UNROLL
	for (ubc_u32 r = 0; r < R; r++)
		from[r] = ubc_packets_from(p, o.e, r);

	for (ubc_u64 i = o.thread; 8 * i < o.bytes; i += o.threads) {
		ubc_pair v = first;
		if (i != o.thread)
			v = ubc_load_source<E, ubc_pair>(o, p.src + 8 * i, o.bytes - 8 * i, aligned);
		UBC_UNROLL
		for (ubc_u32 q = 1; q < R; q++)
			if (q < o.n && (!one || q == wants))
				ubc_store_packet(to[q] + 16 * i, v, o.e);
	}
	ubc_post_desc(p, o.e, target);
	ubc_u32 peers = (1u << o.n) - 1 - (1u << p.rank);
	for (ubc_u64 i = o.thread; (!one || wants == 0) && 8 * i < o.bytes; i += o.threads) {
		ubc_pair v[R], mine = first;
		if (i != o.thread)
			mine = ubc_load_source<E, ubc_pair>(o, p.src + 8 * i, o.bytes - 8 * i, aligned);
		if (!ubc_recv_packets<R>(p, o.e, from, peers, 16 * i, v))
			break;
		UBC_UNROLL
		for (ubc_u32 r = 0; r < R; r++)
			if (r == p.rank)
				v[r] = mine;
		ubc_pair sum = ubc_combine<E, R>(v, o.n, o.op);
		ubc_store<ubc_pair, T>(p.dst + 8 * i, sum, o.bytes - 8 * i, aligned);
	}
	ubc_wait_descs(p, o.e);
	ubc_finish(p, o.e);
}

// The part of the data that each rank reduces: its slice.
struct ubc_slices {
	ubc_u64 bytes;   // of all the data
	ubc_u64 stride;  // from one slice's beginning to the next one's
	ubc_u64 longest;
	bool scatter;    // REDUCE_SCATTER: a destination holds one slice

	UBC_FN ubc_slices of(const ubc_params &p, ubc_u64 bytes) {
		ubc_slices s;
		s.scatter = UBC_KIND(p.signature) == UBC_REDUCE_SCATTER;
		s.bytes = s.scatter ? bytes * p.ranks : bytes;
		s.stride = s.scatter ? bytes : ((bytes + p.ranks - 1) / p.ranks + 15) / 16 * 16;
		s.longest = s.stride < s.bytes ? s.stride : s.bytes;
		return s;
	}
};

UBC_FN ubc_u64 ubc_slice_begin(const ubc_slices &s, ubc_u32 r) {
	ubc_u64 at = r * s.stride;
	return at < s.bytes ? at : s.bytes;
}

UBC_FN ubc_u64 ubc_slice_length(const ubc_slices &s, ubc_u32 r) {
	return ubc_slice_begin(s, r + 1) - ubc_slice_begin(s, r);
}

// ubc_slice_dst returns where slice r lies in a destination.
UBC_FN ubc_u64 ubc_slice_dst(const ubc_slices &s, ubc_u32 r) { return s.scatter ? 0 : ubc_slice_begin(s, r); }

// ubc_receives reports whether rank r's destination gets the slice of rank `slice`.
UBC_FN bool ubc_receives(const ubc_params &p, ubc_u32 r, ubc_u32 slice) {
	switch (UBC_KIND(p.signature)) {
	case UBC_REDUCE_SCATTER:
		return r == slice;
	case UBC_REDUCE:
		return r == p.root;
	}
	return true;
}

// ubc_twoshot_packets: each rank gets all parts of its slice as packets, reduces them, and sends the result as packets
// to the ranks that receive it. One thread handles each element throughout, so it works in place.
template <class E, int R> UBC_FN void ubc_twoshot_packets(const ubc_params &p) {
	typedef typename E::T T;
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	ubc_slices s = ubc_slices::of(p, o.bytes);
	bool aligned = ((p.src | p.dst | s.stride) & 7) == 0;
	ubc_u64 shortest = aligned ? ubc_slice_length(s, o.n - 1) : 0, begin = 8ull * o.thread, step = 8ull * o.threads;
	ubc_pair next[R]; // by distance; the first loads overlap with the epoch's
	UBC_UNROLL
	for (ubc_u32 i = 1; i < R; i++)
		if (i < o.n && begin + 8 <= shortest)
			next[i] = ubc_load8(p.src + ubc_peer(p, i) * s.stride + begin);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	// Where packets go, by distance, and where they arrive, by rank. Results use the second half of a row.
	ubc_u64 to[R], from[R], second = p.row / 2;
	UBC_UNROLL
	for (ubc_u32 i = 0; i < R; i++) {
		to[i] = ubc_packets_to(p, o.e, p.area[i], i);
		from[i] = ubc_packets_from(p, o.e, i);
	}

	for (ubc_u64 at = begin; at < s.longest; at += step)
		if (at + 8 <= shortest) {
			UBC_UNROLL
			for (ubc_u32 i = 1; i < R; i++)
				if (i < o.n)
					ubc_store_packet(to[i] + 2 * at, o.scaled ? ubc_scale<E>(next[i], o.factor) : next[i], o.e);
			UBC_UNROLL
			for (ubc_u32 i = 1; i < R; i++)
				if (i < o.n && at + step + 8 <= shortest)
					next[i] = ubc_load8(p.src + ubc_peer(p, i) * s.stride + at + step);
		} else {
			UBC_ROLLED
			for (ubc_u32 i = 1; i < o.n; i++) {
				ubc_u32 peer = ubc_peer(p, i);
				ubc_u64 length = ubc_slice_length(s, peer), a = p.src + ubc_slice_begin(s, peer) + at;
				if (at < length)
					ubc_store_packet(ubc_packets_to(p, o.e, ubc_area(p, i), i) + 2 * at,
						ubc_load_source<E, ubc_pair>(o, a, length - at, aligned), o.e);
			}
		}
	ubc_post_desc(p, o.e, target);
	ubc_u32 peers = (1u << o.n) - 1 - (1u << p.rank), targets = 0;
	UBC_UNROLL
	for (ubc_u32 r = 0; r < R; r++)
		if (r < o.n && ubc_receives(p, r, p.rank))
			targets |= 1u << r;
	ubc_u64 src = p.src + ubc_slice_begin(s, p.rank), length = ubc_slice_length(s, p.rank);
	ubc_u64 dst = p.dst + ubc_slice_dst(s, p.rank);
	bool ok = true;
	for (ubc_u64 at = begin; ok && at < length; at += step) {
		ubc_pair v[R], mine = ubc_load_source<E, ubc_pair>(o, src + at, length - at, aligned);
		ok = ubc_recv_packets<R>(p, o.e, from, peers, 2 * at, v);
		if (!ok)
			break;
		UBC_UNROLL
		for (ubc_u32 r = 0; r < R; r++)
			if (r == p.rank)
				v[r] = mine;
		ubc_pair sum = ubc_combine<E, R>(v, o.n, o.op);
		UBC_UNROLL
		for (ubc_u32 i = 1; i < R; i++)
			if (i < o.n && targets >> ubc_peer(p, i) & 1)
				ubc_store_packet(to[i] + second + 2 * at, sum, o.e);
		if (targets >> p.rank & 1)
			ubc_store<ubc_pair, T>(dst + at, sum, length - at, aligned);
	}
	if (!s.scatter && ubc_receives(p, p.rank, 0))
		for (ubc_u64 at = begin; ok && at < s.longest; at += step) {
			ubc_pair v[R];
			ubc_u32 wanted = 0;
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++)
				if (peers >> r & 1 && at < ubc_slice_length(s, r))
					wanted |= 1u << r;
			ok = wanted == 0 || ubc_recv_packets<R>(p, o.e, from, wanted, second + 2 * at, v);
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++)
				if (ok && wanted >> r & 1)
					ubc_store<ubc_pair, T>(
						p.dst + ubc_slice_begin(s, r) + at, v[r], ubc_slice_length(s, r) - at, aligned);
		}
	ubc_wait_descs(p, o.e);
	ubc_finish(p, o.e);
}

// What one thread knows of an operation by lines.
template <class E, int R> struct ubc_line_work {
	ubc_reduction<E> o;
	ubc_slices s;
	ubc_tiles t;
	bool one;       // one step: every rank that gets the result reduces all data
	bool aligned;   // all addresses are multiples of 16
	ubc_u64 rows;   // offset in an area of the first stage's rows
	ubc_u64 gather; // offset from there of the second stage's rows
	ubc_u32 peers;  // bits of all ranks except this one
};

// ubc_part_begin and ubc_part_length tell which part of the data rank r reduces.
template <class E, int R> UBC_FN ubc_u64 ubc_part_begin(const ubc_line_work<E, R> &w, ubc_u32 r) {
	return w.one ? 0 : ubc_slice_begin(w.s, r);
}

template <class E, int R>
UBC_FN ubc_u64 ubc_part_length(const ubc_params &p, const ubc_line_work<E, R> &w, ubc_u32 r) {
	if (!w.one)
		return ubc_slice_length(w.s, r);
	return UBC_KIND(p.signature) != UBC_REDUCE || r == p.root ? w.o.bytes : 0;
}

// ubc_load_turn loads the tile of turn k for the peer at distance i.
template <class E, int R>
UBC_FN ubc_quad ubc_load_turn(const ubc_params &p, const ubc_line_work<E, R> &w, ubc_u32 i, ubc_u32 k) {
	ubc_u32 peer = ubc_peer(p, i);
	return ubc_load_part<typename E::T>(
		w.t, p.src + ubc_part_begin(w, peer), ubc_tile(w.t, k), ubc_part_length(p, w, peer), w.aligned);
}

// ubc_reduce_turn reduces turn k when it has arrived, and sends the result to the ranks that get it.
template <class E, int R>
UBC_FN bool ubc_reduce_turn(const ubc_params &p, const ubc_line_work<E, R> &w, ubc_u32 k, ubc_u32 place) {
	typedef typename E::T T;
	ubc_u64 bytes = ubc_part_length(p, w, p.rank), tile = ubc_tile(w.t, k), at = w.rows + ubc_place(w.t, place);
	if (tile >= bytes)
		return true;
	ubc_quad v[R], own = ubc_load_part<T>(w.t, p.src + ubc_part_begin(w, p.rank), tile, bytes, w.aligned);
	if (!ubc_wait_lines<R>(p, w.o.e, k, w.peers, p.area[0] + at, v, 0))
		return false;
	UBC_UNROLL
	for (int r = 0; r < R; r++)
		if (r == (int)p.rank)
			v[r] = w.o.scaled ? ubc_scale<E>(own, w.o.factor) : own;
	ubc_quad sum = ubc_combine<E, R>(v, w.o.n, w.o.op);
	if (!w.one) {
		UBC_UNROLL
		for (ubc_u32 i = 1; i < R; i++)
			if (i < w.o.n && ubc_receives(p, ubc_peer(p, i), p.rank))
				ubc_store_line(p.area[i] + at + w.gather + ubc_row(p, p.rank, ubc_peer(p, i)), sum, w.o.e, k);
	}
	if (w.one || ubc_receives(p, p.rank, p.rank))
		ubc_store_part<T>(w.t, p.dst + (w.one ? 0 : ubc_slice_dst(w.s, p.rank)), sum, tile, bytes, w.aligned);
	return true;
}

// ubc_gather_turn takes the peers' results of turn k.
template <class E, int R>
UBC_FN bool ubc_gather_turn(const ubc_params &p, const ubc_line_work<E, R> &w, ubc_u32 k, ubc_u32 place) {
	ubc_quad v[R];
	ubc_u64 tile = ubc_tile(w.t, k);
	ubc_u32 wanted = 0;
	UBC_UNROLL
	for (int r = 0; r < R; r++)
		if (w.peers >> r & 1 && tile < ubc_slice_length(w.s, r))
			wanted |= 1u << r;
	if (!ubc_wait_lines<R>(p, w.o.e, k, wanted, p.area[0] + w.rows + w.gather + ubc_place(w.t, place), v, 0))
		return false;
	UBC_UNROLL
	for (int r = 0; r < R; r++)
		if (wanted >> r & 1)
			ubc_store_part<typename E::T>(
				w.t, p.dst + ubc_slice_begin(w.s, r), v[r], tile, ubc_slice_length(w.s, r), w.aligned);
	return true;
}

// ubc_by_lines is like the kernels with packets: one step for two ranks, two steps for more. In each turn a rank sends
// what each peer reduces, reduces an earlier turn that has arrived, and takes the results of a still earlier one. It
// works in place, because it has sent data before it overwrites them.
template <class E, int R> UBC_FN void ubc_by_lines(const ubc_params &p) {
	ubc_line_work<E, R> w;
	w.o = ubc_reduction<E>::begin(p);
	w.t = ubc_tiles::of();
	ubc_u32 n = w.o.n;
	bool scatter = UBC_KIND(p.signature) == UBC_REDUCE_SCATTER;
	w.one = (R == 2 || n <= 2) && !scatter; // depends only on what all ranks agree on, not on which kernels they loaded
	w.aligned = ((p.src | p.dst) & 15) == 0;
	if (!w.one) {
		w.s = ubc_slices::of(p, w.o.bytes);
		w.aligned = w.aligned && (w.s.stride & 15) == 0;
	}
	ubc_quad next = {{0, 0, 0, 0}}; // for the first peer; its load overlaps with the epoch's
	if (n > 1)
		next = ubc_load_turn(p, w, 1, 0);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = w.o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	w.peers = (1u << n) - 1 - (1u << p.rank);
	w.rows = ubc_rows(p, e);
	w.gather = 2ull * (n - 1) * p.line_row;
	bool gathers = !w.one && !scatter, takes = gathers && ubc_receives(p, p.rank, 0);
	bool around = p.steps > p.turns, ok = true;
	ubc_u32 lag = ubc_lag(p), end = p.steps + (gathers ? 2 : 1) * lag; // iterations of the loop
	ubc_u32 sent = 0, reduced = 0, gathered = 0;                       // places in a row
	for (ubc_u32 k = 0; k < end; k++) {
		// A place is free when the peers have taken what was in it one row of turns ago. They have reduced sent data
		// `lag` turns after it was sent, and taken results `lag` turns after that.
		bool sends = k < p.steps, results = gathers && k < p.steps + lag;
		if (around && (sends || results) && k >= p.turns && !ubc_wait_signals(p, e, k - p.turns + 1))
			break;
		if (sends) {
			UBC_UNROLL
			for (ubc_u32 i = 1; i < R; i++) {
				if (i >= n)
					continue;
				ubc_u32 peer = ubc_peer(p, i);
				ubc_quad v = i == 1 ? next : ubc_load_turn(p, w, i, k);
				if (ubc_tile(w.t, k) < ubc_part_length(p, w, peer))
					ubc_store_line(p.area[i] + w.rows + ubc_row(p, p.rank, peer) + ubc_place(w.t, sent),
						w.o.scaled ? ubc_scale<E>(v, w.o.factor) : v, e, k);
			}
			sent = ubc_next(p, sent);
			if (n > 1)
				next = ubc_load_turn(p, w, 1, k + 1);
		}
		if (k == 0)
			ubc_post_desc(p, e, target);
		if (k >= lag && k < p.steps + lag) {
			ok = ubc_reduce_turn(p, w, k - lag, reduced);
			reduced = ubc_next(p, reduced);
		}
		if (takes && ok && k >= 2 * lag) {
			ok = ubc_gather_turn(p, w, k - 2 * lag, gathered);
			gathered = ubc_next(p, gathered);
		}
		if (around)
			ok = ubc_free_turns(p, e, k, ok);
		if (!ok)
			break;
	}
	ubc_wait_descs(p, e);
	ubc_finish(p, e);
}

// Data that cannot be moved as whole aligned vectors is moved by elements, U of each input in flight. If full is 0
// these are all of a block's tiles, else only the bytes after the last whole vector, if they are in one of its tiles. A
// tile is one vector per thread.
struct ubc_rest {
	ubc_u64 at, step, bytes; // first tile, and distance to the block's next one

	UBC_FN ubc_rest of(ubc_u64 full, ubc_u64 bytes) {
		ubc_u64 tile = 16ull * UBC_THREADS, begin = tile * UBC_BLOCK;
		ubc_rest s = {begin, tile * UBC_BLOCKS, bytes};
		if (full != 0)
			s.at = full < bytes && full >= begin && (full - begin) % s.step < tile ? full : bytes;
		return s;
	}
};

template <class E> struct ubc_rest_of {
	enum { SIZE = sizeof(typename E::T), U = SIZE < 8 ? 2 : 1 }; // a tile takes several rounds
};

// ubc_rest_at returns the offset of element u of a round, or s.bytes if there is none.
template <class E> UBC_FN ubc_u64 ubc_rest_at(const ubc_rest &s, ubc_u64 tile, ubc_u32 round, ubc_u32 u) {
	ubc_u64 at = tile + (ubc_u64)((round * ubc_rest_of<E>::U + u) * UBC_THREADS + UBC_THREAD) * sizeof(typename E::T);
	return at < s.bytes ? at : s.bytes;
}

// ubc_copy_source_rest copies what does not go as whole aligned vectors; these have `full` bytes.
template <class E>
UBC_FN void ubc_copy_source_rest(const ubc_reduction<E> &o, ubc_u64 dst, ubc_u64 src, ubc_u64 bytes, ubc_u64 full) {
	enum { U = ubc_rest_of<E>::U };
	ubc_rest s = ubc_rest::of(full, bytes);
	for (ubc_u64 tile = s.at; tile < bytes; tile += s.step) {
		UBC_ROLLED
		for (ubc_u32 round = 0; round < 16 / (U * sizeof(typename E::T)); round++) {
			ubc_one<E> v[U];
			UBC_UNROLL
			for (ubc_u32 u = 0; u < U; u++)
				if (ubc_rest_at<E>(s, tile, round, u) < bytes)
					v[u] = ubc_load_one<E>(src + ubc_rest_at<E>(s, tile, round, u));
			UBC_UNROLL
			for (ubc_u32 u = 0; u < U; u++)
				if (ubc_rest_at<E>(s, tile, round, u) < bytes)
					ubc_store_one<E>(
						dst + ubc_rest_at<E>(s, tile, round, u), o.scaled ? ubc_scale<E>(v[u], o.factor) : v[u]);
		}
	}
}

// ubc_vector_bytes returns how many bytes can go as whole aligned vectors.
UBC_FN ubc_u64 ubc_vector_bytes(ubc_u64 dst, ubc_u64 src, ubc_u64 bytes) {
	return ((dst | src) & 15) == 0 ? bytes & ~15ull : 0;
}

// ubc_copy_source copies from this rank's source, and multiplies if necessary, 4 vectors in flight.
template <class E> UBC_FN void ubc_copy_source(const ubc_reduction<E> &o, ubc_u64 dst, ubc_u64 src, ubc_u64 bytes) {
	enum { U = 4 };
	ubc_u64 full = ubc_vector_bytes(dst, src, bytes), step = 16ull * o.threads;
	for (ubc_u64 at = 16ull * o.thread; at < full; at += U * step) {
		ubc_quad v[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < full)
				v[u] = ubc_load16(src + at + u * step);
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < full)
				ubc_store16(dst + at + u * step, o.scaled ? ubc_scale<E>(v[u], o.factor) : v[u]);
	}
	ubc_copy_source_rest(o, dst, src, bytes, full);
}

// What a rank reduces at a time: in[r] by rank, r < n <= R, to each out[i] that is not 0, by distance.
template <int R> struct ubc_reduce_window {
	ubc_u64 in[R], out[R];
	ubc_u64 bytes, full; // full: how many of these bytes go as whole aligned vectors
	ubc_u64 begin, step; // this thread's vectors
	ubc_u32 own;         // the rank whose input must be multiplied, if o.scaled
};

// ubc_scale_own multiplies the input of rank own.
template <class E, int R, class V> UBC_FN void ubc_scale_own(V *v, ubc_u32 own, typename E::F factor) {
	V mine = v[0];
	UBC_UNROLL
	for (ubc_u32 r = 1; r < R; r++)
		if (r == own)
			mine = v[r];
	mine = ubc_scale<E>(mine, factor);
	UBC_UNROLL
	for (ubc_u32 r = 0; r < R; r++)
		if (r == own)
			v[r] = mine;
}

// ubc_reduce_vectors reduces the whole vectors, U of each of n <= R inputs in flight.
template <class E, int R, int U>
UBC_FN void ubc_reduce_vectors(const ubc_reduction<E> &o, const ubc_reduce_window<R> &m) {
	for (ubc_u64 at = m.begin; at < m.full; at += U * m.step) {
		ubc_quad v[U][R];
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			UBC_UNROLL
			for (int r = 0; r < R; r++)
				if (r < (int)o.n && at + u * m.step < m.full)
					v[u][r] = ubc_load16(m.in[r] + at + u * m.step);
		}
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			if (at + u * m.step >= m.full)
				break;
			if (o.scaled)
				ubc_scale_own<E, R>(v[u], m.own, o.factor);
			ubc_quad sum = ubc_combine<E, R>(v[u], o.n, o.op);
			UBC_UNROLL
			for (int i = 0; i < R; i++)
				if (m.out[i] != 0)
					ubc_store16(m.out[i] + at + u * m.step, sum);
		}
	}
}

// ubc_reduce_rest reduces what is left, or everything if an address is not aligned.
template <class E, int R> UBC_FN void ubc_reduce_rest(const ubc_reduction<E> &o, const ubc_reduce_window<R> &m) {
	enum { U = ubc_rest_of<E>::U };
	ubc_rest s = ubc_rest::of(m.full, m.bytes);
	for (ubc_u64 tile = s.at; tile < m.bytes; tile += s.step) {
		UBC_ROLLED
		for (ubc_u32 round = 0; round < 16 / (U * sizeof(typename E::T)); round++) {
			ubc_one<E> v[U][R];
			UBC_UNROLL
			for (ubc_u32 u = 0; u < U; u++) {
				ubc_u64 at = ubc_rest_at<E>(s, tile, round, u);
				UBC_UNROLL
				for (int r = 0; r < R; r++)
					if (r < (int)o.n && at < m.bytes)
						v[u][r] = ubc_load_one<E>(m.in[r] + at);
			}
			UBC_UNROLL
			for (ubc_u32 u = 0; u < U; u++) {
				ubc_u64 at = ubc_rest_at<E>(s, tile, round, u);
				if (at >= m.bytes)
					break;
				if (o.scaled)
					ubc_scale_own<E, R>(v[u], m.own, o.factor);
				ubc_one<E> sum = ubc_combine<E, R>(v[u], o.n, o.op);
				UBC_UNROLL
				for (int i = 0; i < R; i++)
					if (m.out[i] != 0)
						ubc_store_one<E>(m.out[i] + at, sum);
			}
		}
	}
}

// ubc_scatter sends a window of each peer's slice to that peer, U vectors for each in flight. It sends to all peers at
// once: ranks that go from peer to peer end up writing to the same one, whose link is then the bottleneck.
template <class E, int R, int U>
UBC_FN void ubc_scatter(const ubc_params &p, const ubc_reduction<E> &o, const ubc_slices &s, const ubc_staging &stage,
	ubc_u32 round, ubc_u64 window) {
	ubc_u64 src[R], dst[R], offset = round * window;
	ubc_u32 full[R], most = 0, step = 16 * o.threads; // a window is short
	UBC_UNROLL
	for (ubc_u32 i = 1; i < R; i++) {
		full[i] = 0;
		if (i >= o.n)
			continue;
		ubc_u32 peer = ubc_peer(p, i);
		src[i] = p.src + ubc_slice_begin(s, peer) + offset;
		dst[i] = ubc_slot(stage, i, round, ubc_slot_index(p, p.rank, peer));
		full[i] = (ubc_u32)ubc_vector_bytes(dst[i], src[i], ubc_clip(ubc_slice_length(s, peer), offset, window));
		most = full[i] > most ? full[i] : most;
	}
	for (ubc_u32 at = 16 * o.thread; at < most; at += U * step) {
		ubc_quad v[U][R];
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			UBC_UNROLL
			for (int i = 1; i < R; i++)
				if (at + u * step < full[i])
					v[u][i] = ubc_load16(src[i] + (at + u * step));
		}
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			UBC_UNROLL
			for (int i = 1; i < R; i++)
				if (at + u * step < full[i])
					ubc_store16(dst[i] + (at + u * step), o.scaled ? ubc_scale<E>(v[u][i], o.factor) : v[u][i]);
		}
	}
	UBC_ROLLED
	for (ubc_u32 i = 1; i < o.n; i++) {
		ubc_u32 peer = ubc_peer(p, i);
		ubc_u64 from = p.src + ubc_slice_begin(s, peer) + offset;
		ubc_u64 bytes = ubc_clip(ubc_slice_length(s, peer), offset, window);
		ubc_u64 to = ubc_slot(stage, i, round, ubc_slot_index(p, p.rank, peer));
		ubc_copy_source_rest(o, to, from, bytes, ubc_vector_bytes(to, from, bytes));
	}
}

// The rounds of a two-shot reduction. They follow from what the ranks have announced, and are the same on all ranks,
// except for copies.
struct ubc_rounds {
	ubc_u32 rounds;
	ubc_u64 window;    // of each slice, in a round
	ubc_staging stage; // slots for sources that peers push, then for their results
	bool pull;         // sources are read in place
	bool copies;       // this rank's destination is staged: it copies peers' results there
};

// ubc_plan_rounds fills found with the addresses of each rank's source and destination here, 0: staged or not used, and
// fills staging. It clears ok if a buffer is not mapped. ok and the result are the same for the whole block.
//
// It must not be a member of a struct: those have external linkage, and the emulator links both sets of kernels.
template <class E>
UBC_FN ubc_rounds ubc_plan_rounds(const ubc_params &p, const ubc_reduction<E> &o, const ubc_slices &s,
	const ubc_u64 *words, ubc_u64 *found, ubc_u64 *staging, bool &ok) {
	ubc_rounds w;
	bool whole = true; // no destination is staged
	w.pull = p.push == 0 && !o.scaled;
	if (ok)
		for (ubc_u32 r = 0; r < o.n; r++) {
			w.pull = w.pull && (words[2 * r] & UBC_DIRECT) != 0;
			if (!s.scatter && ubc_receives(p, r, 0))
				whole = whole && (words[2 * r + 1] & UBC_DIRECT) != 0;
		}
	if (ok && s.longest > 0) {
		for (ubc_u32 r = UBC_THREAD; r < o.n; r += UBC_THREADS) {
			found[2 * r] = ubc_find(p, o.e, r, words[2 * r], r != p.rank && w.pull, ok);
			found[2 * r + 1] = ubc_find(p, o.e, r, words[2 * r + 1], r != p.rank && ubc_receives(p, r, p.rank), ok);
			if (!w.pull || !whole)
				ok = ubc_find_staging(p, o.e, words, r, staging) && ok;
		}
		ok = ubc_sync_and(ok);
	}
	w.stage = ubc_staging_slots(p, words, staging, o.n == 1 ? 1 : (whole ? 1 : 2) * (o.n - 1));
	w.window = (w.pull && whole) || o.n == 1 ? s.longest : w.stage.bytes;
	w.copies = ok && !s.scatter && ubc_receives(p, p.rank, p.rank) && (words[2 * p.rank + 1] & UBC_DIRECT) == 0;
	w.rounds = ok && s.longest > 0 ? (ubc_u32)((s.longest + w.window - 1) / w.window) : 0;
	ubc_note_rounds(p, o.e, w.stage, w.rounds);
	return w;
}

// ubc_twoshot: each rank reduces its slice. It reads the sources in place, or their ranks push them to its staging
// memory first. It writes the result to the direct destinations, and to the staging memory of ranks whose destination
// is staged. If anything is staged, it works in rounds. A block works only with the peers' blocks of its number:
// element i of a slice belongs to the same block on all ranks. U vectors of each of up to R inputs are in flight.
template <class E, int R, int U> UBC_FN void ubc_twoshot(const ubc_params &p) {
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	ubc_slices s = ubc_slices::of(p, o.bytes);
	UBC_SHARED(ubc_u64, words, 3 * R, 1); // what each rank has announced
	UBC_SHARED(ubc_u64, found, 2 * R, 2); // see ubc_plan_rounds
	UBC_SHARED(ubc_u64, staging, R, 5);
	ubc_post_words(p, o.e, target);
	bool ok = ubc_entry_barrier(p, o.e, words);
	ubc_rounds w = ubc_plan_rounds(p, o, s, words, found, staging, ok);
	ubc_staging stage = w.stage;
	ubc_u64 window = w.window;
	ubc_u32 rounds = w.rounds;
	bool pull = w.pull;
	// Three stages in a pipeline, each one round behind the stage before. Each turn has one wait and one signal. The
	// wait is for all peers to end the turn before, which they usually have done a while ago.
	for (ubc_u32 i = pull ? 1 : 0; ok && rounds > 0 && i < rounds + 2; i++) {
		if (i < rounds && !pull)
			ubc_scatter<E, R, (R == 2 ? 4 : 1)>(p, o, s, stage, i, window);
		if (i >= (pull ? 2 : 1) && !(ok = ubc_wait_signals(p, o.e, i)))
			break;
		if (i >= 1 && i <= rounds) {
			ubc_u32 round = i - 1;
			ubc_u64 offset = round * window;
			ubc_reduce_window<R> m;
			ubc_u64 all = 0;
			m.own = p.rank;
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++) {
				if (r >= o.n)
					continue;
				ubc_u64 src = found[2 * r];
				if (r == p.rank)
					m.in[r] = p.src + ubc_slice_begin(s, r) + offset;
				else
					m.in[r] = src != 0 ? src + ubc_slice_begin(s, p.rank) + offset
									   : ubc_slot(stage, 0, round, ubc_slot_index(p, r, p.rank));
				all |= m.in[r];
			}
			UBC_UNROLL
			for (ubc_u32 i = 0; i < R; i++) {
				m.out[i] = 0;
				ubc_u32 r = ubc_peer(p, i);
				if (i >= o.n || !ubc_receives(p, r, p.rank))
					continue;
				ubc_u64 dst = i == 0 ? p.dst : found[2 * r + 1];
				m.out[i] = dst != 0 ? dst + ubc_slice_dst(s, p.rank) + offset
									: ubc_slot(stage, i, round, o.n - 1 + ubc_slot_index(p, p.rank, r));
				all |= m.out[i];
			}
			m.bytes = ubc_clip(ubc_slice_length(s, p.rank), offset, window);
			m.full = (all & 15) == 0 ? m.bytes & ~15ull : 0;
			m.begin = 16ull * o.thread;
			m.step = 16ull * o.threads;
			ubc_reduce_vectors<E, R, U>(o, m);
			ubc_reduce_rest(o, m);
		}
		if (i >= 2 && w.copies) {
			ubc_u32 round = i - 2;
			ubc_u64 offset = round * window;
			ubc_reduction<E> plain = o;
			plain.scaled = false;
			UBC_ROLLED
			for (ubc_u32 q = 1; q < o.n; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_copy_source(plain, p.dst + ubc_slice_begin(s, peer) + offset,
					ubc_slot(stage, 0, round, o.n - 1 + ubc_slot_index(p, peer, p.rank)),
					ubc_clip(ubc_slice_length(s, peer), offset, window));
			}
		}
		if (i <= rounds)
			ubc_signal(p, o.e, i + 1);
	}
	ubc_finish(p, o.e);
}

// The kernels for up to R ranks. There is a set for each of several R, because registers are few and every instruction
// takes time. Kernels that may be launched early fit twice on a multiprocessor, except with many ranks, which take more
// registers.
#define UBC_REDUCE_KERNELS(T, R)                                                                           \
	UBC_KERNEL_OF(ubc_params, ubc_oneshot_##T##_##R, (R <= 4 ? 2 : 1), (ubc_oneshot<ubc_##T, R>))            \
	UBC_KERNEL_OF(ubc_params, ubc_packets_##T##_##R, (R <= 4 ? 2 : 1), (ubc_twoshot_packets<ubc_##T, R>))    \
	UBC_KERNEL_OF(ubc_params, ubc_lines_##T##_##R, (R <= 2 ? 2 : 1), (ubc_by_lines<ubc_##T, R>))             \
	UBC_KERNEL(ubc_twoshot_##T##_##R, (ubc_twoshot<ubc_##T, R, 8 / R>))

#endif
