package hosts

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// Exchanges of blocks, whose data are not at the same offsets on all hosts. What is not together where it is sent from is
// gathered first, and what does not belong together lands in landing memory, and is distributed from there.

const slotBytes = schedule.LargestItem

// slots is memory of schedule.Slots items that are sent from there.
type slots struct {
	b    []byte
	next int
	used [schedule.Slots]struct { // the put that sends what is there
		p   *peer
		put uint64
	}
}

func (k *slots) leave(n *Network) {
	if k.b != nil {
		n.slots.give(k.b)
		*k = slots{}
	}
}

// at returns slot i, once what was sent from there has left.
func (k *slots) at(ctx context.Context, s *Stage, i int) (unsafe.Pointer, error) {
	if k.b == nil {
		k.b = s.Network.slots.take()
	}
	u := &k.used[i]
	if p := u.p; p != nil && p.link.Sent() < u.put {
		if err := s.awaitLong(ctx, p, nil, func() bool { return p.link.Sent() >= u.put }, "send"); err != nil {
			return nil, err
		}
	}
	u.p = nil
	return unsafe.Pointer(&k.b[i*slotBytes]), nil
}

// sends says that the next put to p sends what is in slot i.
func (k *slots) sends(i int, p *peer) {
	k.used[i].p, k.used[i].put = p, p.link.Queued()+1
}

// gathered returns where n elements are that a step sends, off elements into it.
func (s *Stage) gathered(ctx context.Context, p *peer, k *schedule.Step, off, n int) (from unsafe.Pointer, err error) {
	m := &s.mover
	combines := m.x.Work.Red.Valid() // and what does not come from the source is what has come of that
	if at, together := m.x.Blocks.Destination(s.me, k.Off, k.N); !k.Source && combines && together == k.N {
		return unsafe.Add(at, off*m.size), nil
	}
	if !k.Source && combines {
		i := k.Off / m.x.Plan.Item % schedule.Slots
		m.kept.sends(i, p)
		return unsafe.Pointer(&m.kept.b[i*slotBytes+off*m.size]), nil
	}
	if from = m.x.Blocks.Source(k.Peer, k.Off+off, n); from != nil {
		return from, nil
	}
	i := m.filled.next
	if from, err = m.filled.at(ctx, s, i); err != nil {
		return nil, err
	}
	m.filled.next = (i + 1) % schedule.Slots
	m.filled.sends(i, p)
	m.x.Blocks.Fill(from, k.Peer, k.Off+off, n)
	return from, nil
}

// take does a step that receives with n elements, off elements into it, that have landed: at to, or if that is nil in
// landing memory.
func (s *Stage) take(ctx context.Context, k *schedule.Step, to unsafe.Pointer, off, n int) error {
	m := &s.mover
	from := to
	if from == nil {
		from = m.at(m.free)
	}
	if k.Op == schedule.Copy {
		m.x.Blocks.Take(from, k.Peer, k.Off+off, n)
	} else if err := s.combineBlocks(ctx, k, from, off, n); err != nil {
		return err
	}
	if to == nil {
		m.free++
	}
	return nil
}

// combineBlocks combines n elements that have landed with this host's: where they belong, if the whole step does, or
// otherwise in a slot, from where they are sent on, or taken.
func (s *Stage) combineBlocks(ctx context.Context, k *schedule.Step, in unsafe.Pointer, off, n int) error {
	m, me := &s.mover, s.me
	out, together := m.x.Blocks.Destination(me, k.Off, k.N)
	if out == nil || together < k.N {
		i := k.Off / m.x.Plan.Item % schedule.Slots
		var err error
		if out, err = m.kept.at(ctx, s, i); err != nil {
			return err
		}
	}
	out = unsafe.Add(out, off*m.size)
	own := out
	if k.Source {
		if own = m.x.Blocks.Source(me, k.Off+off, n); own == nil {
			own = out
			m.x.Blocks.Fill(out, me, k.Off+off, n)
		}
	}
	s.combine(k, out, in, own, n)
	if k.Last {
		m.x.Blocks.Take(out, me, k.Off+off, n)
	}
	return nil
}
