// All-reduces of one type from a group, as one operation.
#ifndef UBC_GROUP_H
#define UBC_GROUP_H

#include "reduce.h"

// ubc_share is 8 bytes of a group's data, which one packet carries: the addresses in their part, and its reduction.
template <class E> struct ubc_share {
	ubc_u64 src, dst, left; // left: bytes from here to the end of the part
	bool aligned;
	ubc_u32 red;
	typename E::F factor;

	// An empty part begins where the next part does.
	UBC_FN ubc_share of(const ubc_part *part, ubc_u32 parts, ubc_u64 i) {
		ubc_u32 k = 0;
		UBC_ROLLED
		for (ubc_u32 j = 1; j < parts; j++)
			if (i >= part[j].begin)
				k = j;
		ubc_share s;
		ubc_u64 offset = 8 * (i - part[k].begin);
		s.src = part[k].src + offset;
		s.dst = part[k].dst + offset;
		s.left = UBC_COUNT(part[k].signature) * sizeof(typename E::T) - offset;
		s.aligned = ((s.src | s.dst) & 7) == 0;
		s.red = UBC_RED(part[k].signature);
		s.factor = E::factor(part[k].factor);
		return s;
	}
};

template <class E> UBC_FN ubc_pair ubc_load_share(const ubc_share<E> &s) {
	ubc_pair v = ubc_load<ubc_pair, typename E::T>(s.src, s.left, s.aligned);
	return s.red == UBC_PREMULSUM ? ubc_scale<E>(v, s.factor) : v;
}

// ubc_do_group is like ubc_oneshot, for the concatenated data of all parts. If a part uses memory that an earlier part
// writes, or writes memory that it reads, one block does the parts in order. Peers need not know.
template <class E, int R> UBC_FN void ubc_do_group(const ubc_group_params &g) {
	typedef typename E::T T;
	const ubc_params &p = g.p;
	UBC_SHARED(ubc_part, part, UBC_MAX_GROUP, 1); // in shared memory, since it is indexed by variables
	UBC_UNROLL
	for (ubc_u32 k = 0; k < UBC_MAX_GROUP; k++)
		if (UBC_THREAD == k % UBC_MAX_RANKS)
			part[k] = g.part[k];
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	ubc_sync();
	ubc_u32 thread = UBC_BLOCK * UBC_THREADS + UBC_THREAD, threads = UBC_BLOCKS * UBC_THREADS;
	ubc_u32 of = ubc_op<E>(p); // flags for bools and signed integers
	ubc_u64 to[R], from[R]; // as in ubc_oneshot
	UBC_UNROLL
	for (ubc_u32 i = 1; i < R; i++)
		to[i] = ubc_packets_to(p, e, p.area[i], i);
	UBC_UNROLL
	for (ubc_u32 r = 0; r < R; r++)
		from[r] = ubc_packets_from(p, e, r);
	ubc_u32 peers = (1u << p.ranks) - 1 - (1u << p.rank);

	bool ok = true;
	ubc_u64 end = 0;
	UBC_ROLLED
	for (ubc_u32 k = 0; k == 0 || (ok && end < g.packets); k++) { // if ordered, once per part; else once
		ubc_u64 begin = end + thread;
		end = g.ordered != 0 && k + 1 < g.parts ? part[k + 1].begin : g.packets;
		ubc_pair first = {{0, 0}};
		UBC_ROLLED
		for (ubc_u64 i = begin; i < end; i += threads) {
			ubc_pair v = ubc_load_share(ubc_share<E>::of(part, g.parts, i));
			if (i == begin)
				first = v;
			UBC_UNROLL
			for (ubc_u32 q = 1; q < R; q++)
				if (q < p.ranks)
					ubc_store_packet(to[q] + 16 * i, v, e);
		}
		if (k == 0)
			ubc_post_desc(p, e, target);
		UBC_ROLLED
		for (ubc_u64 i = begin; i < end; i += threads) {
			ubc_share<E> s = ubc_share<E>::of(part, g.parts, i);
			ubc_pair v[R], mine = i == begin ? first : ubc_load_share(s);
			ok = ubc_recv_packets<R>(p, e, from, peers, 16 * i, v);
			if (!ok)
				break;
			UBC_UNROLL
			for (ubc_u32 r = 0; r < R; r++)
				if (r == p.rank)
					v[r] = mine;
			ubc_store<ubc_pair, T>(s.dst, ubc_combine<E, R>(v, p.ranks, s.red | of), s.left, s.aligned);
		}
		if (g.ordered != 0) // the next part may read this one's result
			ok = ubc_sync_and(ok);
	}
	ubc_wait_descs(p, e);
	ubc_finish(p, e);
}

// One kernel for any number of ranks: the few packets more or less matter little beside the launches that a group
// saves.
#define UBC_GROUP_KERNEL(T) UBC_KERNEL_OF(ubc_group_params, ubc_group_##T, 1, (ubc_do_group<ubc_##T, UBC_MAX_RANKS>))

#endif
