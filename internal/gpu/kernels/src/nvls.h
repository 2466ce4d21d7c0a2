// Operations through a multicast object (see multimem.h): the switches reduce what a rank loads, and copy to all ranks
// what it stores. A side, the sources or the destinations, is direct if all ranks have bound their memory at the same
// place of the object; else it is staged: sources are copied to the staging memory, or results from it, in rounds. All
// ranks see the same words, so they agree. Blocks work only with the peers' blocks of their number.
#ifndef UBC_NVLS_H
#define UBC_NVLS_H

#include "move.h"
#include "multimem.h"
#include "reduce.h"

// UBC_NVLS is the name of a kernel here.
#ifdef UBC_STAND_IN
#define UBC_NVLS(name) ubc_stand_in_##name
#else
#define UBC_NVLS(name) ubc_nvls_##name
#endif

// What an operation works with.
struct ubc_nvls_plan {
	ubc_multi src, dst, stage;
	bool pull, push; // all ranks' sources are direct; all destinations are
	ubc_u64 own;     // this rank's staging memory
	ubc_u64 buffer, slot;
	ubc_u64 window;  // of each slice, in a round
	ubc_u32 rounds;
};

enum { UBC_NVLS_TAIL = 128 }; // bytes at the end of each staging buffer

// ubc_nvls_divide divides a staging buffer into slots, and the longest of the slices into rounds.
UBC_FN void ubc_nvls_divide(ubc_nvls_plan &w, ubc_u32 slots, ubc_u64 longest, bool whole) {
	w.slot = (w.buffer - UBC_NVLS_TAIL) / slots / 128 * 128;
	w.window = whole ? longest : w.slot;
	w.rounds = (ubc_u32)((longest + w.window - 1) / w.window);
}

// ubc_nvls_slot returns the offset of a slot in staging memory. ubc_nvls_tail returns that of the last bytes of the data,
// less than a vector, for direct destinations: to store a vector there would be to write beyond them.
UBC_FN ubc_u64 ubc_nvls_slot(const ubc_nvls_plan &w, ubc_u32 round, ubc_u32 slot) {
	return (round & 3) * w.buffer + slot * w.slot;
}
UBC_FN ubc_u64 ubc_nvls_tail(const ubc_nvls_plan &w, ubc_u32 round) {
	return ((round & 3) + 1) * w.buffer - UBC_NVLS_TAIL;
}

// ubc_nvls_copy_tail copies the tail of data, which was sent in this round as the end of the bytes at offset `at`.
UBC_FN void ubc_nvls_copy_tail(const ubc_params &p, const ubc_nvls_plan &w, ubc_u32 round, ubc_u64 at, ubc_u64 bytes) {
	ubc_u64 full = bytes & ~15ull;
	if (full / (16ull * UBC_THREADS) % UBC_BLOCKS == UBC_BLOCK)
		for (ubc_u64 i = UBC_THREAD; i < bytes - full; i += UBC_THREADS)
			*(volatile unsigned char *)(p.dst + at + full + i) =
				*(const volatile unsigned char *)(w.own + ubc_nvls_tail(w, round) + i);
}

// Where a window goes: its place in all ranks' destinations, or in their staging memory.
struct ubc_nvls_out {
	ubc_multi m;
	ubc_u64 at;
};

UBC_FN ubc_nvls_out ubc_nvls_output(const ubc_nvls_plan &w, ubc_u32 round, ubc_u32 slot, ubc_u64 at) {
	if (w.push)
		return {w.dst, at};
	return {w.stage, ubc_nvls_slot(w, round, slot)};
}

// ubc_nvls_store stores the vector of a window at offset i. It has `left` bytes if that is less than a vector.
UBC_FN void ubc_nvls_store(
	const ubc_nvls_plan &w, const ubc_nvls_out &out, ubc_u32 round, ubc_u64 i, ubc_u64 left, const ubc_quad &v) {
	if (w.push && left < 16)
		ubc_multi_store(w.stage, ubc_nvls_tail(w, round), v);
	else
		ubc_multi_store(out.m, out.at + i, v);
}

// ubc_nvls_average divides the sums of an average. Only floats have it.
template <class E> UBC_FN ubc_quad ubc_nvls_average(const ubc_quad &v, ubc_u32 n, ubc_u32 op) {
	if (E::INTEGER || sizeof(typename E::T) == 2 || op != UBC_AVG)
		return v;
	ubc_total<E, ubc_quad> t = ubc_widened<E>(v);
	return ubc_result<E>(t, n, op);
}

// ubc_nvls_reduce reduces this rank's window of a round, U vectors in flight. alone: the result is for this rank's
// destination alone, at `to`; else for all.
template <class E>
UBC_FN void ubc_nvls_reduce(const ubc_reduction<E> &o, const ubc_nvls_plan &w, ubc_u32 round, ubc_u32 slice, ubc_u64 from,
	ubc_u64 to, ubc_u64 bytes, bool alone) {
	enum { U = 4 };
	ubc_nvls_out out = ubc_nvls_output(w, round, slice, from);
	ubc_multi in = w.pull ? w.src : w.stage;
	ubc_u64 first = w.pull ? from : ubc_nvls_slot(w, round, slice), step = 16ull * o.threads;
	bool aligned = (to & 15) == 0;
	for (ubc_u64 at = 16ull * o.thread; at < bytes; at += U * step) {
		ubc_quad v[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < bytes)
				v[u] = ubc_multi_load<E>(in, first + at + u * step, o.op);
		UBC_UNROLL
		for (int u = 0; u < U; u++) {
			ubc_u64 i = at + u * step;
			if (i >= bytes)
				break;
			ubc_quad sum = ubc_nvls_average<E>(v[u], o.n, o.op);
			if (alone)
				ubc_store<ubc_quad, typename E::T>(to + i, sum, bytes - i, aligned);
			else
				ubc_nvls_store(w, out, round, i, bytes - i, sum);
		}
	}
}

// The reductions. Each rank reduces its slice, and stores it for all ranks that get it: of ALL_REDUCE for all, so that
// they have the same bits. Sources that are staged give way to the results in the same slots. If a little data has a
// result that does not depend on the order, every rank reduces all, from the staging memory, since others may still read
// a source that is also the destination.
template <class E> UBC_FN void ubc_do_nvls(const ubc_params &p) {
	enum { R = UBC_PARAM_RANKS };
	ubc_reduction<E> o = ubc_reduction<E>::begin(p);
	o.scaled = false;
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	o.e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, o.e))
		return;
	UBC_SHARED(ubc_u64, words, 3 * R, 1); // what each rank has announced
	UBC_SHARED(ubc_u64, found, 3 * R, 2); // where the stand-in finds sources, destinations and staging memory
	ubc_alias_fence();
	ubc_post_words(p, o.e, target);
	bool ok = ubc_entry_barrier(p, o.e, words);
	ubc_alias_fence();
	ubc_slices s = ubc_slices::of(p, o.bytes);
	bool exact = E::INTEGER || p.op == UBC_MIN || p.op == UBC_MAX, once = exact && !s.scatter && o.bytes <= UBC_ONCE;
	if (once) { // one slice
		s.stride = (o.bytes + 15) / 16 * 16;
		s.longest = o.bytes;
	}
	bool alone = once || s.scatter;
	ubc_u32 slots = once ? 1 : o.n, mine = once ? 0 : p.rank, tail = (ubc_u32)(o.bytes & 15);
	ubc_nvls_plan w = {};
	if (ok && s.longest > 0) {
		w.pull = !once && ubc_multi_find(p, o.e, words, 0, s.stride, found, w.src, ok);
		w.push = !alone && ubc_multi_find(p, o.e, words, 1, s.stride, found + R, w.dst, ok);
		w.buffer = ubc_multi_staging(p, o.e, words, found + 2 * R, w.stage, w.own, ok);
		ok = ubc_sync_and(ok);
		ubc_nvls_divide(w, slots, s.longest, w.pull && (w.push || alone));
	}
	// As in ubc_twoshot. No rank ends before the others have done with its buffers and its staging memory, which it may
	// unbind then.
	for (ubc_u32 i = w.pull ? 1 : 0; ok && w.rounds > 0 && i < w.rounds + 2; i++) {
		if (i < w.rounds && !w.pull) {
			UBC_ROLLED
			for (ubc_u32 q = 0; q < slots; q++)
				ubc_copy_source(o, w.own + ubc_nvls_slot(w, i, q), p.src + ubc_slice_begin(s, q) + i * w.window,
					ubc_clip(ubc_slice_length(s, q), i * w.window, w.window));
		}
		if (i >= (w.pull ? 2 : 1) && !(ok = ubc_multi_wait(p, o.e, i)))
			break;
		if (i >= 1 && i <= w.rounds) {
			ubc_u64 offset = (i - 1) * w.window, from = ubc_slice_begin(s, mine) + offset;
			ubc_nvls_reduce<E>(o, w, i - 1, mine, from, p.dst + (alone ? offset : from),
				ubc_clip(ubc_slice_length(s, mine), offset, w.window), alone);
		}
		if (i >= 2 && !alone) {
			ubc_u64 offset = (i - 2) * w.window;
			UBC_ROLLED
			for (ubc_u32 q = 0; q < slots; q++) {
				ubc_u64 begin = ubc_slice_begin(s, q) + offset, bytes = ubc_clip(ubc_slice_length(s, q), offset, w.window);
				if (!w.push)
					ubc_copy_source(o, p.dst + begin, w.own + ubc_nvls_slot(w, i - 2, q), bytes);
				else if (tail != 0 && bytes > 0 && begin + bytes == o.bytes)
					ubc_nvls_copy_tail(p, w, i - 2, begin, bytes);
			}
		}
		if (i <= w.rounds)
			ubc_multi_signal(p, o.e, i + 1);
	}
	ubc_finish(p, o.e);
}

// ubc_nvls_send stores a window of this rank's source to all ranks.
template <class T>
UBC_FN void ubc_nvls_send(const ubc_nvls_plan &w, ubc_u32 round, ubc_u32 slot, ubc_u64 src, ubc_u64 to, ubc_u64 bytes) {
	enum { U = 4 };
	ubc_nvls_out out = ubc_nvls_output(w, round, slot, to);
	ubc_u64 step = 16ull * UBC_BLOCKS * UBC_THREADS;
	bool aligned = (src & 15) == 0;
	for (ubc_u64 at = 16ull * (UBC_BLOCK * UBC_THREADS + UBC_THREAD); at < bytes; at += U * step) {
		ubc_quad v[U];
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < bytes)
				v[u] = ubc_load<ubc_quad, T>(src + at + u * step, bytes - at - u * step, aligned);
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < bytes)
				ubc_nvls_store(w, out, round, at + u * step, bytes - at - u * step, v[u]);
	}
}

// ALL_GATHER and BROADCAST: a rank stores its source for all ranks. A root's destination counts like the others': if all
// are direct, it gets the data, too; else it does not.
UBC_FN void ubc_do_nvls_move(const ubc_params &p) {
	enum { R = UBC_PARAM_RANKS };
	ubc_u32 last = ubc_last_epoch(p), broken = ubc_broken_epoch(p);
	ubc_u64 target = ubc_post_target(p);
	ubc_u32 e = ubc_next_epoch(last);
	if (ubc_broken_before(broken, e))
		return;
	UBC_SHARED(ubc_u64, words, 3 * R, 1);
	UBC_SHARED(ubc_u64, found, 2 * R, 2);
	ubc_alias_fence();
	ubc_post_words(p, e, target);
	bool ok = ubc_entry_barrier(p, e, words), gather = UBC_KIND(p.signature) == UBC_ALL_GATHER;
	ubc_alias_fence();
	ubc_u64 bytes = p.count * p.size, stride = gather ? bytes : 0;
	ubc_u32 slots = gather ? p.ranks : 1, mine = gather ? p.rank : 0;
	ubc_nvls_plan w = {};
	if (ok && bytes > 0) {
		w.push = ubc_multi_find(p, e, words, 1, stride, found, w.dst, ok);
		w.buffer = ubc_multi_staging(p, e, words, found + R, w.stage, w.own, ok);
		ok = ubc_sync_and(ok);
		ubc_nvls_divide(w, slots, bytes, w.push);
	}
	bool sends = gather || p.rank == p.root, receives = gather || p.rank != p.root;
	for (ubc_u32 i = 0; ok && w.rounds > 0 && i <= w.rounds; i++) { // reading is one round behind writing
		if (i < w.rounds) {
			ubc_u64 offset = i * w.window, src = p.src + offset, to = mine * stride + offset, n = ubc_clip(bytes, offset, w.window);
			if (sends && ((p.src | bytes) & 3) == 0)
				ubc_nvls_send<ubc_u32>(w, i, mine, src, to, n);
			else if (sends)
				ubc_nvls_send<unsigned char>(w, i, mine, src, to, n);
			ubc_multi_signal(p, e, i + 1);
		}
		if (i == 0 || !(ok = ubc_multi_wait(p, e, i)) || !receives)
			continue;
		ubc_u64 offset = (i - 1) * w.window, n = ubc_clip(bytes, offset, w.window);
		if (w.push) {
			if ((bytes & 15) != 0 && offset + n == bytes)
				ubc_nvls_copy_tail(p, w, i - 1, offset, n);
			continue;
		}
		UBC_ROLLED
		for (ubc_u32 q = 0; q < slots; q++)
			ubc_copy(p.dst + q * stride + offset, w.own + ubc_nvls_slot(w, i - 1, q), n);
	}
	ubc_finish(p, e);
}

#define UBC_NVLS_KERNEL(T) UBC_KERNEL(UBC_NVLS(T), ubc_do_nvls<ubc_##T>)
#define UBC_NVLS_MOVE_KERNEL UBC_KERNEL(UBC_NVLS(move), ubc_do_nvls_move)

#endif
