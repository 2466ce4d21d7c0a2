package faults_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// logger returns a logger, and what it was told.
func logger() (log *slog.Logger, told func() string) {
	var b buffer
	return slog.New(slog.NewTextHandler(&b, nil)), b.String
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// tools is what calls are made with, on each of two ranks.
type tools struct {
	c    *ubcoll.Comm
	peer int
	x, y ubcoll.Vec
	ch   *p2p.Channel
	sem  *p2p.Semaphore
	w    *ubcoll.Window
	s    *ubcoll.Stream
	g    *graph.Graph
}

func (k *tools) open(ctx context.Context, c *ubcoll.Comm) (err error) {
	k.c, k.peer = c, 1-c.Rank()
	k.x, k.y = ubcoll.Of(make([]int64, 8)), ubcoll.Of(make([]int64, 8))
	b, err := ubcoll.Alloc[int64](c, ubcoll.Host, 64)
	if err != nil {
		return err
	}
	r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: ubcoll.AccessLocalWrite | ubcoll.AccessRemoteWrite | ubcoll.AccessRemoteRead |
		ubcoll.AccessRemoteAtomic})
	if err == nil {
		k.ch, err = p2p.Connect(ctx, c, k.peer, r)
	}
	if err == nil {
		k.sem, err = p2p.NewSemaphore(ctx, c, k.peer, ubcoll.Host)
	}
	if err == nil {
		k.w, err = c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	}
	if err == nil {
		k.s, err = ubcoll.NewStream(ubcoll.Host)
	}
	if err == nil {
		k.g, err = graph.Capture(ctx, c, func(g *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, g, b.Vec(), b.Vec(), ubcoll.Sum), coll.Barrier(ctx, g))
		})
	}
	return err
}

// counted are calls of both ranks, and how many operations they are.
var counted = []struct {
	name string
	call func(ctx context.Context, k *tools) error
	want int
}{
	{"nothing", func(context.Context, *tools) error { return nil }, 0},
	{"collective", func(ctx context.Context, k *tools) error { return coll.AllReduce(ctx, k.c, k.x, k.x, ubcoll.Sum) }, 1},
	{"collective on a stream", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return coll.Barrier(ctx, k.c.On(k.s)) }, func() error { return k.s.Sync(ctx) })
	}, 1},
	{"a copy, and Shrink of that", func(ctx context.Context, k *tools) error {
		d, err := k.c.Dup(ctx)
		if err != nil {
			return err
		}
		left, err := d.Shrink(ctx)
		if err != nil {
			return err
		}
		return errors.Join(d.Close(), left.Close())
	}, 2},
	{"send and receive", func(ctx context.Context, k *tools) error {
		if k.c.Rank() == 0 {
			return p2p.Send(ctx, k.c, 1, k.x)
		}
		return testkit.ErrOf(p2p.Recv(ctx, k.c, 0, k.x))
	}, 1},
	{"sendrecv", func(ctx context.Context, k *tools) error {
		return testkit.ErrOf(p2p.SendRecv(ctx, k.c, k.peer, k.y, k.peer, k.x))
	}, 1},
	{"requests", func(ctx context.Context, k *tools) error {
		s, err := p2p.ISend(ctx, k.c, k.peer, k.x)
		if err != nil {
			return err
		}
		r, err := p2p.IRecv(ctx, k.c, k.peer, k.y)
		if err != nil {
			return err
		}
		return errors.Join(s.Wait(ctx), r.Wait(ctx))
	}, 2},
	{"exchange", func(ctx context.Context, k *tools) error {
		var x p2p.Exchange
		x.Send(k.peer, k.x)
		x.Recv(k.peer, k.y)
		return x.Do(ctx, k.c)
	}, 1},
	{"messages on a stream", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return testkit.ErrOf(p2p.SendRecv(ctx, k.c.On(k.s), k.peer, k.y, k.peer, k.x)) },
			func() error { return k.s.Sync(ctx) })
	}, 1},
	{"group", func(ctx context.Context, k *tools) error { return ubcoll.Group(ctx, k.c, k.several(ctx, true)) }, 1},
	{"group of messages", func(ctx context.Context, k *tools) error { return ubcoll.Group(ctx, k.c, k.several(ctx, false)) }, 1},
	{"group on a stream", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return ubcoll.Group(ctx, k.c.On(k.s), k.several(ctx, true)) }, func() error { return k.s.Sync(ctx) })
	}, 1},
	{"graph", func(ctx context.Context, k *tools) error { return k.g.Launch(ctx) }, 1},
	{"split", func(ctx context.Context, k *tools) error {
		d, err := k.c.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		return testkit.InOrder(func() error { return coll.Barrier(ctx, d) }, d.Close)
	}, 2},
	{"window", func(ctx context.Context, k *tools) error {
		b, err := ubcoll.Alloc[int64](k.c, ubcoll.Host, 64)
		if err != nil {
			return err
		}
		w, err := k.c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
		if err == nil {
			err = w.Close()
		}
		return err
	}, 1},
	{"puts and gets of a channel", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(
			func() error { return k.ch.Put(ctx, 64, 0, 8) }, func() error { return k.ch.PutWithSignal(ctx, 72, 0, 8) },
			func() error { return k.ch.Get(ctx, 32, 0, 8) }, func() error { return k.ch.Flush(ctx) },
			func() error { return k.ch.Wait(ctx) }, func() error { return testkit.ErrOf(k.ch.Poll()) },
			func() error { return testkit.ErrOf(k.ch.FetchAdd(ctx, 400, 1)) })
	}, 6},
	{"packets", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return k.ch.PutPackets(ctx, 128, 0, 16, p2p.Packet8) },
			func() error { return k.ch.GetPackets(ctx, 480, 128, 16, p2p.Packet8) })
	}, 2},
	{"batch", func(ctx context.Context, k *tools) error {
		return k.ch.Batch(ctx, func(b *p2p.Channel) error {
			return errors.Join(b.Put(ctx, 64, 0, 8), b.Signal(ctx), b.Wait(ctx))
		})
	}, 3},
	{"channel on a stream", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return k.ch.On(k.s).Put(ctx, 64, 0, 8) }, func() error { return k.s.Sync(ctx) })
	}, 1},
	{"semaphore", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(func() error { return k.sem.Signal(ctx) }, func() error { return k.sem.Wait(ctx) })
	}, 2},
	{"window's calls", func(ctx context.Context, k *tools) error {
		return testkit.InOrder(
			func() error { return k.w.Put(ctx, k.peer, 256, k.x) }, func() error { return k.w.Get(ctx, k.peer, k.y, 0) },
			func() error { return k.w.Signal(ctx, k.peer) }, func() error { return k.w.Wait(ctx, k.peer) },
			func() error { return k.w.Flush(ctx) }, func() error { return testkit.ErrOf(k.w.FetchAdd(ctx, k.peer, 400, 1)) },
			func() error { return testkit.ErrOf(k.w.Peer(k.peer)) })
	}, 6},
}

// several makes messages, and collectives if all is set.
func (k *tools) several(ctx context.Context, all bool) func(g *ubcoll.Comm) error {
	return func(g *ubcoll.Comm) error {
		_, err := p2p.SendRecv(ctx, g, k.peer, k.y, k.peer, k.x)
		if all {
			z := ubcoll.Of(make([]int64, 1))
			err = errors.Join(err, coll.AllReduce(ctx, g, z, z, ubcoll.Sum), coll.Barrier(ctx, g))
		}
		return err
	}
}

// What counts as an operation: a fault comes after as many.
func TestOperations(t *testing.T) {
	const most = 60
	defer testkit.NoLeaks(t)()
	t.Setenv("UBCOLL_FAULT", "slow:rank=0,by=1ns,after=60")
	// begun returns how many operations rank 0 has begun when call is over.
	begun := func(call func(ctx context.Context, k *tools) error) (n int) {
		log, told := logger()
		err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Logger: log, Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
			var k tools
			err := k.open(ctx, c)
			if err == nil {
				err = call(ctx, &k)
			}
			for i := 0; i <= most && err == nil; i++ {
				if err = coll.Barrier(ctx, c); c.Rank() == 0 && n == 0 && strings.Contains(told(), "happens") {
					n = most - i
				}
			}
			return errors.Join(err, k.s.Close())
		})
		require.NoError(t, err)
		require.Positive(t, n, told())
		return n
	}
	before := begun(counted[0].call)
	t.Logf("%d to begin with", before)
	for _, c := range counted {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, begun(c.call)-before) })
	}
}
