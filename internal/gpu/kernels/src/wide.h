// The reductions for more ranks than fit into registers (-DUBC_WIDE): UBC_SOME ranks at a time, in rank order.
#ifndef UBC_WIDE_H
#define UBC_WIDE_H

#include "reduce.h"

enum { UBC_SOME = 8 }; // ranks whose data is in flight at once

// ubc_wide_oneshot does what ubc_oneshot does.
template <class E> UBC_FN void ubc_wide_oneshot(const ubc_params &p) {
	typedef typename E::T T;
	enum { R = UBC_SOME };
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	bool aligned = ((p.src | p.dst) & 7) == 0;
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	bool one = UBC_KIND(p.signature) == UBC_REDUCE, ok = true;
	ubc_u32 wants = one ? ubc_distance(p, p.root) : 0; // distance of the only rank that gets the result, if `one`
	UBC_ROLLED
	for (ubc_u64 i = o.thread; 8 * i < o.bytes; i += o.threads) {
		ubc_pair v = ubc_load_source<E, ubc_pair>(o, p.src + 8 * i, o.bytes - 8 * i, aligned);
		UBC_ROLLED
		for (ubc_u32 q = one ? wants : 1; q != 0 && q < (one ? wants + 1 : o.n); q++)
			ubc_store_packet(ubc_packets_to(p, o.e, ubc_area(p, q), q) + 16 * i, v, o.e);
	}
	ubc_post_desc(p, o.e, target);
	UBC_ROLLED
	for (ubc_u64 i = o.thread; ok && (!one || wants == 0) && 8 * i < o.bytes; i += o.threads) {
		ubc_pair mine = ubc_load_source<E, ubc_pair>(o, p.src + 8 * i, o.bytes - 8 * i, aligned);
		ubc_total<E, ubc_pair> sum = {};
		UBC_ROLLED
		for (ubc_u32 some = 0; ok && some < o.n; some += R) {
			ubc_pair v[R];
			ubc_u64 from[R];
			ubc_u32 wanted = 0;
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++) {
				from[r] = ubc_packets_from(p, o.e, some + r);
				v[r] = mine;
				if (some + r < o.n && some + r != p.rank)
					wanted |= 1u << r;
			}
			ok = ubc_recv_packets<R>(p, o.e, from, wanted, 16 * i, v, some);
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++)
				if (some + r == 0)
					sum = ubc_widened<E>(v[r]);
				else if (some + r < o.n)
					ubc_add<E>(sum, v[r], o.op);
		}
		if (ok)
			ubc_store<ubc_pair, T>(p.dst + 8 * i, ubc_result<E>(sum, o.n, o.op), o.bytes - 8 * i, aligned);
	}
	ubc_wait_descs(p, o.e);
	ubc_finish(p, o.e);
}

// What a rank reduces at a time, in the block's shared memory: in[r] by rank, to each out[i] that is not 0, by
// distance.
struct ubc_wide_window {
	const ubc_u64 *in, *out;
	ubc_u64 bytes, full; // full: how many of these bytes go as whole aligned vectors
	ubc_u32 own;         // the rank whose input must be multiplied, if o.scaled
};

// ubc_wide_reduce_at loads what each input has at offset `at`, reduces it, and stores the result.
template <class E, class V, V (*LOAD)(ubc_u64), void (*STORE)(ubc_u64, V)>
UBC_FN void ubc_wide_reduce_at(const ubc_reduction<E> &o, const ubc_wide_window &m, ubc_u64 at) {
	enum { R = UBC_SOME };
	ubc_total<E, V> sum = {};
	UBC_ROLLED
	for (ubc_u32 some = 0; some < o.n; some += R) {
		V v[R];
		UBC_UNROLL
		for (ubc_u32 r = 0; r < R; r++)
			if (some + r < o.n)
				v[r] = LOAD(m.in[some + r] + at);
		UBC_UNROLL
		for (ubc_u32 r = 0; r < R; r++) {
			if (some + r >= o.n)
				continue;
			if (o.scaled && some + r == m.own)
				v[r] = ubc_scale<E>(v[r], o.factor);
			if (some + r == 0)
				sum = ubc_widened<E>(v[r]);
			else
				ubc_add<E>(sum, v[r], o.op);
		}
	}
	V result = ubc_result<E>(sum, o.n, o.op);
	UBC_ROLLED
	for (ubc_u32 i = 0; i < o.n; i++)
		if (m.out[i] != 0)
			STORE(m.out[i] + at, result);
}

UBC_FN ubc_quad ubc_wide_load(ubc_u64 a) { return ubc_load16(a); }
UBC_FN void ubc_wide_store(ubc_u64 a, ubc_quad v) { ubc_store16(a, v); }

// ubc_wide_reduce reduces the whole vectors, then what is left, or everything if an address is not aligned.
template <class E> UBC_FN void ubc_wide_reduce(const ubc_reduction<E> &o, const ubc_wide_window &m) {
	UBC_ROLLED
	for (ubc_u64 at = 16ull * o.thread; at < m.full; at += 16ull * o.threads)
		ubc_wide_reduce_at<E, ubc_quad, ubc_wide_load, ubc_wide_store>(o, m, at);
	enum { U = ubc_rest_of<E>::U };
	ubc_rest s = ubc_rest::of(m.full, m.bytes);
	UBC_ROLLED
	for (ubc_u64 tile = s.at; tile < m.bytes; tile += s.step)
		UBC_ROLLED
		for (ubc_u32 k = 0; k < 16 / sizeof(typename E::T); k++) {
			ubc_u64 at = ubc_rest_at<E>(s, tile, k / U, k % U);
			if (at < m.bytes)
				ubc_wide_reduce_at<E, ubc_one<E>, ubc_load_one<E>, ubc_store_one<E>>(o, m, at);
		}
}

// ubc_wide_twoshot does what ubc_twoshot does.
template <class E> UBC_FN void ubc_wide_twoshot(const ubc_params &p) {
	enum { R = UBC_MAX_RANKS };
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	ubc_slices s = ubc_slices::of(p, o.bytes);
	UBC_SHARED(ubc_u64, words, 3 * R, 1); // what each rank has announced
	UBC_SHARED(ubc_u64, found, 2 * R, 2); // see ubc_plan_rounds
	UBC_SHARED(ubc_u64, in, R, 3);
	UBC_SHARED(ubc_u64, out, R, 4);
	UBC_SHARED(ubc_u64, staging, R, 5);
	ubc_post_words(p, o.e, target);
	bool ok = ubc_entry_barrier(p, o.e, words);
	ubc_rounds w = ubc_plan_rounds(p, o, s, words, found, staging, ok);
	ubc_staging stage = w.stage;
	ubc_u64 window = w.window;
	ubc_u32 rounds = w.rounds;
	bool pull = w.pull;
	ubc_reduction<E> plain = o; // for data that its rank has already multiplied
	plain.scaled = false;
	for (ubc_u32 i = pull ? 1 : 0; ok && rounds > 0 && i < rounds + 2; i++) {
		if (i < rounds && !pull)
			UBC_ROLLED
			for (ubc_u32 q = 1; q < o.n; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_copy_source(o, ubc_slot(stage, q, i, ubc_slot_index(p, p.rank, peer)),
					p.src + ubc_slice_begin(s, peer) + i * window, ubc_clip(ubc_slice_length(s, peer), i * window, window));
			}
		if (i >= (pull ? 2 : 1) && !(ok = ubc_wait_signals(p, o.e, i)))
			break;
		if (i >= 1 && i <= rounds) {
			ubc_u32 round = i - 1;
			ubc_u64 offset = round * window, all = 0;
			for (ubc_u32 r = UBC_THREAD; r < o.n; r += UBC_THREADS) {
				ubc_u32 d = ubc_distance(p, r);
				ubc_u64 src = found[2 * r], dst = found[2 * r + 1];
				in[r] = r == p.rank ? p.src + ubc_slice_begin(s, r) + offset
						: src != 0	? src + ubc_slice_begin(s, p.rank) + offset
									: ubc_slot(stage, 0, round, ubc_slot_index(p, r, p.rank));
				out[d] = !ubc_receives(p, r, p.rank) ? 0
						 : r == p.rank				 ? p.dst + ubc_slice_dst(s, p.rank) + offset
						 : dst != 0					 ? dst + ubc_slice_dst(s, p.rank) + offset
													 : ubc_slot(stage, d, round, o.n - 1 + ubc_slot_index(p, p.rank, r));
			}
			ubc_sync();
			for (ubc_u32 r = 0; r < o.n; r++)
				all |= in[r] | out[r];
			ubc_wide_window m = {in, out, ubc_clip(ubc_slice_length(s, p.rank), offset, window), 0, p.rank};
			m.full = (all & 15) == 0 ? m.bytes & ~15ull : 0;
			ubc_wide_reduce(o, m);
		}
		if (i >= 2 && w.copies)
			UBC_ROLLED
			for (ubc_u32 q = 1; q < o.n; q++) {
				ubc_u32 peer = ubc_peer(p, q);
				ubc_copy_source(plain, p.dst + ubc_slice_begin(s, peer) + (i - 2) * window,
					ubc_slot(stage, 0, i - 2, o.n - 1 + ubc_slot_index(p, peer, p.rank)),
					ubc_clip(ubc_slice_length(s, peer), (i - 2) * window, window));
			}
		if (i <= rounds)
			ubc_signal(p, o.e, i + 1);
	}
	ubc_finish(p, o.e);
}

#define UBC_WIDE_KERNELS(T)                                       \
	UBC_KERNEL(ubc_wide_oneshot_##T, ubc_wide_oneshot<ubc_##T>) \
	UBC_KERNEL(ubc_wide_twoshot_##T, ubc_wide_twoshot<ubc_##T>)

#endif
