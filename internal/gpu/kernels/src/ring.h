// The ring all-reduce: a reduce-scatter and an all-gather along a ring of ranks. Each rank sends only to the next one.
//
// The data is cut into slices as for two-shot, and each slice into chunks, which go to the blocks in turn. A block
// works only with the neighbours' blocks of its number, one chunk of every slice after the other. In step 0 a rank
// sends its source's part of its own slice. In steps 1 to n-2 it reduces what has arrived with its own part, and sends
// that. In step n-1 this gives the result, which it keeps and sends. In steps n to 2n-2 it takes results, and passes
// all but the last on. Each step but the last sends one message, and each step but the first takes one. While a block's
// message is under way, other blocks use the link. Fewer and longer messages are better.
//
// Messages go to the next rank's staging memory, results straight to its destination if that is direct. A block has two
// slots in the staging memory. So before it sends, a block waits only until the next rank has taken the message before
// the last one, and ranks never wait for each other in a circle.
#ifndef UBC_RING_H
#define UBC_RING_H

#include "reduce.h"

enum { UBC_RING_SLOTS = 2 };

// Averages of the half types are carried as fractions of the sum: 1/2 of it with two ranks in it, 1/4 with three or
// four, and so on. The types are narrower than their accumulators: the sum might not fit where the average does. The
// host's ring does the same.
UBC_FN ubc_u32 ubc_fraction(ubc_u32 ranks) {
	if (!UBC_MANY)
		return ranks <= 1 ? 1 : ranks <= 2 ? 2 : ranks <= 4 ? 4 : 8;
	ubc_u32 n = 1;
	while (n < ranks)
		n *= 2;
	return n;
}

// ubc_reduce_two combines what has arrived, times scale, with this rank's own source. An average is then divided by n,
// unless n is 0. scale is for averages of half types.
template <class E, class V> UBC_FN V ubc_reduce_two(const V &in, const V &own, ubc_u32 op, ubc_u32 scale, ubc_u32 n) {
	typedef typename E::L L;
	typedef typename E::A A;
	enum { K = sizeof(V) / sizeof(L) };
	bool bools = ubc_of_bools<E>(op), is_signed = ubc_of_signed<E>(op);
	if (E::INTEGER)
		op &= UBC_OP;
	ubc_pack<V, L> x, y;
	A a[K], mine[K];
	x.v = in;
	y.v = own;
	UBC_UNROLL
	for (int i = 0; i < K; i++) {
		a[i] = E::widen(x.e[i]);
		if (E::FRACTIONS && op == UBC_AVG)
			a[i] = a[i] * (A)scale;
		mine[i] = E::widen(y.e[i]);
	}
	ubc_apply_all<E, K>(a, mine, op, is_signed);
	if (op == UBC_AVG && n != 0)
		ubc_divide_all<E, K>(a, n, is_signed);
	UBC_UNROLL
	for (int i = 0; i < K; i++)
		x.e[i] = E::narrow(a[i]);
	if (bools) {
		UBC_UNROLL
		for (int i = 0; i < K; i++)
			x.e[i] = E::truth(x.e[i]);
	}
	return x.v;
}

// What a block does with one chunk. in: what has arrived, or 0. own: this rank's source, or 0. If there are both, they
// are reduced. The result goes to each out that is not 0.
struct ubc_ring_step {
	ubc_u64 in, own, out[2];
	ubc_u64 bytes;
	ubc_u32 scale, divisor; // for ubc_reduce_two
};

// ubc_recv_reduce_send does a step for a chunk of whole vectors with aligned addresses. It multiplies sources if
// necessary.
template <class E, bool IN, bool OWN> UBC_FN void ubc_recv_reduce_send(const ubc_reduction<E> &o, const ubc_ring_step &k) {
	enum { U = 4 };
	ubc_u64 step = 16ull * UBC_THREADS;
	for (ubc_u64 at = 16ull * UBC_THREAD; at < k.bytes; at += U * step) {
		ubc_quad in[U], own[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (IN && at + u * step < k.bytes)
				in[u] = ubc_load16(k.in + at + u * step);
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (OWN && at + u * step < k.bytes)
				own[u] = ubc_load16(k.own + at + u * step);
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			ubc_u64 a = at + u * step;
			if (a >= k.bytes)
				break;
			if (OWN && o.scaled)
				own[u] = ubc_scale<E>(own[u], o.factor);
			ubc_quad v = !OWN ? in[u] : !IN ? own[u] : ubc_reduce_two<E>(in[u], own[u], o.op, k.scale, k.divisor);
			UBC_UNROLL
			for (int i = 0; i < 2; i++)
				if (k.out[i] != 0)
					ubc_store16(k.out[i] + a, v);
		}
	}
}

// ubc_recv_reduce_send_elements does a step for a chunk at any addresses, 4 elements in flight.
template <class E> UBC_FN void ubc_recv_reduce_send_elements(const ubc_reduction<E> &o, const ubc_ring_step &k) {
	enum { U = 4, SIZE = sizeof(typename E::T) };
	ubc_u64 step = (ubc_u64)SIZE * UBC_THREADS;
	for (ubc_u64 at = (ubc_u64)SIZE * UBC_THREAD; at < k.bytes; at += U * step) {
		ubc_one<E> in[U], own[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			ubc_u64 a = at + u * step;
			if (k.in != 0 && a < k.bytes)
				in[u] = ubc_load_one<E>(k.in + a);
			if (k.own != 0 && a < k.bytes)
				own[u] = ubc_load_one<E>(k.own + a);
		}
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			ubc_u64 a = at + u * step;
			if (a >= k.bytes)
				break;
			if (k.own != 0 && o.scaled)
				own[u] = ubc_scale<E>(own[u], o.factor);
			ubc_one<E> v = k.in != 0 ? in[u] : own[u];
			if (k.in != 0 && k.own != 0)
				v = ubc_reduce_two<E>(in[u], own[u], o.op, k.scale, k.divisor);
			UBC_UNROLL
			for (int i = 0; i < 2; i++)
				if (k.out[i] != 0)
					ubc_store_one<E>(k.out[i] + a, v);
		}
	}
}

// ubc_run_step does the whole vectors if all addresses are aligned, and what is left, or everything, element by
// element.
template <class E> UBC_FN void ubc_run_step(const ubc_reduction<E> &o, const ubc_ring_step &k) {
	ubc_ring_step part = k;
	part.bytes = ((k.in | k.own | k.out[0] | k.out[1]) & 15) == 0 ? k.bytes & ~15ull : 0;
	if (k.in != 0 && k.own != 0)
		ubc_recv_reduce_send<E, true, true>(o, part);
	else if (k.own != 0)
		ubc_recv_reduce_send<E, false, true>(o, part);
	else if (k.in != 0)
		ubc_recv_reduce_send<E, true, false>(o, part);
	ubc_u64 done = part.bytes;
	if (done == k.bytes || (k.in | k.own) == 0)
		return;
	part.bytes = k.bytes - done;
	part.in += k.in != 0 ? done : 0;
	part.own += k.own != 0 ? done : 0;
	part.out[0] += k.out[0] != 0 ? done : 0;
	part.out[1] += k.out[1] != 0 ? done : 0;
	ubc_recv_reduce_send_elements(o, part);
}

// ubc_wait_neighbours waits until the previous rank's block has sent `sent` messages, and the next rank's block has
// taken `taken`. The result is the same for the whole block.
UBC_FN bool ubc_wait_neighbours(const ubc_params &p, ubc_u32 e, ubc_u32 sent, ubc_u32 taken) {
	bool ok = true;
	ubc_u32 previous = ubc_peer(p, p.ranks - 1);
	if (UBC_THREAD == 0 && sent > 0)
		ok = ubc_wait_flag(p, e, sent, previous, ubc_flag(p.area[0], previous));
	if (UBC_THREAD == 1 && taken > 0)
		ok = ubc_wait_flag(p, e, taken, ubc_peer(p, 1), p.area[0] + UBC_AREA_CREDIT + 8ull * UBC_BLOCK);
	return ubc_sync_and(ok);
}

template <class E> UBC_FN void ubc_do_ring(const ubc_params &p) {
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p), n = p.ranks;
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	UBC_SHARED(ubc_u64, words, 3 * UBC_MAX_RANKS, 1);
	UBC_SHARED(ubc_u64, found, 1, 2); // address of the next rank's destination, 0: staged
	UBC_SHARED(ubc_u64, staging, UBC_MAX_RANKS, 5);
	ubc_post_words(p, o.e, target);
	bool ok = ubc_entry_barrier(p, o.e, words);
	if (n == 1) {
		if (ok)
			ubc_copy_source(o, p.dst, p.src, o.bytes);
		ubc_finish(p, o.e);
		return;
	}
	ubc_slices s = ubc_slices::of(p, o.bytes);
	ubc_staging stage = ubc_staging_slots(p, words, staging, 1);
	ubc_u64 slot = 4 * stage.buffer / (UBC_BLOCKS * UBC_RING_SLOTS) / 128 * 128, row = 16ull * UBC_THREADS;
	slot = slot < UBC_CHUNK ? slot : UBC_CHUNK;
	ubc_u64 chunk = (s.stride / UBC_BLOCKS + row) / row * row;
	chunk = chunk < slot ? chunk : slot;
	ubc_u64 all = chunk * UBC_BLOCKS, first = chunk * UBC_BLOCK; // of a slice: one chunk for each block; where this
	                                                             // block's is
	ubc_u64 first_slot = UBC_RING_SLOTS * slot * UBC_BLOCK;
	ubc_u32 chunks = ok && o.bytes > 0 && s.stride > first ? (ubc_u32)((s.stride - first + all - 1) / all) : 0;
	// A block without chunks must not resolve the next rank's buffers: that rank does not wait for the block before it
	// ends.
	ubc_u32 next = ubc_peer(p, 1);
	if (chunks > 0) {
		if (UBC_THREAD == 0) {
			*found = ubc_find(p, o.e, next, words[2 * next + 1], true, ok);
			ok = ubc_find_staging(p, o.e, words, p.rank, staging) && ubc_find_staging(p, o.e, words, next, staging) && ok;
		}
		ok = ubc_sync_and(ok);
	}
	ubc_note_rounds(p, o.e, stage, chunks);
	bool staged = ok && (words[2 * p.rank + 1] & UBC_DIRECT) == 0; // this rank's own destination
	ubc_u32 sent = 0, taken = 0;
	for (ubc_u32 c = 0; ok && c < chunks; c++) {
		for (ubc_u32 step = 0; ok && step < 2 * n - 1; step++) {
			ubc_u32 slice = (p.rank + 2 * n - step) % n;
			bool sends = step < 2 * n - 2, takes = step > 0, result = step >= n - 1;
			ubc_u64 offset = c * all + first, at = ubc_slice_begin(s, slice) + offset;
			ubc_u32 room = sends && sent >= UBC_RING_SLOTS ? sent + 1 - UBC_RING_SLOTS : 0;
			if (!(ok = ubc_wait_neighbours(p, o.e, takes ? taken + 1 : 0, room)))
				break;
			ubc_ring_step k;
			k.bytes = ubc_clip(ubc_slice_length(s, slice), offset, chunk);
			k.scale = E::FRACTIONS ? ubc_fraction(step) : 1; // for the ranks in what has arrived
			k.divisor = result ? n : E::FRACTIONS ? ubc_fraction(step + 1) : 0;
			k.own = step < n ? p.src + at : 0;
			k.in = takes ? staging[0] + first_slot + taken % UBC_RING_SLOTS * slot : 0;
			// After step n-1 results arrive in the destination, if it is direct, or have to be copied there.
			bool there = step >= n && !staged;
			if (there)
				k.in = sends ? p.dst + at : 0;
			k.out[0] = result && !there ? p.dst + at : 0;
			k.out[1] = 0;
			if (sends)
				k.out[1] = result && *found != 0 ? *found + at : staging[1] + first_slot + sent % UBC_RING_SLOTS * slot;
			ubc_run_step(o, k);
			ubc_sync();
			if (sends)
				sent++;
			if (takes)
				taken++;
			if (UBC_THREAD == 0 && sends)
				ubc_release64(ubc_flag(UBC_MANY ? ubc_area(p, 1) : p.area[1], p.rank), (ubc_u64)o.e << 32 | sent);
			if (UBC_THREAD == 1 && takes)
				ubc_release64(ubc_area(p, n - 1) + UBC_AREA_CREDIT + 8ull * UBC_BLOCK, (ubc_u64)o.e << 32 | taken);
		}
	}
	ubc_finish(p, o.e);
}

#define UBC_RING_KERNELS(T) UBC_KERNEL(UBC_NAMED(ring_##T), ubc_do_ring<ubc_##T>)

#endif
