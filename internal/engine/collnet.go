package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
	cn "github.com/ubcoll/ubcoll/internal/transport/collnet"
)

// fabric is a communicator's way to the use of a CollNet plugin. Its leaders begin a group, tell each other how to join it, and join.
// Whatever fails on one of them, all go without, and say why.
type fabric struct {
	c     *Comm
	cards [][]byte // by host: as much as leaders have told
	mine  []byte
	offer *cn.Offer
	own   *mem.Allocation
	group *cn.Group
	why   string // it goes without
}

// joinFabric sets up the use of the plugin that the environment names, if the communicator spans hosts. Collective; ctx ends it.
func (c *Comm) joinFabric(ctx context.Context) error {
	if c.dom.fabric == nil || c.stage == nil {
		return nil
	}
	limit := connectTimeout
	if c.opts.Timeout > 0 { // all must still hear of it in time
		limit = min(limit, c.opts.Timeout/4)
	}
	limited, cancel := clock.WithTimeout(ctx, limit, fmt.Errorf("not joined within %v: %w", limit, fault.ErrTimeout))
	defer cancel()
	limited, stop := c.whileHealthy(limited)
	defer stop()
	f := &fabric{c: c, cards: make([][]byte, c.stage.Size())}
	err := c.Gather(ctx, f.steps(limited)...)
	if err == nil && f.why == "" {
		return nil
	}
	f.drop()
	if err == nil {
		c.stage.WithoutFabric(f.why)
		if c.team.Rank() == 0 {
			c.Log().Warn("ubcoll: no CollNet plugin does collectives for this communicator", "rank", c.rank, "error", f.why)
		}
	}
	return err
}

// whileHealthy is a context that ends when the communicator breaks. Nothing else looks while this rank is in no operation.
func (c *Comm) whileHealthy(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(Context(ctx))
	over := make(chan struct{})
	go func() {
		for c.broken.Load() == nil {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
				c.breakBy(c.stage.Health)
			}
		}
		cancel(c.broken.Load())
	}()
	return ctx, func() {
		close(over)
		cancel(nil)
	}
}

// steps are the operations: tell the leaders' cards, in pieces as long as records may be; and join.
func (f *fabric) steps(ctx context.Context) (all []*Gathering) {
	c := f.c
	leads, piece := c.team.Rank() == 0, hosts.MostRecord(&c.team)
	for at := 0; at < cn.CardBytes; at += piece {
		all = append(all, &Gathering{Kind: team.KindOpen,
			Before: func() ([]byte, error) {
				if !leads {
					return nil, nil
				}
				if at == 0 {
					f.mine = f.tell(ctx)
				}
				return f.mine[at:min(at+piece, cn.CardBytes)], nil
			},
			Check: func(records [][]byte) (int, error) {
				for h := range f.cards {
					f.cards[h] = append(f.cards[h], records[c.stage.Members(h)[0]]...)
				}
				return -1, nil
			}})
	}
	var cards []cn.Card
	last := all[len(all)-1]
	collect := last.Check
	last.Check = func(records [][]byte) (int, error) {
		collect(records)
		for h, b := range f.cards {
			leader := c.stage.Members(h)[0]
			card, err := cn.ParseCard(b)
			if err != nil {
				return leader, fmt.Errorf("what rank %d told of its CollNet plugin: %w", leader, err)
			}
			if card.Why != "" && f.why == "" {
				f.why = fmt.Sprintf("rank %d: %s", leader, card.Why)
			}
			cards = append(cards, card)
		}
		return -1, nil
	}
	return append(all, &Gathering{Kind: team.KindOpen,
		Before: func() ([]byte, error) {
			window, err := f.join(ctx, cards)
			if err == nil && f.why == "" {
				c.stage.UseFabric(cards[c.stage.Host()].Name, does(cards), f.transport(), window)
			}
			return why(err, c.rank, hosts.MostRecord(&c.team)), nil
		},
		Check: func(records [][]byte) (int, error) {
			for _, b := range records {
				if len(b) > 0 && f.why == "" {
					f.why = string(b)
				}
			}
			return -1, nil
		}})
}

// why is an error's text as a record, nil if there is none.
func why(err error, rank, most int) []byte {
	if err == nil {
		return nil
	}
	text := fmt.Sprintf("rank %d: %v", rank, err)
	return []byte(text[:min(len(text), most)])
}

// tell makes this leader's card.
func (f *fabric) tell(ctx context.Context) []byte {
	card, err := f.begin(ctx)
	if err != nil {
		card = cn.Card{Why: err.Error()}
	}
	return card.Append(nil)
}

func (f *fabric) begin(ctx context.Context) (card cn.Card, err error) {
	c := f.c
	if f.offer, err = c.dom.fabric.Offer(ctx); err != nil {
		return card, err
	}
	if f.own, err = c.dom.Heap.Alloc(team.WindowBytes); err != nil {
		return card, err
	}
	c.shared = append(c.shared, f.own)
	at := f.own.At
	card = f.offer.Card
	card.Window = [3]uint64{uint64(at.Arena)<<32 | uint64(at.Slot), at.Generation, at.Offset}
	return card, nil
}

// join makes the group, on leaders, and finds the window.
func (f *fabric) join(ctx context.Context, cards []cn.Card) (window unsafe.Pointer, err error) {
	c := f.c
	if f.why != "" {
		return nil, nil
	}
	if c.team.Rank() != 0 {
		w := cards[c.stage.Host()].Window
		return c.team.Resolve("open", 0, mem.Location{Arena: uint32(w[0] >> 32), Slot: uint32(w[0]), Generation: w[1], Offset: w[2]},
			team.WindowBytes)
	}
	handles := make([][collnet.HandleBytes]byte, len(cards))
	for h := range cards {
		handles[h] = cards[h].Handle
	}
	offer := f.offer
	f.offer = nil
	f.group, err = offer.Join(ctx, handles, c.stage.Host(), Memory(f.own))
	return f.own.Ptr, err
}

// does is what the plugins of all hosts can do.
func does(cards []cn.Card) team.CollNet {
	all := team.CollNet{Step: team.WindowPart, Speed: cards[0].Speed}
	for t := range all.Reduces {
		all.Reduces[t] = 0xff
		for _, k := range cards {
			all.Reduces[t] &= k.Reduces[t]
		}
	}
	for _, k := range cards {
		all.Step, all.Speed = min(all.Step, k.Bytes&^63), min(all.Speed, k.Speed)
	}
	return all
}

// transport is the group, nil if this rank does not lead.
func (f *fabric) transport() transport.Fabric {
	if f.group == nil {
		return nil
	}
	return f.group
}

// drop gives up what has been begun.
func (f *fabric) drop() {
	f.c.stage.DropFabric()
	var err error
	if f.offer != nil {
		err = f.offer.Close()
	}
	if f.group != nil {
		err = errors.Join(err, f.group.Close())
	}
	if err != nil {
		f.c.Log().Warn("ubcoll: a CollNet group that was not used could not be closed", "rank", f.c.rank, "error", err)
	}
}
