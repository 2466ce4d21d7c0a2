// Messages between two ranks. A lane is the messages from one rank to another: both count them in their areas, so that
// a captured kernel can be replayed, and the k-th that is sent is the k-th that is received. Lanes know nothing of each
// other. A kernel has blocks for each of its lanes, which all run at the same time.
//
// A small message goes as packets into the receiver's box, beside a packet that says what it is, the head. There is room
// for two: the sender waits for the credit of the message before the last one. For a large one the receiver posts where
// it wants it, before it knows that it comes, in two packets: the destination's word, 0 if the sender cannot write
// there, and what it is for. The sender writes it there and signals, or puts pieces into the slots of a FIFO of the
// receiver's, the small one in its area or another that the word names, each with a signal of its own, and waits for the
// credit of those that are in its way. Which one is the receiver's choice for each message: all pieces of the one before
// have been taken when it posts. A receiver of a small message answers a large one's head in the same way. Both compare
// what is sent with what is posted before any of it moves, the sender of a small message excepted.
//
// A message's number is its flag. What is used again by parity, or in the next message, is free: a sender's head comes
// after all its blocks have ended with the message before, and the receiver's answer likewise.
#ifndef UBC_MESSAGES_H
#define UBC_MESSAGES_H

#include "move.h"

// ubc_lane_end is a block's part of a lane.
struct ubc_lane_end {
	ubc_u64 mine, theirs;         // the two ranks' mail with each other
	ubc_u64 my_box, their_box;    // the peer's packets for this rank, and this one's for the peer
	ubc_u64 table;                // of the peer's extents
	ubc_u64 fifo;                 // as in the lane, until a receiver names another one
	ubc_u32 slots, slot_bytes;    // of it
	ubc_u32 peer, block, blocks;  // this block's number in the lane
};

// 0 is what fresh memory holds.
UBC_FN ubc_u32 ubc_seq_flag(ubc_u64 seq) { return (ubc_u32)seq == 0 ? 1 : (ubc_u32)seq; }

// ubc_report tells the host what is wrong with message seq of a lane. Errors that end all messages come first; of
// others that come while the host has not taken one it learns the number.
UBC_FN void ubc_report(const ubc_mail_params &p, ubc_u32 code, ubc_u32 peer, ubc_u64 seq, ubc_u64 mine,
	ubc_u64 theirs, ubc_u64 detail) {
	bool ends = code != UBC_MISMATCH;
	ubc_u32 before = ubc_exchange32(p.status + 40, ends ? 2 : 1);
	if (before == 0 || (ends && before == 1))
		ubc_post_error(p.status, code, peer, (ubc_u32)seq, mine, theirs, detail);
	else if (!ends)
		ubc_fetch_add32(p.status + 44, 1);
	if (ends)
		ubc_release32(p.area + UBC_AREA_FAILED, 1);
}

// ubc_keep_polling for messages.
UBC_FN bool ubc_keep_polling(const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_wait &w) {
	ubc_pause();
	if (++w.polls % UBC_POLLS != 0)
		return true;
	ubc_u32 code =
		ubc_get32(p.area + UBC_AREA_FAILED) != 0 ? (ubc_u32)UBC_ABORTED : ubc_check_abort(p.status, p.timeout, w);
	if (code == UBC_OK)
		return true;
	ubc_report(p, code, e.peer, seq, 0, 0, 0);
	return false;
}

// ubc_wait64 waits until the word at `at` is value or, unless it must be exactly that, more.
UBC_FN bool ubc_wait64(
	const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_u64 at, ubc_u64 value, bool exactly) {
	ubc_wait w = {0, 0};
	for (;;) {
		ubc_u64 v = ubc_acquire64(at);
		if (v == value || (!exactly && v > value))
			return true;
		if (!ubc_keep_polling(p, e, seq, w))
			return false;
	}
}

// ubc_wait_turn has the blocks of a lane begin with a message when all have ended with the one before. The result is
// the same for the whole block.
UBC_FN bool ubc_wait_turn(
	const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_u32 i, ubc_u64 turn, bool ok) {
	if (i > 0 && e.blocks > 1 && UBC_THREAD == 0 && ok)
		ok = ubc_wait64(p, e, seq, e.mine + turn, seq, false);
	return i == 0 ? true : ubc_sync_and(ok); // no barrier before the only message of most kernels
}

// ubc_last_block is true for one thread of the lane's block that comes last to the end of a message: all that the
// blocks' threads have done before comes before what it does then.
UBC_FN bool ubc_last_block(const ubc_lane_end &e, ubc_u64 arrivals) {
	ubc_sync();
	if (UBC_THREAD != 0)
		return false;
	if (e.blocks == 1)
		return true;
	if (ubc_fetch_add32(e.mine + arrivals, 1) != e.blocks - 1)
		return false;
	ubc_put32(e.mine + arrivals, 0);
	return true;
}

// --- sending

// ubc_wait_credit waits until there is room for message seq. credit is what there was before.
UBC_FN bool ubc_wait_credit(const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_u64 credit) {
	return credit + 2 >= seq || ubc_wait64(p, e, seq, e.mine + UBC_OUT_CREDIT, seq - 2, false);
}

// ubc_wire_head is the head as the receiver sees it.
UBC_FN ubc_u64 ubc_wire_head(ubc_u64 head) {
	return UBC_WAY(head) == UBC_BY_PACKETS ? head : UBC_WHAT(head) | (ubc_u64)UBC_BY_PUSH << 56;
}

UBC_FN void ubc_send_small(const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u64 to = e.their_box + (seq & 1) * (2 * UBC_EAGER_BYTES), at = 8ull * (e.block * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = 8ull * e.blocks * UBC_THREADS;
	ubc_u32 width = ubc_pair_width(m.at, m.bytes), flag = ubc_seq_flag(seq);
	for (; at < m.bytes; at += step)
		ubc_store_packet(to + 2 * at, ubc_load_pair(m.at + at, m.bytes - at, width), flag);
}

// ubc_piece_seq is the number of a piece, unlike those of all other messages.
UBC_FN ubc_u64 ubc_piece_seq(ubc_u64 seq, ubc_u32 i) { return seq << 32 | (i + 1); }

// ubc_send_pieces does this block's part of what goes straight to the destination, or of the pieces that go into the
// FIFO (0).
UBC_FN bool ubc_send_pieces(
	const ubc_mail_params &p, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 direct) {
	bool fifo = direct == 0;
	ubc_u64 window = fifo ? e.slot_bytes : m.bytes;
	ubc_u32 pieces = fifo ? (ubc_u32)((m.bytes + window - 1) / window) : 1, step = fifo ? e.blocks : 1;
	UBC_ROLLED
	for (ubc_u32 i = fifo ? e.block : 0; i < pieces; i += step) {
		ubc_u32 slot = fifo ? i % e.slots : 0;
		bool ok = true;
		if (fifo && i >= e.slots && UBC_THREAD == 0)
			ok = ubc_wait64(p, e, seq, e.mine + UBC_OUT_FIFO_CREDIT + 8 * slot, ubc_piece_seq(seq, i - e.slots), true);
		if (!ubc_sync_and(ok))
			return false;
		ubc_u64 from = i * window;
		ubc_copy_share(fifo ? e.fifo + (ubc_u64)slot * e.slot_bytes : direct, m.at + from,
			ubc_clip(m.bytes, from, window), fifo ? 0 : e.block, fifo ? 1 : e.blocks);
		if (!fifo)
			break;
		ubc_sync();
		if (UBC_THREAD == 0)
			ubc_release64(e.theirs + UBC_IN_FIFO_FILLED + 8 * slot, ubc_piece_seq(seq, i));
	}
	return true;
}

// ubc_send_large sends a large message. pushed says that the destination has it. The result is the same for the whole
// block.
UBC_FN bool ubc_send_large(
	const ubc_mail_params &p, ubc_lane_end e, const ubc_message &m, ubc_u64 seq, bool &pushed) {
	UBC_SHARED(ubc_u64, posted, 2, 3);
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_u64 from = e.mine + UBC_OUT_POSTED + (seq & 1) * (2 * UBC_PACKET);
		ubc_u32 flag = ubc_seq_flag(seq);
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad word = ubc_load_packet(from), what = ubc_load_packet(from + UBC_PACKET);
			if (ubc_ready(word, flag) && ubc_ready(what, flag)) {
				posted[0] = ubc_packet_data(word);
				posted[1] = ubc_packet_data(what);
				break;
			}
			if (!(ok = ubc_keep_polling(p, e, seq, w)))
				break;
		}
	}
	if (!ubc_sync_and(ok))
		return false;
	ubc_u64 word = posted[0], what = posted[1];
	bool first = e.block == 0 && UBC_THREAD == 0;
	if (UBC_WAY(m.head) == UBC_AWAIT) {
		if (word == m.word && what == ubc_wire_head(m.head))
			return true;
		if (first)
			ubc_report(p, UBC_ASTRAY, e.peer, seq, m.head, what, word);
		return false;
	}
	if (what != ubc_wire_head(m.head)) {
		if (first)
			ubc_report(p, UBC_MISMATCH, e.peer, seq, m.head, what, 0);
		return true;
	}
	ubc_u64 direct = 0;
	if (word != 0) {
		direct = UBC_OFFSET(word);
		if (e.table != 0) {
			ubc_u32 extent = UBC_EXTENT(word);
			ubc_u64 base = extent < UBC_MAX_EXTENTS ? ubc_get64(e.table + 8 * extent) : 0;
			if (!ubc_sync_and(base != 0)) { // it might come at any moment, and not all blocks miss it
				if (UBC_THREAD == 0)
					ubc_report(p, UBC_NO_EXTENT, e.peer, seq, m.head, what, word);
				return false;
			}
			direct += base;
		}
		if ((word & UBC_THROUGH) != 0) {
			e.fifo = direct;
			e.slots = UBC_FIFO_DEPTH;
			e.slot_bytes = UBC_PIECE;
			direct = 0;
		} else {
			pushed = true;
		}
	}
	return ubc_send_pieces(p, e, m, seq, direct);
}

UBC_FN void ubc_send_lane(const ubc_mail_params &p, const ubc_lane &l, const ubc_lane_end &e) {
	ubc_u64 seq = ubc_get64(e.mine + UBC_OUT_SENT), credit = ubc_get64(e.mine + UBC_OUT_CREDIT);
	bool ok = ubc_get32(p.area + UBC_AREA_FAILED) == 0;
	UBC_ROLLED
	for (ubc_u32 i = 0; i < l.messages; i++) {
		ubc_message m = p.message[l.first + i];
		ubc_u32 way = UBC_WAY(m.head);
		bool pushed = way == UBC_DONE;
		seq++;
		if (!ubc_wait_turn(p, e, seq, i, UBC_OUT_TURN, ok))
			return;
		if (way != UBC_DONE) {
			ok = ok && ubc_wait_credit(p, e, seq, credit);
			if (ok && e.block == 0 && UBC_THREAD == UBC_THREADS - 1)
				ubc_store_packet(e.theirs + UBC_IN_HEAD + (seq & 1) * UBC_PACKET,
					ubc_split(ubc_wire_head(m.head)), ubc_seq_flag(seq));
		}
		if (ok && way == UBC_BY_PACKETS)
			ubc_send_small(e, m, seq);
		if (!ubc_sync_and(ok)) {
			if (e.block == 0 && UBC_THREAD == 0) // unless somebody else of this kernel has said it
				ubc_report(p, UBC_ABORTED, e.peer, seq, 0, 0, 0);
			return;
		}
		if ((way == UBC_BY_PUSH || way == UBC_AWAIT) && !ubc_send_large(p, e, m, seq, pushed))
			return;
		if (!ubc_last_block(e, UBC_OUT_ARRIVALS))
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

// ubc_post_recv tells the sender where message seq is to go, and what is wanted.
UBC_FN void ubc_post_recv(const ubc_lane &l, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u64 to = e.theirs + UBC_OUT_POSTED + (seq & 1) * (2 * UBC_PACKET);
	ubc_u32 flag = ubc_seq_flag(seq);
	ubc_store_packet(to, ubc_split(m.word != 0 ? m.word : l.fifo_word), flag);
	ubc_store_packet(to + UBC_PACKET, ubc_split(ubc_wire_head(m.head)), flag);
}

// ubc_recv_small takes this thread's packets of a small message, and its head, which others than the first thread may
// do without.
UBC_FN bool ubc_recv_small(
	const ubc_mail_params &p, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 &head) {
	ubc_u64 from = e.my_box + (seq & 1) * (2 * UBC_EAGER_BYTES), at = 8ull * (e.block * UBC_THREADS + UBC_THREAD);
	ubc_u64 step = 8ull * e.blocks * UBC_THREADS, slot = e.mine + UBC_IN_HEAD + (seq & 1) * UBC_PACKET;
	ubc_u32 width = ubc_pair_width(m.at, m.bytes), flag = ubc_seq_flag(seq);
	bool told = false;
	ubc_wait w = {0, 0};
	if (at >= m.bytes && UBC_THREAD != 0)
		return true;
	for (;;) {
		ubc_quad h = {{0, 0, 0, 0}}, q = h;
		if (!told)
			h = ubc_load_packet(slot);
		if (at < m.bytes)
			q = ubc_load_packet(from + 2 * at);
		if (!told && ubc_ready(h, flag)) {
			told = true;
			head = ubc_packet_data(h);
			if (head != m.head)
				return true;
		}
		if (told && at >= m.bytes)
			return true;
		if (told && ubc_ready(q, flag)) {
			ubc_store_pair(m.at + at, {{q.w[0], q.w[2]}}, m.bytes - at, width);
			at += step;
			w = {0, 0};
			continue;
		}
		if (!ubc_keep_polling(p, e, seq, w))
			return false;
	}
}

// ubc_recv_pieces takes this block's pieces out of the FIFO.
UBC_FN bool ubc_recv_pieces(const ubc_mail_params &p, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u32 pieces = (ubc_u32)((m.bytes + e.slot_bytes - 1) / e.slot_bytes);
	UBC_ROLLED
	for (ubc_u32 i = e.block; i < pieces; i += e.blocks) {
		ubc_u32 slot = i % e.slots;
		bool ok = true;
		if (UBC_THREAD == 0)
			ok = ubc_wait64(p, e, seq, e.mine + UBC_IN_FIFO_FILLED + 8 * slot, ubc_piece_seq(seq, i), true);
		if (!ubc_sync_and(ok))
			return false;
		ubc_u64 to = (ubc_u64)i * e.slot_bytes;
		ubc_copy_share(m.at + to, e.fifo + (ubc_u64)slot * e.slot_bytes, ubc_clip(m.bytes, to, e.slot_bytes), 0, 1);
		ubc_sync(); // what was read is in registers, or further: a fence would only wait for what was written
		if (UBC_THREAD == 0)
			ubc_put64(e.theirs + UBC_OUT_FIFO_CREDIT + 8 * slot, ubc_piece_seq(seq, i));
	}
	return true;
}

// ubc_recv_large receives a large message. head is what the sender has said. The result is the same for the whole
// block.
UBC_FN bool ubc_recv_large(
	const ubc_mail_params &p, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq, ubc_u64 &head) {
	UBC_SHARED(ubc_u64, said, 1, 4);
	bool ok = true;
	if (UBC_THREAD == 0) {
		ubc_u64 slot = e.mine + UBC_IN_HEAD + (seq & 1) * UBC_PACKET;
		ubc_wait w = {0, 0};
		for (;;) {
			ubc_quad h = ubc_load_packet(slot);
			if (ubc_ready(h, ubc_seq_flag(seq))) {
				*said = ubc_packet_data(h);
				break;
			}
			if (!(ok = ubc_keep_polling(p, e, seq, w)))
				break;
		}
	}
	if (!ubc_sync_and(ok))
		return false;
	head = *said;
	if (head != ubc_wire_head(m.head))
		return true;
	if (m.word == 0)
		return ubc_recv_pieces(p, e, m, seq);
	if (e.block == 0 && UBC_THREAD == 0)
		ok = ubc_wait64(p, e, seq, e.mine + UBC_IN_PUSHED, seq, false);
	return ubc_sync_and(ok);
}

UBC_FN void ubc_recv_lane(const ubc_mail_params &p, const ubc_lane &l, const ubc_lane_end &e) {
	ubc_u64 seq = ubc_get64(e.mine + UBC_IN_RECEIVED);
	bool ok = ubc_get32(p.area + UBC_AREA_FAILED) == 0, first = e.block == 0 && UBC_THREAD == 0;
	UBC_ROLLED
	for (ubc_u32 i = 0; i < l.messages; i++) {
		ubc_message m = p.message[l.first + i];
		ubc_u32 way = UBC_WAY(m.head);
		bool small = way == UBC_BY_PACKETS;
		ubc_u64 head = 0;
		seq++;
		if (!ubc_wait_turn(p, e, seq, i, UBC_IN_TURN, ok))
			return;
		if (small)
			ok = ok && ubc_recv_small(p, e, m, seq, head);
		else if (ok && first && way != UBC_DONE)
			ubc_post_recv(l, e, m, seq);
		if (!ubc_sync_and(ok)) {
			if (first)
				ubc_report(p, UBC_ABORTED, e.peer, seq, 0, 0, 0);
			return;
		}
		if (way == UBC_AWAIT)
			return;
		if (!small && !ubc_recv_large(p, e, m, seq, head))
			return;
		if (head != ubc_wire_head(m.head) && first) {
			if (small && UBC_WAY(head) != UBC_BY_PACKETS)
				ubc_post_recv(l, e, m, seq); // the sender waits for that
			ubc_report(p, UBC_MISMATCH, e.peer, seq, m.head, head, 1);
		}
		if (!ubc_last_block(e, UBC_IN_ARRIVALS))
			continue;
		ubc_put64(e.theirs + UBC_OUT_CREDIT, seq); // all has been read, and nothing that was written is for the peer
		if (i + 1 < l.messages)
			ubc_release64(e.mine + UBC_IN_TURN, seq + 1);
		else
			ubc_put64(e.mine + UBC_IN_RECEIVED, seq);
	}
}

UBC_FN void ubc_do_messages(const ubc_mail_params &p) {
	ubc_u32 i = 0;
	while (i + 1 < p.lanes && UBC_BLOCK >= p.lane[i + 1].block)
		i++;
	ubc_lane l = p.lane[i];
	ubc_lane_end e = {p.area + UBC_AREA_MAIL + l.peer * (ubc_u64)UBC_MAIL_BYTES,
		l.area + UBC_AREA_MAIL + p.rank * (ubc_u64)UBC_MAIL_BYTES,
		p.area + p.boxes + l.peer * (ubc_u64)UBC_BOX_BYTES, l.area + p.boxes + p.rank * (ubc_u64)UBC_BOX_BYTES, l.table,
		l.fifo, p.slots, p.slot_bytes, l.peer, UBC_BLOCK - l.block, l.blocks};
	if (l.fifo_word != 0) {
		e.slots = UBC_FIFO_DEPTH;
		e.slot_bytes = UBC_PIECE;
	}
	if (l.receives)
		ubc_recv_lane(p, l, e);
	else
		ubc_send_lane(p, l, e);
}

#define UBC_MESSAGES_KERNELS UBC_KERNEL_OF(ubc_mail_params, UBC_NAMED(messages), 2, ubc_do_messages)

#endif
