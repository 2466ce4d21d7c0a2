package hosts

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// exchange gathers all hosts' blocks on all leaders by Bruck's algorithm (Bruck, Ho, Kipnis, Upfal and Weathersby,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997). In round k a host
// has its own block and those of the next 2^k - 1 hosts. It sends them to the host 2^k before it, and receives as many
// from the host 2^k behind it. So there are ceil(log2 hosts) rounds with one message each.
//
// Slots need no credit: a host sends for operation s+2 only after it has all blocks of s+1. The receiver sent its block
// of s+1 only after it was done with s, so the slots of s are free.
//
// The host's own block has n bytes of data, in own(). Afterwards s.blocks has all blocks; their data belong to the
// leader until it ends the operation.
func (s *Stage) exchange(ctx context.Context, set int, own block, n int) error {
	seq := s.seq
	if set == forReports {
		seq = s.bad
	}
	own.host, own.seq = s.me, seq
	own.head(s.buf, n)
	own.data = s.buf[blockHead:][:n]
	s.blocks[s.me] = own
	end := blockBytes(n)
	have := 1
	first := 0 // size of the blocks to send: all, except in the last round
	for k := range s.rounds {
		count := min(have, s.n-have)
		if first = end; count < have {
			first = s.bytesOf(count)
		}
		to, from := s.peers[(s.me-1<<k+s.n)%s.n], s.sender(k)
		i := s.slot(set, k, seq)
		to.link.Put(i, seq, unsafe.Pointer(&s.buf[0]), first)
		if err := s.await(ctx, from, from.link.Word(i), seq, team.StepAgree); err != nil {
			return err
		}
		got := s.slots[i][:from.link.Landed(i)]
		bytes, err := parseBlocks(got, s.blocks, (s.me+have)%s.n, count, seq)
		if err != nil {
			return s.comm(from.rank, err)
		}
		if have += count; have < s.n {
			if end, err = s.keep(end, got[:bytes]); err != nil {
				return s.comm(from.rank, err)
			}
		}
		s.post(from.link, set, k, seq+2)
	}
	return s.flush(ctx)
}

// keep appends received blocks to the blocks to send, which end at end. It returns their new end.
func (s *Stage) keep(end int, blocks []byte) (int, error) {
	if len(blocks) > len(s.buf)-end {
		return 0, fmt.Errorf("blocks of %d bytes, and %d are the most: %w", end+len(blocks), len(s.buf), fault.ErrMismatch)
	}
	return end + copy(s.buf[end:], blocks), nil
}

// bytesOf is the size of the first count blocks of buf.
func (s *Stage) bytesOf(count int) (n int) {
	for i := range count {
		n += blockBytes(len(s.blocks[(s.me+i)%s.n].data))
	}
	return n
}

// own is where the data of this host's block is written.
func (s *Stage) own() []byte { return s.buf[blockHead:] }
