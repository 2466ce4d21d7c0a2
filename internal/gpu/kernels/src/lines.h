// Lines: data of medium size travels together with its flags, so that no separate signal is needed.
//
// A line is 128 bytes, 120 of data and 8 of a flag. Eight neighbouring threads of a warp store it at once, and eight
// threads load it at once. Links that give GPUs native access to each other's memory carry such a store as a whole, as
// NCCL's protocol LL128 assumes, too: a line that has the flag is complete. Packets spend half of the link on flags,
// but their threads never wait for each other.
//
// Lines go to rows in the receiver's area, one for each sender and parity of the epoch. Nothing else is ever written to
// rows, so data cannot be mistaken for a flag. A row has room for a number of turns. Longer operations reuse it: a
// sender waits until the receivers have said that the place of a turn is free.
#ifndef UBC_LINES_H
#define UBC_LINES_H

#include "sync.h"
#include "types.h"
#include "unaligned.h"

enum { UBC_LANES = 8 }; // threads of a line

// A tile is what a block's threads move at once: 16 bytes each, but only 8 for the last thread of each line. The data
// of these last threads is behind the data of all others, so that neighbours load and store neighbouring addresses. A
// block has a multiple of 32 threads. Tiles go to the blocks in turn: turn k is the k-th tile of each block.
struct ubc_tiles {
	ubc_u32 begin; // offset of this thread's part in a tile
	ubc_u32 part;  // bytes of this part
	ubc_u32 bytes; // bytes of a tile: 15 per thread
	ubc_u32 line;  // bytes of a tile as lines: 16 per thread

	UBC_FN ubc_tiles of() {
		ubc_tiles t;
		ubc_u32 line = UBC_THREAD / UBC_LANES, lane = UBC_THREAD % UBC_LANES;
		bool last = lane == UBC_LANES - 1;
		t.part = last ? 8 : 16;
		t.bytes = 15 * UBC_THREADS;
		t.begin = last ? 14 * UBC_THREADS + 8 * line : 112 * line + 16 * lane;
		t.line = 16 * UBC_THREADS;
		return t;
	}
};

// ubc_tile returns where this block's tile of turn k begins, and ubc_turn_begin where the first block's does.
UBC_FN ubc_u64 ubc_turn_begin(const ubc_tiles &t, ubc_u32 k) { return (ubc_u64)(k * UBC_BLOCKS) * t.bytes; }
UBC_FN ubc_u64 ubc_tile(const ubc_tiles &t, ubc_u32 k) { return ubc_turn_begin(t, k) + UBC_BLOCK * t.bytes; }

// ubc_word is an unsigned integer of BYTES bytes.
template <int BYTES> struct ubc_word;
template <> struct ubc_word<1> { typedef unsigned char T; };
template <> struct ubc_word<2> { typedef unsigned short T; };
template <> struct ubc_word<4> { typedef ubc_u32 T; };
template <> struct ubc_word<8> { typedef ubc_u64 T; };

// ubc_load_part loads this thread's part of the tile at offset `tile` of the `bytes` at a; past their end it is short
// or empty. aligned: a is a multiple of 16; else it is only aligned for T.
template <class T> UBC_FN ubc_quad ubc_load_part(const ubc_tiles &t, ubc_u64 a, ubc_u64 tile, ubc_u64 bytes, bool aligned) {
	typedef typename ubc_word<sizeof(T)>::T W;
	ubc_u64 at = tile + t.begin, x = 0, y = 0;
	a += at;
	if (at + t.part <= bytes) {
		if (!aligned)
			return ubc_load_unaligned(a);
		if (t.part == 16)
			return ubc_load16(a);
		ubc_pair v = ubc_load8(a);
		return {{v.w[0], v.w[1], 0, 0}};
	}
	UBC_ROLLED
	for (ubc_u32 i = 0; at + i < bytes; i += sizeof(T)) {
		ubc_u64 e = *(const volatile W *)(a + i);
		(i < 8 ? x : y) |= e << 8 * (i & 7);
	}
	return {{(ubc_u32)x, (ubc_u32)(x >> 32), (ubc_u32)y, (ubc_u32)(y >> 32)}};
}

template <class T>
UBC_FN void ubc_store_part(const ubc_tiles &t, ubc_u64 a, const ubc_quad &v, ubc_u64 tile, ubc_u64 bytes, bool aligned) {
	typedef typename ubc_word<sizeof(T)>::T W;
	ubc_u64 at = tile + t.begin;
	a += at;
	if (aligned && at + t.part <= bytes) {
		if (t.part == 16)
			ubc_store16(a, v);
		else
			ubc_store8(a, {{v.w[0], v.w[1]}});
		return;
	}
	ubc_u64 x = (ubc_u64)v.w[1] << 32 | v.w[0], y = (ubc_u64)v.w[3] << 32 | v.w[2];
	UBC_ROLLED
	for (ubc_u32 i = 0; i < t.part && at + i < bytes; i += sizeof(T))
		*(volatile W *)(a + i) = (W)((i < 8 ? x : y) >> 8 * (i & 7));
}

// There are rows for two stages, scatter and gather, each for both parities. ubc_rows returns the offset in an area of
// the first stage's rows, for this thread. ubc_row returns the offset from there of the row for what rank `from` sends
// to rank `to`.
UBC_FN ubc_u64 ubc_rows(const ubc_params &p, ubc_u32 e) {
	return p.lines + (ubc_u64)((e & 1) * (p.ranks - 1)) * p.line_row + 16 * UBC_THREAD;
}

UBC_FN ubc_u64 ubc_row(const ubc_params &p, ubc_u32 from, ubc_u32 to) {
	return (ubc_u64)ubc_slot_index(p, from, to) * p.line_row;
}

// ubc_place returns the offset of this block's tile in place n of a row, n < p.turns; ubc_next returns the next place.
UBC_FN ubc_u32 ubc_place(const ubc_tiles &t, ubc_u32 n) { return (n * UBC_BLOCKS + UBC_BLOCK) * t.line; }
UBC_FN ubc_u32 ubc_next(const ubc_params &p, ubc_u32 n) { return n + 1 < p.turns ? n + 1 : 0; }

// ubc_lag returns how many turns a rank sends before it takes the first one: all, if a row has room for them, so that
// sending does not wait for arrivals.
UBC_FN ubc_u32 ubc_lag(const ubc_params &p) { return p.steps <= p.turns ? p.steps : 1; }

// ubc_wait_lines waits for this thread's part of a line of turn k, at offset `at` in the row of each rank below R whose
// bit is in wanted; if R is 1, of peer alone. All threads of a warp call it together, and return the same result.
template <int R>
UBC_FN bool ubc_wait_lines(
	const ubc_params &p, ubc_u32 e, ubc_u32 k, ubc_u32 wanted, ubc_u64 at, ubc_quad *v, ubc_u32 peer) {
	ubc_wait w = {0, 0};
	for (;;) {
		bool ready = true, together = true;
		UBC_UNROLL
		for (int r = 0; r < R; r++) {
			ubc_u32 from = R == 1 ? peer : r;
			if (wanted >> r & 1 && !ubc_load_line(at + ubc_row(p, from, p.rank), v[r], e, k, together)) {
				ready = false;
				peer = from;
			}
		}
		if (ubc_warp_and(ready)) {
			if (!ubc_warp_and(together)) { // the lines are complete now, so load them again
				UBC_UNROLL
				for (int r = 0; r < R; r++)
					if (wanted >> r & 1)
						v[r] = ubc_load_packet(at + ubc_row(p, R == 1 ? peer : r, p.rank));
			}
			return true;
		}
		if (!ubc_warp_and(ready || ubc_keep_polling(p, e, peer, w, false)))
			return false;
	}
}

// ubc_free_turns combines ok of all threads of the block, and returns it. If all are ok, it tells the peers how many
// turns this block has taken; they wait for this as for a signal. The loads have completed, so the peers may write
// there without a fence.
UBC_FN bool ubc_free_turns(const ubc_params &p, ubc_u32 e, ubc_u32 taken, bool ok) {
	ok = ubc_sync_and(ok);
	for (ubc_u32 d = UBC_THREAD; ok && d < p.ranks; d += UBC_THREADS)
		if (d != 0)
			ubc_put64(ubc_flag(ubc_area(p, d), p.rank), (ubc_u64)e << 32 | taken);
	return ok;
}

#endif
