package onesided

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Access registers memory with all rights that can be given, and tries everything on it from a peer.
func Access(ctx context.Context, c *ubcoll.Comm) error {
	return conform.Each(ctx, c, badOptions, rights, rightsApart, transports, readOnlyWindow)
}

func badOptions(_ context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	for name, o := range map[string]ubcoll.RegisterOptions{
		"unknown rights":                 {Access: 1 << 5},
		"remote write without local":     {Access: ubcoll.AccessRemoteWrite},
		"remote atomic without local":    {Access: ubcoll.AccessRemoteAtomic | ubcoll.AccessRemoteRead},
		"local only and remote read":     {Access: ubcoll.AccessLocalOnly | ubcoll.AccessRemoteRead},
		"unknown transports":             {Transports: 1 << 7},
		"device's transport on the host": {Transports: ubcoll.TransportCUDAIPC},
	} {
		r, err := c.RegisterWith(b.Vec(), o)
		if r != nil {
			return conform.Fail(c, "%s: a registration", name)
		}
		if err := conform.Refused(c, name, err, ubcoll.ErrArgument); err != nil {
			return err
		}
	}
	// For RDMA alone there must be a device, which jobs do not use unless they are told to.
	r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Transports: ubcoll.TransportRDMA})
	if err == nil {
		err = r.Close()
	} else {
		err = conform.Refused(c, "RDMA alone", err, ubcoll.ErrNotSupported)
	}
	return errors.Join(err, b.Free()) // nothing is left of what was refused
}

// attempt is a call on a channel, and what it needs.
type attempt struct {
	name   string
	local  ubcoll.Access // of this rank's memory
	remote ubcoll.Access // of the peer's
	writes bool          // to the peer's memory
	call   func(ctx context.Context, ch *p2p.Channel) error
}

// attempts do not wait for the peer.
var attempts = []attempt{
	{"put", 0, ubcoll.AccessRemoteWrite, true, func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Put(ctx, 0, 64, 64)
	}},
	{"batch", 0, ubcoll.AccessRemoteWrite, true, func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Batch(ctx, func(b *p2p.Channel) error { return b.Put(ctx, 0, 64, 64) })
	}},
	{"put_packets", 0, ubcoll.AccessRemoteWrite, true, func(ctx context.Context, ch *p2p.Channel) error {
		return ch.PutPackets(ctx, 0, 64, 32, p2p.Packet16)
	}},
	{"get", ubcoll.AccessLocalWrite, ubcoll.AccessRemoteRead, false, func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Get(ctx, 128, 0, 64)
	}},
	{"fetch_add", 0, ubcoll.AccessRemoteAtomic, true, func(ctx context.Context, ch *p2p.Channel) error {
		return testkit.ErrOf(ch.FetchAdd(ctx, 8, 1))
	}},
	{"compare_and_swap", 0, ubcoll.AccessRemoteAtomic, true, func(ctx context.Context, ch *p2p.Channel) error {
		return testkit.ErrOf(ch.CompareAndSwap(ctx, 8, 0x0101010101010101, 7))
	}},
}

// rights gives each rank in turn all rights that there are, and lets its partner try.
func rights(ctx context.Context, c *ubcoll.Comm) error {
	const n = 4096
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	for mask := range ubcoll.Access(16) {
		a := mask
		if mask&^ubcoll.AccessLocalWrite == 0 {
			a |= ubcoll.AccessLocalOnly
		}
		if a&(ubcoll.AccessRemoteWrite|ubcoll.AccessRemoteAtomic) != 0 && a&ubcoll.AccessLocalWrite == 0 {
			continue
		}
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
		if err != nil {
			return err
		}
		for i := range b.Slice() {
			b.Slice()[i] = 1
		}
		r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: a})
		if err != nil {
			return err
		}
		if r.Access() != a {
			return conform.Fail(c, "registered with %v, it says %v", a, r.Access())
		}
		_, err = r.MarshalBinary()
		if local := a&ubcoll.AccessLocalOnly != 0; local != errors.Is(err, ubcoll.ErrArgument) || !local && err != nil {
			return conform.Fail(c, "a handle with access %v: %v", a, err)
		}
		ch, err := p2p.Connect(ctx, c, peer, r)
		if err != nil {
			return err
		}
		for _, t := range attempts {
			if err := p2pBarrier(ctx, ch); err != nil {
				return err
			}
			if c.Rank() < peer { // one rank tries, and the other one looks
				allowed := a&t.remote == t.remote && a&t.local == t.local
				switch err := t.call(ctx, ch); {
				case allowed && err != nil:
					return conform.Fail(c, "%s with access %v: %w", t.name, a, err)
				case !allowed:
					if err := conform.Refused(c, fmt.Sprintf("%s with access %v", t.name, a), err, ubcoll.ErrArgument); err != nil {
						return err
					}
				}
			}
			if err := p2pBarrier(ctx, ch); err != nil {
				return err
			}
			if c.Rank() > peer && a&t.remote != t.remote && bytes.Count(b.Slice(), []byte{1}) != n {
				return conform.Fail(c, "%s with access %v changed memory", t.name, a)
			}
			for i := range b.Slice() {
				b.Slice()[i] = 1
			}
		}
		if err := testkit.InOrder(func() error { return p2pBarrier(ctx, ch) }, ch.Close, r.Close, b.Free); err != nil {
			return err
		}
	}
	return nil
}

// p2pBarrier waits until the other end is here too.
func p2pBarrier(ctx context.Context, ch *p2p.Channel) error {
	if err := ch.Signal(ctx); err != nil {
		return err
	}
	return ch.Wait(ctx)
}

// rightsApart makes two registrations of the same memory: each handle has its own rights, and ends alone.
func rightsApart(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 8192)
	if err != nil {
		return err
	}
	mine, err := conform.NewRegion(c, 64)
	if err != nil {
		return err
	}
	read, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: ubcoll.AccessRemoteRead})
	if err != nil {
		return err
	}
	all, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{})
	if err != nil {
		return err
	}
	peer := conform.Partner(c)
	var chs [2]*p2p.Channel
	for i, r := range []*ubcoll.Registration{read, all} {
		hs, err := swap(ctx, c, r)
		if err != nil {
			return err
		}
		if peer < 0 {
			continue
		}
		m, err := c.Import(hs[peer])
		if err != nil {
			return err
		}
		if m.Access() != r.Access() {
			return conform.Fail(c, "a handle with access %v has %v", r.Access(), m.Access())
		}
		if chs[i], err = p2p.NewChannel(ctx, c, mine.Reg, m); err != nil {
			return err
		}
	}
	try := func(of1 error) error {
		if peer < 0 {
			return nil
		}
		err := chs[1].Put(ctx, 100, 0, 8)
		if of1 != nil {
			err = conform.Refused(c, "put", err, of1)
		}
		return errors.Join(err, chs[0].Get(ctx, 0, 100, 8),
			conform.Refused(c, "put", chs[0].Put(ctx, 100, 0, 8), ubcoll.ErrArgument))
	}
	barrier := func() error { return coll.Barrier(ctx, c) }
	if err := testkit.InOrder(func() error { return try(nil) }, barrier, all.Close, barrier,
		func() error { return try(ubcoll.ErrStale) }, barrier); err != nil {
		return err
	}
	if peer >= 0 {
		if err := errors.Join(chs[0].Close(), chs[1].Close()); err != nil {
			return err
		}
	}
	return errors.Join(read.Close(), mine.Free(), b.Free())
}

// transports restricts handles to ways that are not between their ranks.
func transports(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	next, _ := conform.Ring(c)
	// want is the result of a handle for these transports between ranks of one host, or of two.
	want := func(t ubcoll.Transports, rank int) error {
		need := ubcoll.TransportHostMemory
		if conform.Far(c, rank) {
			need = ubcoll.TransportTCP
		}
		if t != 0 && t&need == 0 {
			return ubcoll.ErrNotSupported
		}
		return nil
	}
	for _, t := range []ubcoll.Transports{0, ubcoll.TransportHostMemory, ubcoll.TransportHostMemory | ubcoll.TransportCUDAIPC,
		ubcoll.TransportTCP, ubcoll.TransportTCP | ubcoll.TransportRDMA} {
		r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Transports: t})
		if err != nil {
			return err
		}
		hs, err := swap(ctx, c, r)
		if err != nil {
			return err
		}
		m, err := c.Import(hs[next])
		if no := want(t, next); no == nil && err == nil {
			err = m.Close()
		} else if no != nil {
			err = conform.Refused(c, fmt.Sprintf("a handle for %v", t), err, no)
		}
		if err != nil {
			return err
		}
		if peer := conform.Partner(c); peer >= 0 && want(t, peer) != nil {
			if err := conform.Refused(c, "connect", testkit.ErrOf(p2p.Connect(ctx, c, peer, r)), want(t, peer)); err != nil {
				return err
			}
		}
		if err := testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, r.Close); err != nil {
			return err
		}
	}
	return b.Free()
}

func readOnlyWindow(ctx context.Context, c *ubcoll.Comm) error {
	const n = 5000 // not whole pages
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 3*4096)
	if err != nil {
		return err
	}
	copy(b.Slice(), conform.Pattern(c.Rank(), 0, n))
	for name, k := range map[string]struct {
		vec   ubcoll.Vec
		flags ubcoll.WindowFlags
	}{
		"not at a page":        {b.Vec().Slice(8, 100), ubcoll.WindowReadOnly},
		"read-only and atomic": {b.Vec(), ubcoll.WindowReadOnly | ubcoll.WindowAtomic},
	} {
		if err := conform.Refused(c, name, testkit.ErrOf(c.RegisterWindow(ctx, k.vec, k.flags)), ubcoll.ErrArgument); err != nil {
			return err
		}
	}
	w, err := c.RegisterWindow(ctx, b.Vec().Slice(0, n), ubcoll.WindowReadOnly)
	if err != nil {
		return err
	}
	if w.Flags().String() != "read_only" {
		return conform.Fail(c, "flags %v", w.Flags())
	}
	x, y := make([]byte, n), make([]byte, n)
	for p := range c.Size() {
		if err := errors.Join(
			conform.Refused(c, "put", w.Put(ctx, p, 0, ubcoll.Of(x)), ubcoll.ErrArgument),
			conform.Refused(c, "accumulate", w.Accumulate(ctx, p, 0, ubcoll.Of(x), ubcoll.Max), ubcoll.ErrArgument),
			conform.Refused(c, "fetch_add", testkit.ErrOf(w.FetchAdd(ctx, p, 0, 1)), ubcoll.ErrArgument),
			w.Get(ctx, p, ubcoll.Of(x), 0)); err != nil {
			return err
		}
		v, err := w.Peer(p)
		if conform.Far(c, p) {
			if err := conform.Refused(c, "peer on another host", err, ubcoll.ErrNotSupported); err != nil {
				return err
			}
			v, err = ubcoll.Of(x), nil
		}
		if err != nil {
			return err
		}
		// As a source of a collective and of a put to oneself, and as a destination, where its own rank's part may be written.
		if err := coll.AllReduce(ctx, c, ubcoll.Of(y), v, ubcoll.Max); err != nil {
			return err
		}
		if want := conform.Pattern(p, 0, n); !bytes.Equal(x, want) || !bytes.Equal(y, want) {
			return conform.Fail(c, "rank %d's part: wrong data", p)
		}
		if p != c.Rank() && !conform.Far(c, p) {
			if err := errors.Join(
				conform.Refused(c, "get into a view", w.Get(ctx, c.Rank(), v, 0), ubcoll.ErrArgument),
				conform.Refused(c, "recv into a view", testkit.ErrOf(p2p.Recv(ctx, c, p, v)), ubcoll.ErrArgument),
				conform.Refused(c, "registering a view", testkit.ErrOf(c.RegisterBuffer(v)), ubcoll.ErrArgument)); err != nil {
				return err
			}
		}
		// One rank's view as a destination: refused on all.
		at, dst := (p+1)%c.Size(), ubcoll.Of(y)
		if at == c.Rank() && c.Size() > 1 {
			dst = v
		}
		if c.Size() > 1 && c.Hostname(p) == c.Hostname(at) {
			if err := conform.Refused(c, "all-reduce into a view", coll.AllReduce(ctx, c, dst, ubcoll.Of(x), ubcoll.Max),
				ubcoll.ErrArgument); err != nil {
				return err
			}
		}
	}
	// A rank of this host, if every rank has one.
	other, alone := (c.Rank()+1)%c.Size(), c.Size() == 1
	for p := range c.Size() {
		alone = alone || c.Hostname(p) != c.Hostname((p+1)%c.Size())
	}
	if alone {
		other = c.Rank()
	}
	v, err := w.Peer(other)
	if err != nil {
		return err
	}
	if !alone {
		dst, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
		if err != nil {
			return err
		}
		if err := errors.Join(conform.Refused(c, "a view in a graph", testkit.ErrOf(graph.Capture(ctx, c, func(g *ubcoll.Comm) error {
			return coll.AllReduce(ctx, g, dst.Vec(), v, ubcoll.Max)
		})), ubcoll.ErrArgument), dst.Free()); err != nil {
			return err
		}
	}
	if err := testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, w.Close); err != nil {
		return err
	}
	if other != c.Rank() { // what is mapped no more is refused
		if err := conform.Refused(c, "send of a view after Close", p2p.Send(ctx, c, other, v), ubcoll.ErrStale); err != nil {
			return err
		}
	}
	return testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, b.Free)
}
