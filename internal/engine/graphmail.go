package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// A graph's messages: whoever captures knows where its receives are, and tells the senders, whose copy engines write
// there. That takes the same graph on both sides: elsewhere the host knows of no receive which send it will meet, since
// the devices count, and other graphs may be launched as often as each rank likes.

// ReceivedWords is how many words Received has for each receive.
const ReceivedWords = 3

// Received is what this rank receives in works, in order: from whom, where, and what. It waits until the peers have
// imported the memory, or cannot.
func (c *Comm) Received(ctx context.Context, works []team.Work) ([]uint64, error) {
	if c.device == nil {
		return nil, c.gpuWhy
	}
	m := c.device.mail
	start := time.Now()
	var all []uint64
	for i := range works {
		ms := messagesOf(&works[i])
		for j := range ms {
			h := &ms[j]
			for {
				if err := m.acquire(h, true); err != nil {
					return nil, err
				}
				late := h.buf.Late && time.Since(start) < min(c.opts.Timeout, importTime)
				if h.buf.Claim != nil {
					h.buf.Claim.Release() // the graph has it
					h.buf.Claim = nil
				}
				if !late {
					break
				}
				if ctx.Err() != nil {
					return nil, fault.Ended(ctx)
				}
				c.dom.IPC.Progress()
				time.Sleep(importPoll)
			}
			if h.Recv {
				all = append(all, uint64(h.Peer), h.word, h.message().Head)
			}
		}
	}
	return all, nil
}

// address finds out which sends of works copy engines can do: those that are large, of lanes whose receives have been
// captured as well, all of them. It holds the memory that they write.
func (g *DeviceGraph) address(ctx context.Context, works []team.Work, received [][]uint64) error {
	c := g.d.c
	for peer := range c.size {
		if peer == c.rank || peer >= len(received) {
			continue
		}
		var sends []*DeviceMessage
		for i := range works {
			ms := messagesOf(&works[i])
			for j := range ms {
				if h := &ms[j]; h.Peer == peer && !h.Recv {
					sends = append(sends, h)
				}
			}
		}
		words, ok := match(sends, received[peer], c.rank)
		if !ok {
			continue
		}
		for i, h := range sends {
			if h.Vec.Bytes() < copyEngineMin || words[i] == 0 {
				continue
			}
			at := mem.Location{Arena: uint32(words[i]>>48) & (kernels.MaxExtents - 1), Offset: words[i] & (1<<48 - 1)}
			if kernels.Word(at.Arena, int(at.Offset)) != words[i] {
				return fmt.Errorf("rank %d receives at %#x, which is nowhere: %w", peer, words[i], fault.ErrMismatch)
			}
			to, err := c.devicePeer(peer).Hold(ctx, at.Arena, at.Offset, h.Vec.Bytes())
			if err != nil {
				return fmt.Errorf("destination at rank %d: %w", peer, err)
			}
			g.holds = append(g.holds, hold{peer: c.devicePeer(peer), extent: at.Arena})
			h.to, h.want = uint64(to), words[i]
		}
	}
	return nil
}

// match is where a peer receives each of the sends to it, if they are all, and what it expects.
func match(sends []*DeviceMessage, received []uint64, rank int) (words []uint64, ok bool) {
	for ; len(received) >= ReceivedWords; received = received[ReceivedWords:] {
		if received[0] != uint64(rank) {
			continue
		}
		if i := len(words); i == len(sends) || sends[i].message().Head != received[2] {
			return nil, false
		}
		words = append(words, received[1])
	}
	return words, len(words) == len(sends)
}

// unhold gives up what a graph that is not made after all was to write.
func (g *DeviceGraph) unhold() error {
	var errs []error
	for _, h := range g.holds {
		errs = append(errs, h.peer.Unhold(h.extent))
	}
	g.holds = nil
	return errors.Join(errs...)
}
