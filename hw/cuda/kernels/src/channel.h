// Channels: steps between two ranks, done in order by one kernel of this rank. Kernels of the two ranks meet through
// their ends, in the areas, alone: signals are counted there, so that a captured kernel can be replayed.
//
// No block waits for another one of its kernel. Each block waits for the peer itself, copies its share, and a signal is
// sent by the last block to come to it.
#ifndef UBC_CHANNEL_H
#define UBC_CHANNEL_H

#include "move.h"

// ubc_step_at is step i. As in ubc_at, an index that is not known would put the parameters on the stack.
UBC_FN ubc_step ubc_step_at(const ubc_channel_params &p, ubc_u32 i) {
	ubc_step s = p.step[0];
	UBC_UNROLL
	for (ubc_u32 k = 1; k < UBC_MAX_STEPS; k++) {
		ubc_step x = p.step[k];
		UBC_OPAQUE(x.what);
		UBC_OPAQUE(x.dst);
		UBC_OPAQUE(x.src);
		UBC_OPAQUE(x.bytes);
		s.what = i == k ? x.what : s.what;
		s.dst = i == k ? x.dst : s.dst;
		s.src = i == k ? x.src : s.src;
		s.bytes = i == k ? x.bytes : s.bytes;
	}
	return s;
}

// ubc_hope is ubc_patience for channels.
UBC_FN bool ubc_hope(const ubc_channel_params &p, ubc_wait &w) {
	ubc_pause();
	if (++w.polls % UBC_POLLS != 0)
		return true;
	if (ubc_get32(p.mine + UBC_CHANNEL_FAILED) != 0)
		return false;
	ubc_u32 code = ubc_endure(p.status, p.timeout, w);
	if (code == UBC_OK)
		return true;
	if (ubc_swap32(p.mine + UBC_CHANNEL_FAILED, 1) == 0)
		ubc_tell(p.status, code, p.peer, 0, 0, 0, 0);
	return false;
}

// ubc_last is true for one thread of the block that comes last to a step: all that the blocks' threads have done before
// comes before what it does then.
UBC_FN bool ubc_last(const ubc_channel_params &p, ubc_u32 step) {
	ubc_sync();
	if (UBC_THREAD != 0)
		return false;
	if (UBC_BLOCKS == 1)
		return true;
	ubc_u64 at = p.mine + UBC_CHANNEL_ARRIVALS + 4 * (p.side * (UBC_MAX_STEPS + 1) + step);
	if (ubc_add32(at, 1) != UBC_BLOCKS - 1)
		return false;
	ubc_put32(at, 0);
	return true;
}

// ubc_taken waits until the peer has sent so many signals. The result is the same for the whole block.
UBC_FN bool ubc_taken(const ubc_channel_params &p, ubc_u64 signals) {
	bool ok = true;
	ubc_wait w = {0, 0};
	while (UBC_THREAD == 0 && ok && (long long)(ubc_acquire64(p.mine + UBC_CHANNEL_IN) - signals) < 0)
		ok = ubc_hope(p, w);
	return ubc_all(ok);
}

// The flag of the k-th step's packets; 0 is what fresh memory holds.
UBC_FN ubc_u32 ubc_packet_flag(ubc_u32 salt, ubc_u32 k) { return salt + k == 0 ? 1 : salt + k; }

// ubc_words is by what width the data of packets is read or written, as for ubc_pairs; 4 bytes at a time unless wide.
UBC_FN ubc_u32 ubc_words(ubc_u64 x, ubc_u64 bytes, bool wide) {
	return wide ? ubc_pairs(x, bytes) : ((x | bytes) & 3) == 0 ? 4 : 1;
}

// Packets of 16 bytes carry 8, as everywhere; those of 8 bytes are a word of data and one of the flag.
UBC_FN void ubc_put_packets(const ubc_step &s, ubc_u32 flag, bool wide) {
	ubc_u64 half = wide ? 8 : 4, at = half * (UBC_BLOCK * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = half * UBC_BLOCKS * UBC_THREADS;
	ubc_u32 width = ubc_words(s.src, s.bytes, wide);
	for (; at < s.bytes; at += step) {
		ubc_u64 left = s.bytes - at;
		if (wide)
			ubc_store_packet(s.dst + 2 * at, ubc_get8(s.src + at, left, width), flag);
		else
			ubc_put64(s.dst + 2 * at,
				(ubc_u64)flag << 32 | ubc_get8(s.src + at, left < 4 ? left : 4, width).w[0]);
	}
}

// Several packets of a thread are awaited at once.
template <bool WIDE> UBC_FN bool ubc_get_packets(const ubc_channel_params &p, const ubc_step &s, ubc_u32 flag) {
	enum { U = 2 };
	ubc_u64 half = WIDE ? 8 : 4, at = half * (UBC_BLOCK * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = half * UBC_BLOCKS * UBC_THREADS;
	ubc_u32 width = ubc_words(s.dst, s.bytes, WIDE);
	for (; at < s.bytes; at += U * step) {
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad q[U];
			bool all = true;
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < s.bytes) {
					ubc_u64 from = s.src + 2 * (at + u * step);
					if (WIDE) {
						q[u] = ubc_load_packet(from);
					} else {
						ubc_u64 v = ubc_get64(from);
						q[u] = {{(ubc_u32)v, (ubc_u32)(v >> 32), 0, flag}};
					}
				}
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < s.bytes)
					all = all && ubc_is(q[u], flag);
			if (!all) {
				if (!ubc_hope(p, w))
					return false;
				continue;
			}
			UBC_UNROLL
			for (int u = 0; u < U; u++)
				if (at + u * step < s.bytes) {
					ubc_u64 left = s.bytes - at - u * step;
					ubc_pair v = {{q[u].w[0], q[u].w[2]}};
					ubc_put8(s.dst + at + u * step, v, WIDE || left < 4 ? left : 4, width);
				}
			break;
		}
	}
	return true;
}

UBC_FN void ubc_do_channel(const ubc_channel_params &p) {
	ubc_u64 sent = ubc_get64(p.mine + UBC_CHANNEL_SENT), taken = ubc_get64(p.mine + UBC_CHANNEL_TAKEN);
	ubc_u32 out = ubc_get32(p.mine + UBC_CHANNEL_OUT), got = ubc_get32(p.mine + UBC_CHANNEL_GOT);
	// Another block may fail while this one begins.
	bool ok = ubc_all(ubc_get32(p.mine + UBC_CHANNEL_FAILED) == 0), moved = false;
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
			sent++;
			if (moved) {
				if (ubc_last(p, i))
					ubc_release64(p.theirs + UBC_CHANNEL_IN, sent);
			} else if (UBC_BLOCK == 0 && UBC_THREAD == 0) { // nothing of this kernel comes before it
				if ((ubc_u32)s.what == UBC_SIGNAL_STEP)
					ubc_release64(p.theirs + UBC_CHANNEL_IN, sent);
				else
					ubc_put64(p.theirs + UBC_CHANNEL_IN, sent);
			}
			break;
		case UBC_WAIT:
			taken++;
			if (UBC_BLOCK == 0 || i < p.spread)
				ok = ubc_taken(p, taken);
			break;
		case UBC_PUT_PACKETS:
			ubc_put_packets(s, ubc_packet_flag(p.salt_out, ++out), wide);
			moved = true;
			break;
		case UBC_GET_PACKETS:
			++got;
			if (wide)
				ok = ubc_get_packets<true>(p, s, ubc_packet_flag(p.salt_in, got));
			else
				ok = ubc_get_packets<false>(p, s, ubc_packet_flag(p.salt_in, got));
			ok = ubc_all(ok);
			moved = true;
			break;
		}
	}
	if (!ok || !ubc_last(p, UBC_MAX_STEPS))
		return;
	// A side that runs at the same time has the others.
	if (p.side != UBC_SIDE_IN) {
		ubc_put64(p.mine + UBC_CHANNEL_SENT, sent);
		ubc_put32(p.mine + UBC_CHANNEL_OUT, out);
	}
	if (p.side != UBC_SIDE_OUT) {
		ubc_put64(p.mine + UBC_CHANNEL_TAKEN, taken);
		ubc_put32(p.mine + UBC_CHANNEL_GOT, got);
	}
}

#define UBC_CHANNEL_KERNELS UBC_KERNEL_OF(ubc_channel_params, ubc_channel, ubc_do_channel)

#endif
