// Channels: one kernel of this rank does steps between two ranks in order. Kernels of the two ranks meet only through
// their channel ends, in the areas. These count signals, so that a captured kernel can be replayed.
//
// Blocks of a kernel do not wait for each other and share no counts. Each block waits for the peer itself, copies its
// share, adds its units to a signal, and keeps its own counts.
#ifndef UBC_CHANNEL_H
#define UBC_CHANNEL_H

#include "move.h"

UBC_PARAM_WORDS(ubc_channel_params, ubc_channel, ubc_channel_word)

UBC_FN ubc_step ubc_step_at(const ubc_channel_params &p, ubc_u32 i) {
	ubc_u64 at = __builtin_offsetof(ubc_channel_params, step) + (ubc_u64)sizeof(ubc_step) * i;
	return {ubc_channel_word(p, at), ubc_channel_word(p, at + 8), ubc_channel_word(p, at + 16),
		ubc_channel_word(p, at + 24)};
}

// A wait looks for a reason to stop every so many polls. Emulated kernels look after each, so that tests find waits that stop
// although what they wait for has come.
#ifdef UBC_EMULATE
enum { UBC_CHANNEL_POLLS = 1 };
#else
enum { UBC_CHANNEL_POLLS = UBC_POLLS };
#endif

// ubc_stop is called after each poll that found nothing. Now and then it looks for a reason to stop, which it returns; else
// UBC_OK. The caller then polls once more: what it waits for may have come before the reason, such as that the peer, which
// has signalled, has closed its end.
UBC_FN ubc_u32 ubc_stop(const ubc_channel_params &p, ubc_wait &w) {
	ubc_pause();
	if (++w.polls % UBC_CHANNEL_POLLS != 0)
		return UBC_OK;
	return ubc_get32(p.mine + UBC_CHANNEL_FAILED) != 0 ? (ubc_u32)UBC_ABORTED : ubc_check_abort(p.status, p.timeout, w);
}

// ubc_fail ends the channel, unless it has ended.
UBC_FN void ubc_fail(const ubc_channel_params &p, ubc_u32 code) {
	if (ubc_exchange32(p.mine + UBC_CHANNEL_FAILED, 1) == 0)
		ubc_post_error(p.status, code, p.peer, 0, 0, 0, 0);
}

// ubc_signal sends signal k. If the blocks have moved data before it, each of them adds some of the signal's units
// after its share; else block 0 adds them all.
UBC_FN void ubc_signal(const ubc_channel_params &p, ubc_u32 k, bool moved, bool relaxed) {
	if (moved)
		ubc_sync();
	if (UBC_THREAD != 0 || (!moved && UBC_BLOCK != 0))
		return;
	ubc_u64 at = p.theirs + UBC_CHANNEL_SIGNALS + 4 * (k % UBC_SIGNAL_SLOTS);
	if (moved)
		ubc_release_add32(at, UBC_BLOCK == 0 ? UBC_SIGNAL_UNITS - (UBC_BLOCKS - 1) : 1);
	else if (!relaxed)
		ubc_release_add32(at, UBC_SIGNAL_UNITS);
	else
		ubc_relaxed_add32(at, UBC_SIGNAL_UNITS);
}

// ubc_wait_signal waits until the peer's signal k has arrived. The result is the same for the whole block.
UBC_FN bool ubc_wait_signal(const ubc_channel_params &p, ubc_u32 k) {
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_u64 at = p.mine + UBC_CHANNEL_SIGNALS + 4 * (k % UBC_SIGNAL_SLOTS);
		ubc_u32 units = UBC_SIGNAL_UNITS * (k / UBC_SIGNAL_SLOTS + 1);
		ubc_wait w = {0, 0};
		ubc_u32 code = UBC_OK;
		do {
			while (ok && (int)(ubc_get32(at) - units) < 0) {
				ok = code == UBC_OK;
				if (ok)
					code = ubc_stop(p, w);
			}
			// Only once, since an acquire empties the multiprocessor's cache. An assembler drops it if its result is
			// not used.
		} while (ok && (int)(ubc_acquire32(at) - units) < 0);
		if (!ok)
			ubc_fail(p, code);
	}
	return ubc_sync_and(ok);
}

// ubc_packet_flag returns the flag of the packets of the k-th step with packets. It is never 0: fresh memory holds
// that.
UBC_FN ubc_u32 ubc_packet_flag(ubc_u32 salt, ubc_u32 k) { return salt + k == 0 ? 1 : salt + k; }

// ubc_word_width returns the width of the accesses that move the data of packets, as ubc_pair_width does, or at most 4
// if not wide.
UBC_FN ubc_u32 ubc_word_width(ubc_u64 x, ubc_u64 bytes, bool wide) {
	return wide ? ubc_pair_width(x, bytes) : ((x | bytes) & 3) == 0 ? 4 : 1;
}

template <bool WIDE> UBC_FN void ubc_put_packet(ubc_u64 a, const ubc_pair &v, ubc_u32 flag) {
	if (WIDE)
		ubc_store_packet(a, v, flag);
	else
		ubc_put64(a, (ubc_u64)flag << 32 | v.w[0]);
}

// ubc_poll_packet loads a packet, and reports whether it has the flag.
template <bool WIDE> UBC_FN bool ubc_poll_packet(ubc_u64 a, ubc_pair &v, ubc_u32 flag) {
	if (WIDE) {
		ubc_quad q = ubc_load_packet(a);
		v = {{q.w[0], q.w[2]}};
		return ubc_ready(q, flag);
	}
	ubc_u64 q = ubc_get64(a);
	v = {{(ubc_u32)q, 0}};
	return (ubc_u32)(q >> 32) == flag;
}

// ubc_stride returns how many bytes of data the whole grid puts at once.
UBC_FN ubc_u64 ubc_stride(ubc_u32 half) {
	ubc_u64 threads = UBC_THREADS;
	UBC_OPAQUE(threads); // as in ubc_copy_by
	return threads * (half * UBC_BLOCKS);
}

UBC_FN ubc_u32 ubc_load4(ubc_u64 a) { return *(const volatile ubc_u32 *)a; }
UBC_FN void ubc_store4(ubc_u64 a, ubc_u32 v) { *(volatile ubc_u32 *)a = v; }

// Packets of 16 bytes carry 8, as everywhere; packets of 8 bytes are a word of data and a word of flag. If the data is
// aligned, whole packets go several at a time.
template <bool WIDE> UBC_FN void ubc_put_packets(const ubc_step &s, ubc_u32 flag) {
	enum { U = WIDE ? 4 : 2, HALF = WIDE ? 8 : 4 };
	ubc_u32 width = ubc_word_width(s.src, s.bytes, WIDE);
	ubc_u64 first = HALF * (UBC_BLOCK * UBC_THREADS + UBC_THREAD), step = ubc_stride(HALF);
	ubc_u64 whole = width == HALF ? s.bytes & ~(ubc_u64)(HALF - 1) : 0;
	for (ubc_u64 at = first; at < whole; at += U * step) {
		ubc_pair v[U] = {};
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < whole)
				v[u] = WIDE ? ubc_load8(s.src + at + u * step) : ubc_pair{{ubc_load4(s.src + at + u * step), 0}};
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < whole)
				ubc_put_packet<WIDE>(s.dst + 2 * (at + u * step), v[u], flag);
	}
	UBC_ROLLED
	for (ubc_u64 at = whole + first; at < s.bytes; at += step) {
		ubc_u64 left = s.bytes - at;
		ubc_put_packet<WIDE>(s.dst + 2 * at, ubc_load_pair(s.src + at, left < HALF ? left : HALF, width), flag);
	}
}

// ubc_wait_packets waits for U packets; their data is `apart` bytes apart. It skips packets that begin at `end` or
// later.
template <bool WIDE, int U>
UBC_FN bool ubc_wait_packets(
	const ubc_channel_params &p, ubc_pair *v, ubc_u64 from, ubc_u64 at, ubc_u64 apart, ubc_u64 end, ubc_u32 flag) {
	ubc_wait w = {0, 0};
	for (ubc_u32 code = UBC_OK;; code = ubc_stop(p, w)) {
		bool all = true;
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * apart < end)
				all = ubc_poll_packet<WIDE>(from + 2 * (at + u * apart), v[u], flag) && all;
		if (all)
			return true;
		if (code != UBC_OK) {
			ubc_fail(p, code);
			return false;
		}
	}
}

template <bool WIDE> UBC_FN bool ubc_get_packets(const ubc_channel_params &p, const ubc_step &s, ubc_u32 flag) {
	enum { U = WIDE ? 4 : 2, HALF = WIDE ? 8 : 4 };
	ubc_u32 width = ubc_word_width(s.dst, s.bytes, WIDE);
	ubc_u64 first = HALF * (UBC_BLOCK * UBC_THREADS + UBC_THREAD), step = ubc_stride(HALF);
	ubc_u64 whole = width == HALF ? s.bytes & ~(ubc_u64)(HALF - 1) : 0;
	for (ubc_u64 at = first; at < whole; at += U * step) {
		ubc_pair v[U] = {};
		if (!ubc_wait_packets<WIDE, U>(p, v, s.src, at, step, whole, flag))
			return false;
		UBC_UNROLL
		for (int u = 0; u < U; u++)
			if (at + u * step < whole) {
				if (WIDE)
					ubc_store8(s.dst + at + u * step, v[u]);
				else
					ubc_store4(s.dst + at + u * step, v[u].w[0]);
			}
	}
	UBC_ROLLED
	for (ubc_u64 at = whole + first; at < s.bytes; at += step) {
		ubc_u64 left = s.bytes - at;
		ubc_pair v[1] = {};
		if (!ubc_wait_packets<WIDE, 1>(p, v, s.src, at, step, s.bytes, flag))
			return false;
		ubc_store_pair(s.dst + at, v[0], left < HALF ? left : HALF, width);
	}
	return true;
}

// ubc_store_counts stores a block's counts of this side. A kernel of the other side may run at the same time.
UBC_FN void ubc_store_counts(const ubc_channel_params &p, ubc_u32 block, const ubc_quad &c) {
	ubc_u64 at = p.mine + UBC_CHANNEL_COUNTS + 16ull * block;
	if (p.side != UBC_SIDE_IN)
		ubc_put64(at, (ubc_u64)c.w[1] << 32 | c.w[0]);
	if (p.side != UBC_SIDE_OUT)
		ubc_put64(at + 8, (ubc_u64)c.w[3] << 32 | c.w[2]);
}

UBC_FN void ubc_do_channel(const ubc_channel_params &p) {
	ubc_quad c = ubc_load_packet(p.mine + UBC_CHANNEL_COUNTS + 16ull * UBC_BLOCK);
	// Another block may fail while this one starts.
	bool ok = ubc_sync_and(ubc_get32(p.mine + UBC_CHANNEL_FAILED) == 0), moved = false;
	UBC_ROLLED
	for (ubc_u32 i = 0; ok && i < p.steps; i++) {
		ubc_step s = ubc_step_at(p, i);
		bool wide = (s.what >> 32) == UBC_PACKET;
		switch ((ubc_u32)s.what) {
		case UBC_COPY:
			ubc_copy(s.dst, s.src, s.bytes);
			moved = true;
			break;
		case UBC_SIGNAL_STEP:
		case UBC_RELAXED_SIGNAL:
			ubc_signal(p, c.w[0]++, moved, (ubc_u32)s.what == UBC_RELAXED_SIGNAL);
			break;
		case UBC_WAIT:
			if (UBC_BLOCK == 0 || i < p.spread)
				ok = ubc_wait_signal(p, c.w[2]);
			c.w[2]++;
			break;
		case UBC_PUT_PACKETS:
			c.w[1]++;
			if (wide)
				ubc_put_packets<true>(s, ubc_packet_flag(p.salt_out, c.w[1]));
			else
				ubc_put_packets<false>(s, ubc_packet_flag(p.salt_out, c.w[1]));
			moved = true;
			break;
		case UBC_GET_PACKETS:
			c.w[3]++;
			if (wide)
				ok = ubc_get_packets<true>(p, s, ubc_packet_flag(p.salt_in, c.w[3]));
			else
				ok = ubc_get_packets<false>(p, s, ubc_packet_flag(p.salt_in, c.w[3]));
			ok = ubc_sync_and(ok);
			moved = true;
			break;
		}
	}
	if (!ok)
		return;
	// All threads have loaded the counts by now. Blocks that this kernel does not have get block 0's counts.
	if (UBC_THREAD == 0)
		ubc_store_counts(p, UBC_BLOCK, c);
	if (UBC_BLOCK == 0)
		for (ubc_u32 b = UBC_BLOCKS + UBC_THREAD; b < UBC_CHANNEL_BLOCKS; b += UBC_THREADS)
			ubc_store_counts(p, b, c);
}

#define UBC_CHANNEL_KERNELS UBC_KERNEL_OF(ubc_channel_params, ubc_channel, 2, ubc_do_channel)

#endif
