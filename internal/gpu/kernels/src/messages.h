// Messages between two ranks. A lane is the messages from one rank to another: both count them in their areas, so that
// a captured kernel can be replayed, and the k-th that is sent is the k-th that is received. Lanes know nothing of each
// other. A kernel has blocks for each of its lanes, which all run at the same time.
//
// A small message goes as packets into the receiver's box, beside a packet that says what it is, the head. There is room
// for two: the sender waits until the message before the last one has been taken. For a large one the receiver says
// where it wants it, before it knows that it comes, in two packets: the destination's word, 0 if the sender cannot write
// there, and what it is for. The sender writes it there and signals, or puts pieces into the ring of the receiver's box,
// each with a signal of its own, and waits for those that are in its way to be taken out. A receiver of a small message
// answers a large one's head in the same way. Both compare what is sent with what is wanted before any of it moves, the
// sender of a small message excepted.
//
// A message's number is its flag. What is used again by parity, or in the next message, is free: a sender's head comes
// after all its blocks have ended with the message before, and the receiver's answer likewise.
#ifndef UBC_MESSAGES_H
#define UBC_MESSAGES_H

#include "move.h"

// ubc_end is a block's part of a lane.
struct ubc_end {
	ubc_u64 mine, theirs;         // the two ranks' mail with each other
	ubc_u64 my_box, their_box;    // the peer's packets and pieces for this rank, and this one's for the peer
	ubc_u64 table;                // of the peer's extents
	ubc_u32 peer, block, blocks;  // this block's number in the lane
};

// 0 is what fresh memory holds.
UBC_FN ubc_u32 ubc_number(ubc_u64 seq) { return (ubc_u32)seq == 0 ? 1 : (ubc_u32)seq; }

// ubc_complain tells the host what is wrong with message seq of a lane. Errors that end all messages come first; of
// others that come while the host has not taken one it learns the number.
UBC_FN void ubc_complain(const ubc_mail_params &p, ubc_u32 code, ubc_u32 peer, ubc_u64 seq, ubc_u64 mine,
	ubc_u64 theirs, ubc_u64 detail) {
	bool ends = code != UBC_MISMATCH;
	ubc_u32 before = ubc_swap32(p.status + 40, ends ? 2 : 1);
	if (before == 0 || (ends && before == 1))
		ubc_tell(p.status, code, peer, (ubc_u32)seq, mine, theirs, detail);
	else if (!ends)
		ubc_add32(p.status + 44, 1);
	if (ends)
		ubc_release32(p.area + UBC_AREA_FAILED, 1);
}

// ubc_bide is ubc_patience for messages.
UBC_FN bool ubc_bide(const ubc_mail_params &p, const ubc_end &e, ubc_u64 seq, ubc_wait &w) {
	ubc_pause();
	if (++w.polls % UBC_POLLS != 0)
		return true;
	ubc_u32 code =
		ubc_get32(p.area + UBC_AREA_FAILED) != 0 ? (ubc_u32)UBC_ABORTED : ubc_endure(p.status, p.timeout, w);
	if (code == UBC_OK)
		return true;
	ubc_complain(p, code, e.peer, seq, 0, 0, 0);
	return false;
}

// ubc_await64 waits until the word at `at` is seq or, unless exactly that is wanted, more.
UBC_FN bool ubc_await64(
	const ubc_mail_params &p, const ubc_end &e, ubc_u64 seq, ubc_u64 at, ubc_u64 value, bool exactly) {
	ubc_wait w = {0, 0};
	for (;;) {
		ubc_u64 v = ubc_acquire64(at);
		if (v == value || (!exactly && v > value))
			return true;
		if (!ubc_bide(p, e, seq, w))
			return false;
	}
}

// ubc_begin has the blocks of a lane begin with a message when all have ended with the one before. The result is the
// same for the whole block.
UBC_FN bool ubc_begin(const ubc_mail_params &p, const ubc_end &e, ubc_u64 seq, ubc_u32 i, ubc_u64 turn, bool ok) {
	if (i > 0 && e.blocks > 1 && UBC_THREAD == 0 && ok)
		ok = ubc_await64(p, e, seq, e.mine + turn, seq, false);
	return i == 0 ? true : ubc_all(ok); // no barrier before the only message of most kernels
}

// ubc_ended is true for one thread of the lane's block that comes last to the end of a message: all that the blocks'
// threads have done before comes before what it does then.
UBC_FN bool ubc_ended(const ubc_end &e, ubc_u64 arrivals) {
	ubc_sync();
	if (UBC_THREAD != 0)
		return false;
	if (e.blocks == 1)
		return true;
	if (ubc_add32(e.mine + arrivals, 1) != e.blocks - 1)
		return false;
	ubc_put32(e.mine + arrivals, 0);
	return true;
}

// --- sending

// ubc_room waits until there is room for message seq.
UBC_FN bool ubc_room(const ubc_mail_params &p, const ubc_end &e, ubc_u64 seq, ubc_u64 taken) {
	return taken + 2 >= seq || ubc_await64(p, e, seq, e.mine + UBC_OUT_TAKEN, seq - 2, false);
}

// ubc_head is the head as the receiver sees it.
UBC_FN ubc_u64 ubc_head(ubc_u64 head) {
	return UBC_WAY(head) == UBC_BY_PACKETS ? head : UBC_WHAT(head) | (ubc_u64)UBC_BY_PUSH << 56;
}

UBC_FN void ubc_put_message(const ubc_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u64 to = e.their_box + (seq & 1) * (2 * UBC_EAGER_BYTES), at = 8ull * (e.block * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = 8ull * e.blocks * UBC_THREADS;
	ubc_u32 width = ubc_pairs(m.at, m.bytes), flag = ubc_number(seq);
	for (; at < m.bytes; at += step)
		ubc_store_packet(to + 2 * at, ubc_get8(m.at + at, m.bytes - at, width), flag);
}

// ubc_piece is the number of a piece, unlike those of all other messages.
UBC_FN ubc_u64 ubc_piece(ubc_u64 seq, ubc_u32 i) { return seq << 32 | (i + 1); }

// ubc_fill does this block's part of what goes straight to the destination, or of the pieces that go into the ring (0).
UBC_FN bool ubc_fill(const ubc_mail_params &p, const ubc_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 direct) {
	bool ring = direct == 0;
	ubc_u64 window = ring ? (ubc_u64)UBC_PIECE : m.bytes;
	ubc_u32 pieces = ring ? (ubc_u32)((m.bytes + UBC_PIECE - 1) / UBC_PIECE) : 1, step = ring ? e.blocks : 1;
	UBC_ROLLED
	for (ubc_u32 i = ring ? e.block : 0; i < pieces; i += step) {
		ubc_u32 part = i % UBC_PARTS;
		bool ok = true;
		if (ring && i >= UBC_PARTS && UBC_THREAD == 0)
			ok = ubc_await64(p, e, seq, e.mine + UBC_OUT_FREE + 8 * part, ubc_piece(seq, i - UBC_PARTS), true);
		if (!ubc_all(ok))
			return false;
		ubc_u64 from = i * window;
		ubc_share(ring ? e.their_box + 4 * UBC_EAGER_BYTES + (ubc_u64)part * UBC_RING_PART : direct, m.at + from,
			ubc_part(m.bytes, from, window), ring ? 0 : e.block, ring ? 1 : e.blocks);
		if (!ring)
			break;
		ubc_sync();
		if (UBC_THREAD == 0)
			ubc_release64(e.theirs + UBC_IN_FULL + 8 * part, ubc_piece(seq, i));
	}
	return true;
}

// ubc_push sends a large message. pushed says that the destination has it. The result is the same for the whole block.
UBC_FN bool ubc_push(const ubc_mail_params &p, const ubc_end &e, const ubc_message &m, ubc_u64 seq, bool &pushed) {
	UBC_SHARED(ubc_u64, wanted, 2, 3);
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_u64 from = e.mine + UBC_OUT_WANTED + (seq & 1) * (2 * UBC_PACKET);
		ubc_u32 flag = ubc_number(seq);
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad word = ubc_load_packet(from), what = ubc_load_packet(from + UBC_PACKET);
			if (ubc_is(word, flag) && ubc_is(what, flag)) {
				wanted[0] = ubc_word(word);
				wanted[1] = ubc_word(what);
				break;
			}
			if (!(ok = ubc_bide(p, e, seq, w)))
				break;
		}
	}
	if (!ubc_all(ok))
		return false;
	ubc_u64 word = wanted[0], what = wanted[1];
	bool speaks = e.block == 0 && UBC_THREAD == 0;
	if (UBC_WAY(m.head) == UBC_AWAIT) {
		if (word == m.word && what == ubc_head(m.head))
			return true;
		if (speaks)
			ubc_complain(p, UBC_ASTRAY, e.peer, seq, m.head, what, word);
		return false;
	}
	if (what != ubc_head(m.head)) {
		if (speaks)
			ubc_complain(p, UBC_MISMATCH, e.peer, seq, m.head, what, 0);
		return true;
	}
	ubc_u64 direct = 0;
	if ((word & UBC_DIRECT) != 0) {
		direct = word & ((1ull << 48) - 1);
		if (e.table != 0) {
			ubc_u32 extent = (ubc_u32)(word >> 48) & 0x7fff;
			ubc_u64 base = extent < UBC_MAX_EXTENTS ? ubc_get64(e.table + 8 * extent) : 0;
			if (!ubc_all(base != 0)) { // it might come at any moment, and not all blocks miss it
				if (UBC_THREAD == 0)
					ubc_complain(p, UBC_NO_EXTENT, e.peer, seq, m.head, what, word);
				return false;
			}
			direct += base;
		}
		pushed = true;
	}
	return ubc_fill(p, e, m, seq, direct);
}

UBC_FN void ubc_send(const ubc_mail_params &p, const ubc_lane &l, const ubc_end &e) {
	ubc_u64 seq = ubc_get64(e.mine + UBC_OUT_SENT), taken = ubc_get64(e.mine + UBC_OUT_TAKEN);
	bool ok = ubc_get32(p.area + UBC_AREA_FAILED) == 0;
	UBC_ROLLED
	for (ubc_u32 i = 0; i < l.messages; i++) {
		ubc_message m = p.message[l.first + i];
		ubc_u32 way = UBC_WAY(m.head);
		bool pushed = way == UBC_DONE;
		seq++;
		if (!ubc_begin(p, e, seq, i, UBC_OUT_TURN, ok))
			return;
		if (way != UBC_DONE) {
			ok = ok && ubc_room(p, e, seq, taken);
			if (ok && e.block == 0 && UBC_THREAD == UBC_THREADS - 1)
				ubc_store_packet(
					e.theirs + UBC_IN_HEAD + (seq & 1) * UBC_PACKET, ubc_halves(ubc_head(m.head)), ubc_number(seq));
		}
		if (ok && way == UBC_BY_PACKETS)
			ubc_put_message(e, m, seq);
		if (!ubc_all(ok)) {
			if (e.block == 0 && UBC_THREAD == 0) // unless somebody else of this kernel has said it
				ubc_complain(p, UBC_ABORTED, e.peer, seq, 0, 0, 0);
			return;
		}
		if ((way == UBC_BY_PUSH || way == UBC_AWAIT) && !ubc_push(p, e, m, seq, pushed))
			return;
		if (!ubc_ended(e, UBC_OUT_ARRIVALS))
			continue;
		if (pushed)
			ubc_release64(e.theirs + UBC_IN_PUSHED, seq);
		if (i + 1 < l.messages)
			ubc_release64(e.mine + UBC_OUT_TURN, seq + 1);
		else if (way != UBC_AWAIT)
			ubc_put64(e.mine + UBC_OUT_SENT, seq);
	}
}

// --- receiving

// ubc_want tells the sender where message seq is to go, and what is wanted.
UBC_FN void ubc_want(const ubc_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u64 to = e.theirs + UBC_OUT_WANTED + (seq & 1) * (2 * UBC_PACKET);
	ubc_u32 flag = ubc_number(seq);
	ubc_store_packet(to, ubc_halves(m.word), flag);
	ubc_store_packet(to + UBC_PACKET, ubc_halves(ubc_head(m.head)), flag);
}

// ubc_get_message takes this thread's packets of a small message, and its head, which others than the first thread may
// do without.
UBC_FN bool ubc_get_message(
	const ubc_mail_params &p, const ubc_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 &head) {
	ubc_u64 from = e.my_box + (seq & 1) * (2 * UBC_EAGER_BYTES), at = 8ull * (e.block * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = 8ull * e.blocks * UBC_THREADS, desk = e.mine + UBC_IN_HEAD + (seq & 1) * UBC_PACKET;
	ubc_u32 width = ubc_pairs(m.at, m.bytes), flag = ubc_number(seq);
	bool heard = false;
	ubc_wait w = {0, 0};
	if (at >= m.bytes && UBC_THREAD != 0)
		return true;
	for (;;) {
		ubc_quad h = {{0, 0, 0, 0}}, q = h;
		if (!heard)
			h = ubc_load_packet(desk);
		if (at < m.bytes)
			q = ubc_load_packet(from + 2 * at);
		if (!heard && ubc_is(h, flag)) {
			heard = true;
			head = ubc_word(h);
			if (head != m.head)
				return true;
		}
		if (heard && at >= m.bytes)
			return true;
		if (heard && ubc_is(q, flag)) {
			ubc_put8(m.at + at, {{q.w[0], q.w[2]}}, m.bytes - at, width);
			at += step;
			w = {0, 0};
			continue;
		}
		if (!ubc_bide(p, e, seq, w))
			return false;
	}
}

// ubc_drain takes this block's pieces out of the ring.
UBC_FN bool ubc_drain(const ubc_mail_params &p, const ubc_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u32 pieces = (ubc_u32)((m.bytes + UBC_PIECE - 1) / UBC_PIECE);
	UBC_ROLLED
	for (ubc_u32 i = e.block; i < pieces; i += e.blocks) {
		ubc_u32 part = i % UBC_PARTS;
		bool ok = true;
		if (UBC_THREAD == 0)
			ok = ubc_await64(p, e, seq, e.mine + UBC_IN_FULL + 8 * part, ubc_piece(seq, i), true);
		if (!ubc_all(ok))
			return false;
		ubc_u64 to = (ubc_u64)i * UBC_PIECE;
		ubc_share(m.at + to, e.my_box + 4 * UBC_EAGER_BYTES + (ubc_u64)part * UBC_RING_PART,
			ubc_part(m.bytes, to, UBC_PIECE), 0, 1);
		ubc_sync(); // what was read is in registers, or further: a fence would only wait for what was written
		if (UBC_THREAD == 0)
			ubc_put64(e.theirs + UBC_OUT_FREE + 8 * part, ubc_piece(seq, i));
	}
	return true;
}

// ubc_pull receives a large message. head is what the sender has said. The result is the same for the whole block.
UBC_FN bool ubc_pull(const ubc_mail_params &p, const ubc_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 &head) {
	UBC_SHARED(ubc_u64, said, 1, 4);
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_u64 desk = e.mine + UBC_IN_HEAD + (seq & 1) * UBC_PACKET;
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad h = ubc_load_packet(desk);
			if (ubc_is(h, ubc_number(seq))) {
				*said = ubc_word(h);
				break;
			}
			if (!(ok = ubc_bide(p, e, seq, w)))
				break;
		}
	}
	if (!ubc_all(ok))
		return false;
	head = *said;
	if (head != ubc_head(m.head))
		return true;
	if (m.word == 0)
		return ubc_drain(p, e, m, seq);
	if (e.block == 0 && UBC_THREAD == 0)
		ok = ubc_await64(p, e, seq, e.mine + UBC_IN_PUSHED, seq, false);
	return ubc_all(ok);
}

UBC_FN void ubc_recv(const ubc_mail_params &p, const ubc_lane &l, const ubc_end &e) {
	ubc_u64 seq = ubc_get64(e.mine + UBC_IN_TAKEN);
	bool ok = ubc_get32(p.area + UBC_AREA_FAILED) == 0, first = e.block == 0 && UBC_THREAD == 0;
	UBC_ROLLED
	for (ubc_u32 i = 0; i < l.messages; i++) {
		ubc_message m = p.message[l.first + i];
		ubc_u32 way = UBC_WAY(m.head);
		bool small = way == UBC_BY_PACKETS;
		ubc_u64 head = 0;
		seq++;
		if (!ubc_begin(p, e, seq, i, UBC_IN_TURN, ok))
			return;
		if (small)
			ok = ok && ubc_get_message(p, e, m, seq, head);
		else if (ok && first && way != UBC_DONE)
			ubc_want(e, m, seq);
		if (!ubc_all(ok)) {
			if (first)
				ubc_complain(p, UBC_ABORTED, e.peer, seq, 0, 0, 0);
			return;
		}
		if (way == UBC_AWAIT)
			return;
		if (!small && !ubc_pull(p, e, m, seq, head))
			return;
		if (head != ubc_head(m.head) && first) {
			if (small && UBC_WAY(head) != UBC_BY_PACKETS)
				ubc_want(e, m, seq); // the sender waits for that
			ubc_complain(p, UBC_MISMATCH, e.peer, seq, m.head, head, 1);
		}
		if (!ubc_ended(e, UBC_IN_ARRIVALS))
			continue;
		ubc_put64(e.theirs + UBC_OUT_TAKEN, seq); // all has been read, and nothing that was written is for the peer
		if (i + 1 < l.messages)
			ubc_release64(e.mine + UBC_IN_TURN, seq + 1);
		else
			ubc_put64(e.mine + UBC_IN_TAKEN, seq);
	}
}

UBC_FN void ubc_do_messages(const ubc_mail_params &p) {
	ubc_u32 i = 0;
	while (i + 1 < p.lanes && UBC_BLOCK >= p.lane[i + 1].block)
		i++;
	ubc_lane l = p.lane[i];
	ubc_end e = {p.area + UBC_AREA_MAIL + l.peer * (ubc_u64)UBC_MAIL_BYTES,
		l.area + UBC_AREA_MAIL + p.rank * (ubc_u64)UBC_MAIL_BYTES,
		p.area + p.boxes + l.peer * (ubc_u64)UBC_BOX_BYTES, l.area + p.boxes + p.rank * (ubc_u64)UBC_BOX_BYTES, l.table,
		l.peer, UBC_BLOCK - l.block, l.blocks};
	if (l.receives)
		ubc_recv(p, l, e);
	else
		ubc_send(p, l, e);
}

#define UBC_MESSAGES_KERNELS UBC_KERNEL_OF(ubc_mail_params, ubc_messages, 2, ubc_do_messages)

#endif
