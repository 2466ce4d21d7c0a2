//go:build cgo

package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenRDMA: puts and gets between registered memories go from memory to memory, in chunks of 256 KiB. Once their owner
// has closed the registration, they are refused, and other memory is reached as before. Over the double.
func TestBetweenRDMA(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error { return inPlace(ctx, t, c) })
	})
}

func inPlace(ctx context.Context, t *testing.T, c *ubcoll.Comm) error {
	const n = 4 << 20
	peer := 1 - c.Rank()
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 2*n)
	if err != nil {
		return err
	}
	copy(b.Slice()[n:], bytes.Repeat([]byte{byte(7 + c.Rank())}, n))
	r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Transports: ubcoll.TransportRDMA})
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(ctx, c, peer, r)
	if err != nil {
		return err
	}
	if err := shown(ctx, c, r); err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		for name, f := range map[string]func() error{
			"channel put": func() error { return errors.Join(ch.Put(ctx, 0, n, n), ch.Flush(ctx)) },
			"channel get": func() error { return ch.Get(ctx, 0, n, n) },
			"window put":  func() error { return errors.Join(w.Put(ctx, peer, 0, b.Vec().Slice(n, 2*n)), w.Flush(ctx)) },
			"window get":  func() error { return w.Get(ctx, peer, b.Vec().Slice(0, n), n) },
		} {
			want := byte(7)
			if name[len(name)-3:] == "get" {
				want = 8
			}
			for first := range 2 { // then the peer asks for the key, and the queue pair is made
				before := verbstest.Count(t, "work")
				if err := f(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if work := verbstest.Count(t, "work") - before; first > 0 && work > n/(256<<10)+6 {
					return conform.Fail(c, "%s takes %d work requests", name, work)
				}
			}
			if want == 8 && bytes.Count(b.Slice()[:n], []byte{8}) != n {
				return conform.Fail(c, "%s: wrong bytes", name)
			}
		}
		if err := ch.Signal(ctx); err != nil {
			return err
		}
	} else if err := ch.Wait(ctx); err != nil {
		return err
	} else if bytes.Count(b.Slice()[:n], []byte{7}) != n {
		return conform.Fail(c, "a put: wrong bytes")
	}
	if c.Rank() == 1 { // while the peer puts
		if err := errors.Join(r.Close(), w.Close()); err != nil {
			return err
		}
		clear(b.Slice()[:n])
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if bytes.Count(b.Slice()[:n], []byte{0}) != n {
			return conform.Fail(c, "something has landed after Close")
		}
		return nil
	}
	for err = nil; err == nil; {
		err = ch.Put(ctx, 0, n, n)
	}
	require.ErrorIs(t, err, ubcoll.ErrStale)
	for err = nil; err == nil; {
		err = w.Put(ctx, peer, 0, b.Vec().Slice(n, 2*n))
	}
	require.ErrorIs(t, err, ubcoll.ErrStale)
	return coll.Barrier(ctx, c)
}

// shown checks what an imported handle shows.
func shown(ctx context.Context, c *ubcoll.Comm, r *ubcoll.Registration) error {
	handle, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	theirs := make([]byte, 2*len(handle))
	if err := coll.AllGather(ctx, c, ubcoll.Of(theirs), ubcoll.Of(handle)); err != nil {
		return err
	}
	m, err := c.Import(theirs[(1-c.Rank())*len(handle):][:len(handle)])
	if err != nil {
		return err
	}
	want := fmt.Sprintf("^%d bytes of rank %d: local write, remote write, remote read; RDMA; at 0x[0-9a-f]+ by rkey 0x[0-9a-f]+$", 8<<20, 1-c.Rank())
	if s := m.String(); !regexp.MustCompile(want).MatchString(s) {
		return conform.Fail(c, "the handle is %q, not %q", s, want)
	}
	return m.Close()
}

// TestRDMAInfo: LastOp says of each buffer of a collective or message whether RDMA devices have it, and if not, why. What
// the policy lets be registered is, by the call.
func TestRDMAInfo(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
			const n = 1 << 20
			const wire, goMemory = "verbs double0:1", "staged: Go or foreign memory is never registered"
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 2*n)
			if err != nil {
				return err
			}
			side := []string{"destination ", "source "}[c.Rank()] // rank 1 sends last
			slice := ubcoll.Of(make([]byte, n))
			sum := func(src, dst ubcoll.Vec) func() error {
				return func() error { return coll.AllReduce(ctx, c, dst, src, ubcoll.Sum) }
			}
			message := func(v ubcoll.Vec) func() error {
				return func() error { return errors.Join(pass(ctx, c, 0, v), pass(ctx, c, 1, v)) }
			}
			first, second := b.Vec().Slice(0, n), b.Vec().Slice(n, 2*n)
			for _, k := range []struct {
				f           func() error
				alone, want string // alone: of the only buffer, which it is
			}{
				{sum(first, second), "", "direct"},
				{sum(slice, second), "", "source " + goMemory + ", destination direct"},
				{sum(first, slice), "", "source direct, destination " + goMemory},
				{message(first), side, "direct"},
				{message(slice), side, goMemory},
			} {
				if err := k.f(); err != nil {
					return err
				}
				text := c.LastOp().Levels[0].String()
				if _, says, _ := strings.Cut(text, wire+": "); says != k.want && says != k.alone+k.want {
					return conform.Fail(c, "LastOp says %q, not %q", text, k.want)
				}
			}
			return nil
		})
	})
}
