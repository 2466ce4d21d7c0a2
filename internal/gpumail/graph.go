package gpumail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A rank that captures knows where its receives are. It tells the senders, so that their copy engines can write there.
// This works only if both sides have the same graph: otherwise the host cannot know which send a receive will meet,
// since the devices count messages, and each rank launches other graphs as often as it likes.

// graphPart is the messages of a graph. It implements gpu.GraphPart.
type graphPart struct {
	m        *messages
	works    []team.Work
	received [][]uint64

	lanes  gpu.LaneSet
	blocks gpu.LaneBlocks // held by the graph
	holds  []hold         // on memory that its copy engines write
	after  *mark          // after the last launch, if there are holds
}

func (g *graphPart) Prepare(ctx context.Context) error {
	for i := range g.works {
		for _, msg := range messagesOf(&g.works[i]) {
			g.lanes.Add(laneOf(msg.Peer, msg.Recv))
		}
	}
	if err := g.address(ctx, g.works, g.received); err != nil {
		return err
	}
	_, err := g.m.load()
	return err
}

func (g *graphPart) Capture(cu *cuda.Stream, w *team.Work) ([]engine.OpInfo, error) {
	ms := messagesOf(w)
	if err := g.m.launch(cu, 0, ms, &g.blocks); err != nil {
		return nil, err
	}
	var infos []engine.OpInfo
	for _, n := range g.m.notes(ms) {
		infos = append(infos, n.Info())
	}
	return infos, nil
}

func (g *graphPart) GiveUp() error {
	g.m.giveUp(&g.blocks)
	return g.unhold()
}

func (g *graphPart) Lock() error            { return g.m.lock(g.lanes) }
func (g *graphPart) Unlock()                { g.m.unlock(g.lanes) }
func (g *graphPart) Number(n uint64) uint64 { return g.m.number(n) }
func (g *graphPart) Collect() error         { return g.m.Collect() }

// Launch queues the graph, in order with other work of its lanes.
func (g *graphPart) Launch(of *gpu.Graph, s *gpu.Stream, cu *cuda.Stream) error {
	m := g.m
	k, err := m.take(s)
	if err != nil {
		return err
	}
	if err = m.order(g.lanes, s, cu); err == nil {
		err = of.Replay(cu)
	}
	if err == nil {
		err = m.set(k, g.lanes, cu)
	}
	if err != nil {
		m.putBack(k)
		m.noteUnmarked(s)
		return err
	}
	if len(g.holds) == 0 {
		m.putBack(k)
		return nil
	}
	if g.after != nil {
		m.putBack(g.after)
	}
	g.after = k
	return nil
}

func (g *graphPart) Close() error {
	m := g.m
	m.giveUp(&g.blocks)
	m.mu.Lock()
	for i := range g.holds {
		if g.holds[i].after = g.after; i > 0 && g.after != nil {
			g.after.users++
		}
	}
	m.holds = append(m.holds, g.holds...)
	m.mu.Unlock()
	g.holds, g.after = nil, nil
	return m.release(false)
}

// ReceivedWords is how many words Received returns for each receive.
const ReceivedWords = 3

// Received describes the receives in works, in order: from which rank, where to, and the message's head. It blocks
// until the peers have imported the memory, or failed to.
func (m *Mail) Received(ctx context.Context, works []team.Work) ([]uint64, error) {
	on := m.device()
	if on == nil {
		_, none := m.c.GPU()
		return nil, none
	}
	start := time.Now()
	var all []uint64
	for i := range works {
		ms := messagesOf(&works[i])
		for j := range ms {
			msg := &ms[j]
			err := on.d.UntilImported(ctx, start, func() (pending bool, err error) {
				err = on.acquire(msg, true)
				if msg.buf.Claim != nil {
					msg.buf.Claim.Release() // the graph holds it
					msg.buf.Claim = nil
				}
				pending = msg.buf.NotImported
				if x := on.throughFIFO(msg); x != nil && err == nil && on.d.Make(x, kernels.FIFOBytes) {
					pending = true
				}
				return pending, err
			})
			if err != nil {
				return nil, err
			}
			if msg.Recv {
				all = append(all, uint64(msg.Peer), msg.word, on.message(msg).Head)
			}
		}
	}
	return all, nil
}

// address finds the sends of works that copy engines can do: large ones, of lanes whose receives have all been captured
// as well. It holds the memory that they write.
func (g *graphPart) address(ctx context.Context, works []team.Work, received [][]uint64) error {
	c := g.m.c
	for peer := range g.m.ranks() {
		if peer == c.Rank() || peer >= len(received) {
			continue
		}
		var sends []*Message
		for i := range works {
			ms := messagesOf(&works[i])
			for j := range ms {
				if msg := &ms[j]; msg.Peer == peer && !msg.Recv {
					sends = append(sends, msg)
				}
			}
		}
		words, ok := g.m.match(sends, received[peer], c.Rank())
		if !ok {
			continue
		}
		for i, msg := range sends {
			if msg.Vec.Bytes() < gpu.CopyEngineMin || words[i] == 0 {
				continue
			}
			at := mem.Location{Arena: uint32(words[i]>>48) & (kernels.MaxExtents - 1), Offset: words[i] & (1<<48 - 1)}
			if kernels.Word(at.Arena, int(at.Offset)) != words[i] {
				return fmt.Errorf("rank %d receives at %#x, which is nowhere: %w", peer, words[i], fault.ErrMismatch)
			}
			to, err := c.DevicePeer(peer).Hold(ctx, at.Arena, at.Offset, msg.Vec.Bytes())
			if err != nil {
				return fmt.Errorf("destination at rank %d: %w", peer, err)
			}
			g.holds = append(g.holds, hold{peer: c.DevicePeer(peer), extent: at.Arena})
			msg.to, msg.want = uint64(to), words[i]
		}
	}
	return nil
}

// match returns where a peer receives each of sends. ok is false unless the peer's receives are exactly these messages.
func (m *messages) match(sends []*Message, received []uint64, rank int) (words []uint64, ok bool) {
	for ; len(received) >= ReceivedWords; received = received[ReceivedWords:] {
		if received[0] != uint64(rank) {
			continue
		}
		if i := len(words); i == len(sends) || m.message(sends[i]).Head != received[2] {
			return nil, false
		}
		words = append(words, received[1])
	}
	return words, len(words) == len(sends)
}

// unhold releases the memory that a graph would have written, which is not made after all.
func (g *graphPart) unhold() error {
	var errs []error
	for _, h := range g.holds {
		errs = append(errs, h.peer.Unhold(h.extent))
	}
	g.holds = nil
	return errors.Join(errs...)
}

// Capture is gpu.Capture of works that may contain messages. received is each rank's result of Received.
func (m *Mail) Capture(ctx context.Context, works []team.Work, received [][]uint64) (*gpu.Graph, error) {
	messages := slices.ContainsFunc(works, func(w team.Work) bool { return w.Other != nil })
	if on := m.device(); messages && on != nil {
		return gpu.Capture(ctx, m.c, works, &graphPart{m: on, works: works, received: received})
	}
	return gpu.Capture(ctx, m.c, works, nil)
}
