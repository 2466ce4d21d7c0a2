package hosts

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"
)

// chain is the broadcast between hosts, a pipeline: each host passes what it receives on to the next host; the host
// before the root's passes on nothing.
type chain struct {
	s     *Stage
	w     *team.Work
	p     unsafe.Pointer
	piece int
	size  int
	root  int // the root's host
}

// ExpectBroadcast implements team.Hosts.
func (s *Stage) ExpectBroadcast(w *team.Work, p unsafe.Pointer, piece int) {
	if w.Count > 0 {
		s.expect(&chain{s: s, w: w, p: p, piece: piece, size: w.Type.Size(), root: s.Of(w.Root)})
	}
}

func (c *chain) place(k step) unsafe.Pointer { return unsafe.Add(c.p, k.off*c.size) }

func (c *chain) walk() walk { return &chainWalk{c: c} }

type chainWalk struct {
	c   *chain
	off int
}

func (k *chainWalk) next() (step, bool) {
	c, s := k.c, k.c.s
	if k.off >= c.w.Count {
		return step{}, false
	}
	end := min((k.off/c.piece+1)*c.piece, c.w.Count) // chunks do not cross pieces
	n := min(s.pipe.chunk/c.size, end-k.off)
	at := step{off: k.off, n: n, bytes: n * c.size, receives: s.me != c.root, sends: (s.me+1)%s.n != c.root}
	k.off += n
	return at, true
}

// Broadcast implements team.Hosts.
func (s *Stage) Broadcast(ctx context.Context, w *team.Work, p unsafe.Pointer, off, n int) error {
	if n == 0 {
		return nil
	}
	c, ok := s.pipe.plan.(*chain)
	if !ok {
		return errNotExpected
	}
	steps := chainWalk{c: c, off: off}
	for steps.off < off+n {
		k, _ := steps.next()
		if k.receives {
			if _, err := s.receive(ctx, k, "broadcast"); err != nil {
				return err
			}
			s.taken()
		}
		if !k.sends {
			continue
		}
		if err := s.send(ctx, unsafe.Add(p, k.off*c.size), k.bytes, "broadcast"); err != nil {
			return err
		}
	}
	if off+n < w.Count {
		return nil
	}
	return s.ended(ctx)
}
