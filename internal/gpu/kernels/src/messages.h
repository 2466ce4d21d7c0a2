// Messages between two ranks. A lane is the messages from one rank to another. Both ranks count them in their areas, so
// that a captured kernel can be replayed, and the k-th message sent is the k-th message received. Lanes are
// independent. A kernel has blocks for each of its lanes, and all lanes run at the same time.
//
// A small message goes as packets to the receiver's box, together with one packet that describes it, the head. The box
// has room for two messages: before message k the sender waits for the credit of message k-2. For a large message the
// receiver posts two packets before it knows that the message comes: the destination's word, which is 0 if the sender
// cannot write there, and a description of the message that it expects. The sender then writes to the destination and
// signals. Or it puts pieces into the slots of a FIFO of the receiver, each with its own signal, and waits for a slot's
// credit before it reuses the slot. The receiver chooses the FIFO for each message: the small one in its area, or
// another one that the word names. It may, because it has taken all pieces of the message before when it posts. A
// receiver that expects a small message posts in the same way if a large one's head arrives. Sender and receiver each
// compare the two descriptions before any data moves, except the sender of a small message.
//
// A message's number is its flag. A sender sends the head only after all its blocks have finished the message before,
// and a receiver answers only then, too. So whatever they reuse, by parity or in the next message, is free.
#ifndef UBC_MESSAGES_H
#define UBC_MESSAGES_H

#include "move.h"

// ubc_lane_end is what a block knows of its lane.
struct ubc_lane_end {
	ubc_u64 mine, theirs;         // the two ranks' mail with each other, in their areas
	ubc_u64 my_box, their_box;    // packets from the peer to this rank, and from this rank to the peer
	ubc_u64 table;                // of the peer's extents
	ubc_u64 fifo;                 // as in ubc_lane, unless a receiver names another one
	ubc_u32 slots, slot_bytes;    // of the FIFO
	ubc_u32 peer, block, blocks;  // block: this block's number in the lane
};

// ubc_seq_flag returns a message's flag. It is never 0: fresh memory holds that.
UBC_FN ubc_u32 ubc_seq_flag(ubc_u64 seq) { return (ubc_u32)seq == 0 ? 1 : (ubc_u32)seq; }

// ubc_report tells the host what is wrong with message seq of a lane. An error that ends all messages takes precedence.
// If the host has not yet taken another error, any other error is only counted.
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

// ubc_wait64 waits until the word at `at` is value or, unless exactly is set, greater.
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

// ubc_wait_turn holds the blocks of a lane back until all of them have finished the message before. The result is the
// same for the whole block.
UBC_FN bool ubc_wait_turn(
	const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_u32 i, ubc_u64 turn, bool ok) {
	if (i > 0 && e.blocks > 1 && UBC_THREAD == 0 && ok)
		ok = ubc_wait64(p, e, seq, e.mine + turn, seq, false);
	return i == 0 ? true : ubc_sync_and(ok); // most kernels have one message: no barrier for the first one
}

// ubc_last_block returns true for one thread of the block that is the last of the lane's to finish a message. What this
// thread does then is ordered after all that the threads of these blocks did before.
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

// ubc_wait_credit waits until there is room for message seq. credit is the count as loaded earlier.
UBC_FN bool ubc_wait_credit(const ubc_mail_params &p, const ubc_lane_end &e, ubc_u64 seq, ubc_u64 credit) {
	return credit + 2 >= seq || ubc_wait64(p, e, seq, e.mine + UBC_OUT_CREDIT, seq - 2, false);
}

// ubc_wire_head returns the head as the receiver sees it.
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

// ubc_piece_seq returns the number of a piece, which no piece of another message has.
UBC_FN ubc_u64 ubc_piece_seq(ubc_u64 seq, ubc_u32 i) { return seq << 32 | (i + 1); }

// ubc_send_pieces does this block's part of a message: of a copy to the destination, direct, or if that is 0, of the
// pieces that go through the FIFO.
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

// ubc_send_large sends a large message. It sets pushed if it wrote to the destination itself. The result is the same
// for the whole block.
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
			ubc_report(p, UBC_WRONG_PLACE, e.peer, seq, m.head, what, word);
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
			if (!ubc_sync_and(base != 0)) { // an entry may appear at any moment, so that blocks, and threads, may
			                                // differ
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
			if (e.block == 0 && UBC_THREAD == 0) // unless a block of this kernel has reported an error already
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

// ubc_post_recv tells the sender where message seq should go, and which message is expected.
UBC_FN void ubc_post_recv(const ubc_lane &l, const ubc_lane_end &e, const ubc_message &m, ubc_u64 seq) {
	ubc_u64 to = e.theirs + UBC_OUT_POSTED + (seq & 1) * (2 * UBC_PACKET);
	ubc_u32 flag = ubc_seq_flag(seq);
	ubc_store_packet(to, ubc_split(m.word != 0 ? m.word : l.fifo_word), flag);
	ubc_store_packet(to + UBC_PACKET, ubc_split(ubc_wire_head(m.head)), flag);
}

// ubc_recv_small takes this thread's packets of a small message, and its head. Threads without packets skip the head,
// except the first one.
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
		ubc_sync(); // all loads have completed; a fence would only wait for stores
		if (UBC_THREAD == 0)
			ubc_put64(e.theirs + UBC_OUT_FIFO_CREDIT + 8 * slot, ubc_piece_seq(seq, i));
	}
	return true;
}

// ubc_recv_large receives a large message. It sets head to the sender's. The result is the same for the whole block.
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
				ubc_post_recv(l, e, m, seq); // the sender waits for an answer
			ubc_report(p, UBC_MISMATCH, e.peer, seq, m.head, head, 1);
		}
		if (!ubc_last_block(e, UBC_IN_ARRIVALS))
			continue;
		ubc_put64(e.theirs + UBC_OUT_CREDIT, seq); // no fence: all loads have completed, and no stores were for the
		                                           // peer
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
