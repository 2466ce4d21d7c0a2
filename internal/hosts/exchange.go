package hosts

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// exchange gathers all hosts' blocks on all leaders: Bruck's algorithm (Bruck, Ho, Kipnis, Upfal and Weathersby,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997). In round k a host
// sends the blocks that it has, its own and those of the 2^k - 1 hosts behind it, to the host 2^k before it, and gets
// as many from the host 2^k behind it. So there are ceil(log2 hosts) rounds of one message.
//
// Slots need no credit. Who sends for operation s+2 has all blocks of s+1, the receiver's too, which that one sent when
// it had done with s, and with the slots of s.
//
// The own block has n bytes of data, in own(). After it s.blocks has all; the data are the leader's until it ends the
// operation.
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
	first := 0 // bytes of the blocks that go out: all, but in the last round
	for k := range s.rounds {
		count := min(have, s.n-have)
		if first = end; count < have {
			first = s.bytesOf(count)
		}
		to, from := s.peers[(s.me-1<<k+s.n)%s.n], s.peers[(s.me+1<<k)%s.n]
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
		s.grant(set, k, seq+2)
	}
	return s.flush(ctx)
}

// keep puts blocks that have come behind those that go out, which end at end, and returns where they end then.
func (s *Stage) keep(end int, blocks []byte) (int, error) {
	if len(blocks) > len(s.buf)-end {
		return 0, fmt.Errorf("blocks of %d bytes, and %d are the most: %w", end+len(blocks), len(s.buf), fault.ErrMismatch)
	}
	return end + copy(s.buf[end:], blocks), nil
}

// bytesOf is what the first blocks of buf take.
func (s *Stage) bytesOf(count int) (n int) {
	for i := range count {
		n += blockBytes(len(s.blocks[(s.me+i)%s.n].data))
	}
	return n
}

// own is where the data of this host's block is made.
func (s *Stage) own() []byte { return s.buf[blockHead:] }
