//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestOnePost: a put is one work request in one call, inline if it is short enough; a batch is one call as well.
func TestOnePost(t *testing.T) {
	a, b := pair(t, config{work: 128, inline: 64})
	most := a.qp.Inline()
	require.GreaterOrEqual(t, most, 64)
	src, dst := memory(t, 8192), memory(t, 8192)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)

	var want verbs.PostCounts
	for _, n := range []int{1, 8, most, most + 1, 8192} {
		require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, n)))
		want.Calls++
		want.Work++
		if n <= most {
			want.Inline++
		}
		require.Equal(t, want, a.qp.Posted(), "%d bytes", n)
	}
	require.NoError(t, a.do(t, work(verbs.Read, mine, theirs, 8))) // carries no data to the peer
	want.Calls, want.Work = want.Calls+1, want.Work+1
	require.Equal(t, want, a.qp.Posted())

	// Inline data need no region, and their memory is free at once.
	loose := memory(t, 4096)
	copy(loose, "inline")
	w := work(verbs.Write, nil, theirs, 6)
	w.Local = uint64(address(loose))
	n, err := a.qp.Post(w)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	fill(loose, 0)
	c := a.next(t)
	require.NoError(t, a.cq.Failure(&c))
	require.Equal(t, "inline", string(dst[:6]))

	// 100 in one call; only the last completes.
	var batch []verbs.Work
	for i := range 100 {
		w := work(verbs.Write, mine, theirs, 64)
		w.Local, w.Remote = w.Local+uint64(64*i), w.Remote+uint64(64*i)
		w.Flags = 0
		batch = append(batch, w)
	}
	batch[99].Flags = verbs.Signaled
	pattern(src, 5)
	before := a.qp.Posted()
	n, err = a.qp.Post(batch...)
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.Equal(t, verbs.PostCounts{Calls: before.Calls + 1, Work: before.Work + 100, Inline: before.Inline + 100}, a.qp.Posted())
	c = a.next(t)
	require.NoError(t, a.cq.Failure(&c))
	require.Equal(t, batch[99].ID, c.ID)
	require.Equal(t, src[:6400], dst[:6400])
	_, more := a.poll(t, 20*time.Millisecond)
	require.False(t, more)
}

// TestNoInline: without Inline the processor never reads a message; it may not be able to.
func TestNoInline(t *testing.T) {
	a, b := pair(t, config{})
	require.Zero(t, a.qp.Inline())
	src, dst := memory(t, 4096), memory(t, 4096)
	pattern(src, 1)
	want := append([]byte(nil), src[:8]...)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
	require.NoError(t, unix.Mprotect(src, unix.PROT_NONE))
	require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 8)))
	if !overDouble() { // the double has no other way to read it
		require.Equal(t, want, dst[:8])
	}
	require.Zero(t, a.qp.Posted().Inline)
}

// TestAllocates: calls for each message allocate nothing.
func TestAllocates(t *testing.T) {
	a, b := pair(t, config{inline: 32})
	src, dst := memory(t, 4096), memory(t, 4096)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
	var done [1]verbs.Completion
	w := work(verbs.Write, mine, theirs, 8)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := a.qp.Post(w); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := a.cq.Poll(done[:], 1000)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				break
			}
		}
	})
	require.NoError(t, a.cq.Failure(&done[0]))
	require.Zero(t, allocs)
}

// TestFull: work beyond a queue's size is refused by name, nothing is lost, and the queue takes more once work has
// completed.
func TestFull(t *testing.T) {
	a, b := pair(t, config{work: 4, queue: 4096})
	src, dst := memory(t, 4096), memory(t, 4096)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
	// A send for which the peer has no receive keeps the work behind it in the queue.
	posted := 0
	var failed error
	for range 1000 {
		if _, failed = a.qp.Post(work(verbs.Send, mine, nil, 8)); failed != nil {
			break
		}
		posted++
	}
	require.ErrorIs(t, failed, fault.ErrLimit)
	require.ErrorContains(t, failed, "poll for completions")
	require.GreaterOrEqual(t, posted, 4)
	for range posted {
		_, err := b.qp.PostReceive(verbs.Receive{Local: theirs.Address(), Length: 64, Key: theirs.LKey()})
		require.NoError(t, err)
		c := b.next(t)
		require.NoError(t, b.cq.Failure(&c))
	}
	for range posted {
		c := a.next(t)
		require.NoError(t, a.cq.Failure(&c))
	}
	require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 8)))
}

// TestFlush: Fail completes all posted work.
func TestFlush(t *testing.T) {
	a, b := pair(t, config{})
	src := memory(t, 4096)
	mine := a.register(t, src, verbs.LocalWrite)
	for i := range 3 {
		_, err := a.qp.PostReceive(verbs.Receive{ID: uint64(i), Local: mine.Address(), Length: 64, Key: mine.LKey()})
		require.NoError(t, err)
	}
	require.NoError(t, a.qp.Fail())
	for i := range 3 {
		c := a.next(t)
		require.Equal(t, []any{uint64(i), verbs.Flushed}, []any{c.ID, c.Status})
		require.ErrorContains(t, a.cq.Failure(&c), "had failed before")
	}
	w := work(verbs.Write, mine, nil, 8)
	_, err := a.qp.Post(w)
	require.NoError(t, err)
	c := a.next(t)
	require.Equal(t, []any{w.ID, verbs.Flushed}, []any{c.ID, c.Status})
	again(t, a, b, config{})
	theirs := b.register(t, memory(t, 4096), verbs.LocalWrite|verbs.Remote)
	require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 8)))
}

// TestWhose: with separate queues, a failed receive is not mistaken for work with the same ID.
func TestWhose(t *testing.T) {
	e := newEnd(t, device(t), config{})
	other, err := e.device.CreateCQ(16, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	q, err := e.pd.CreateQP(verbs.QPConfig{Send: e.cq, Receive: other, Work: 4, Receives: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	address, err := q.Init(verbs.DefaultPath(), 0)
	require.NoError(t, err)
	require.NoError(t, q.Connect(address, "itself"))
	mine := e.register(t, memory(t, 4096), verbs.LocalWrite)
	_, err = q.PostReceive(verbs.Receive{ID: 7, Local: mine.Address(), Length: 64, Key: mine.LKey()})
	require.NoError(t, err)
	require.NoError(t, q.Fail())
	_, err = q.Post(verbs.Work{ID: 7, Op: verbs.Write, Flags: verbs.Signaled, Length: 8, Local: mine.Address(), Key: mine.LKey()})
	require.NoError(t, err)
	receives := *e
	receives.cq = other
	for _, c := range []struct {
		end  *end
		work bool
	}{{e, true}, {&receives, false}} {
		done := c.end.next(t)
		var failed *verbs.CompletionError
		require.ErrorAs(t, c.end.cq.Failure(&done), &failed)
		require.Equal(t, []any{verbs.Flushed, uint64(7), c.work}, []any{failed.Status, failed.ID, failed.Work != nil})
	}
}

// TestChannel: a completion wakes a waiter; a waiter can stop waiting.
func TestChannel(t *testing.T) {
	a, b := pair(t, config{})
	src, dst := memory(t, 4096), memory(t, 4096)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite)
	for round := range 20 {
		_, err := b.qp.PostReceive(verbs.Receive{ID: uint64(round), Local: theirs.Address(), Length: 64, Key: theirs.LKey()})
		require.NoError(t, err)
		require.NoError(t, b.cq.Notify(false))
		woken := make(chan error, 1)
		go func() { woken <- b.channel.Wait(t.Context()) }()
		binary.NativeEndian.PutUint64(src, uint64(round))
		require.NoError(t, a.do(t, work(verbs.Send, mine, nil, 8)))
		select {
		case err := <-woken:
			require.NoError(t, err)
		case <-time.After(testkit.Limit):
			t.Fatal("nobody was woken")
		}
		c := b.next(t)
		require.NoError(t, b.cq.Failure(&c))
		require.EqualValues(t, round, c.ID)
		require.EqualValues(t, round, word(dst))
	}
	t.Run("solicited only", func(t *testing.T) {
		require.NoError(t, b.cq.Notify(true))
		for _, flags := range []verbs.Flag{verbs.Signaled, verbs.Signaled | verbs.Solicited} {
			_, err := b.qp.PostReceive(verbs.Receive{Local: theirs.Address(), Length: 64, Key: theirs.LKey()})
			require.NoError(t, err)
			w := work(verbs.Send, mine, nil, 8)
			w.Flags = flags
			require.NoError(t, a.do(t, w))
			c := b.next(t)
			require.NoError(t, b.cq.Failure(&c))
			limit := 30 * time.Millisecond
			if flags&verbs.Solicited != 0 {
				limit = testkit.Limit
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err = b.channel.Wait(ctx)
			cancel()
			if flags&verbs.Solicited != 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.channel.Wait(ctx) }()
		cancel(fault.ErrAborted)
		require.ErrorIs(t, <-ended, fault.ErrAborted)
	})
}

// TestChannelClose: closing a channel ends a wait.
func TestChannelClose(t *testing.T) {
	d := device(t)
	c, err := d.CreateChannel()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- c.Wait(context.Background()) }()
	time.Sleep(5 * time.Millisecond) // so that it usually waits already; both orders must work
	require.GreaterOrEqual(t, c.FD(), 0)
	require.NoError(t, c.Close())
	require.Equal(t, -1, c.FD())
	require.ErrorIs(t, <-ended, fault.ErrClosed)
	require.ErrorIs(t, c.Wait(context.Background()), fault.ErrClosed)
}

// TestSharedReceives: two queue pairs take receives from one queue.
func TestSharedReceives(t *testing.T) {
	d := device(t)
	srv := newEnd(t, d, config{shared: 64})
	srq, err := srv.pd.CreateSRQ(32, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	require.GreaterOrEqual(t, srq.Size(), 32)
	dst := memory(t, 4096)
	theirs := srv.register(t, dst, verbs.LocalWrite)

	var clients []*end
	for range 2 {
		c := newEnd(t, d, config{})
		q, err := srv.pd.CreateQP(verbs.QPConfig{Send: srv.cq, Receive: srv.cq, Shared: srq, Work: 8})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close()) })
		_, err = q.PostReceive(verbs.Receive{})
		require.ErrorIs(t, err, fault.ErrArgument)
		addr, err := q.Init(verbs.DefaultPath(), verbs.Remote|verbs.LocalWrite)
		require.NoError(t, err)
		require.NoError(t, q.Connect(c.address, "client"))
		require.NoError(t, c.qp.Connect(addr, "server"))
		clients = append(clients, c)
	}
	const each = 8
	for i := range 2 * each {
		n, err := srq.Post(verbs.Receive{ID: uint64(i), Local: theirs.Address() + uint64(64*i), Length: 64, Key: theirs.LKey()})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	taken := map[uint64]bool{}
	for i := range 2 * each {
		c := clients[i%2]
		src := memory(t, 4096)
		binary.NativeEndian.PutUint64(src, uint64(1000+i))
		require.NoError(t, c.do(t, work(verbs.Send, c.register(t, src, 0), nil, 8)))
		done := srv.next(t)
		require.NoError(t, srv.cq.Failure(&done))
		require.False(t, taken[done.ID])
		taken[done.ID] = true
		require.EqualValues(t, 1000+i, word(dst[64*done.ID:]))
	}
}

// TestArguments: wrong arguments are refused before the library is called.
func TestArguments(t *testing.T) {
	d := device(t)
	e := newEnd(t, d, config{})
	other := newEnd(t, d, config{})
	srq, err := other.pd.CreateSRQ(4, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	qp := func(c verbs.QPConfig) error { _, err := e.pd.CreateQP(c); return err }
	fresh := func() *verbs.QP {
		q, err := e.pd.CreateQP(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close()) })
		return q
	}
	for _, c := range []struct {
		name string
		do   func() error
		says string
	}{
		{"a queue of nothing", func() error { _, err := d.CreateCQ(0, nil); return err }, "a completion queue of 0 entries"},
		{"a queue of too much", func() error { _, err := d.CreateCQ(1<<30, nil); return err }, "offers 1 to"},
		{"no queues", func() error { return qp(verbs.QPConfig{Work: 1}) }, "needs a completion queue"},
		{"no work", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq}) }, "0 work requests"},
		{"too much work", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1 << 30}) }, "offers 1 to"},
		{"receives below none", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1, Receives: -1}) }, "-1 receives"},
		{"inline below none", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1, Inline: -1}) }, "-1 bytes inline"},
		{"receives of both kinds", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1, Receives: 1, Shared: srq}) }, "beside a shared queue"},
		{"another domain's receives", func() error { return qp(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 1, Shared: srq}) }, "another protection domain"},
		{"a shared queue of nothing", func() error { _, err := e.pd.CreateSRQ(0, 0); return err }, "a shared receive queue of 0"},
		{"a limit above it", func() error { _, err := e.pd.CreateSRQ(4, 5); return err }, "limit 5"},
		{"no such port", func() error { _, err := d.Port(9); return err }, "has ports 1 to"},
		{"a P_Key of no port", func() error { _, err := d.PKey(257, 0); return err }, "has ports 1 to"},
		{"no such P_Key", func() error { _, err := d.PKey(1, 70000); return err }, "P_Key index 70000"},
		{"a P_Key below all", func() error { _, err := d.PKey(1, -1); return err }, "P_Key index -1"},
		{"no such device", func() error { _, err := verbs.Open("nothing0"); return err }, d.Name()},
		{"a port that is not there", func() error { p := verbs.DefaultPath(); p.Port = 9; _, err := fresh().Init(p, 0); return err }, "has ports 1 to"},
		{"a GID that is not there", func() error { p := verbs.DefaultPath(); p.GIDIndex = 200; _, err := fresh().Init(p, 0); return err }, "nothing at index 200"},
		{"access of a queue pair", func() error { _, err := fresh().Init(verbs.DefaultPath(), verbs.OnDemand); return err }, "ON_DEMAND"},
		{"Connect before Init", func() error { return fresh().Connect(other.address, "b") }, "Connect before Init"},
		{"a bad address", func() error { return fresh().Connect(verbs.Address{}, "b") }, "MTU"},
		{"another link", func() error {
			a := other.address
			a.Link, a.LID = 3-a.Link, 1
			return e.qp.Connect(a, "b")
		}, "its peer on"},
		{"an atomic of 4 bytes", func() error { _, err := e.qp.Post(verbs.Work{Op: verbs.FetchAdd, Length: 4, Local: 8}); return err }, "atomics have 8 bytes"},
		{"no operation", func() error { _, err := e.qp.Post(verbs.Work{Op: 99}); return err }, "operation 99"},
		{"flags", func() error { _, err := e.qp.Post(verbs.Work{Flags: 1 << 3}); return err }, "flags 0x8 are not"},
		{"no memory", func() error { _, err := e.qp.Post(verbs.Work{Length: 8}); return err }, "Local is 0"},
		{"no room", func() error { _, err := e.cq.Poll(nil, 1); return err }, "no room"},
		{"work before it is connected", func() error { _, err := fresh().Post(verbs.Work{Op: verbs.Write}); return err }, "is it connected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do()
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, c.says)
		})
	}
	bare, err := d.CreateCQ(4, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bare.Close()) })
	require.ErrorContains(t, bare.Notify(false), "has no channel")
	n, err := e.qp.Post()
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestNoReads: reads from a peer that answers none are refused: they, and all work behind them, would wait forever.
func TestNoReads(t *testing.T) {
	d := device(t)
	a, b := newEnd(t, d, config{}), newEnd(t, d, config{})
	b.address.ReadsIn = 0
	connect(t, a, b)
	mine, theirs := a.register(t, memory(t, 4096), verbs.LocalWrite), b.register(t, memory(t, 4096), verbs.LocalWrite|verbs.Remote)
	for _, op := range []verbs.Op{verbs.Read, verbs.FetchAdd, verbs.CompareSwap} {
		_, err := a.qp.Post(work(op, mine, theirs, 8))
		require.ErrorIs(t, err, hw.ErrNotSupported)
		require.ErrorContains(t, err, "ReadsIn")
	}
	require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 8)))
	again(t, a, b, config{})
	require.NoError(t, a.do(t, work(verbs.Read, mine, theirs, 8)))
}

// TestDevice: what a device says about itself.
func TestDevice(t *testing.T) {
	d := device(t)
	l := d.Limits()
	require.Positive(t, l.Ports)
	require.Positive(t, l.MaxMRBytes)
	require.Positive(t, l.QPs)
	p, err := d.Port(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, p.State)
	require.Contains(t, []int{256, 512, 1024, 2048, 4096}, p.MTU)
	require.Positive(t, p.MaxMessage)
	table, err := d.GIDs(1)
	require.NoError(t, err)
	_, err = verbs.ChooseGID(p.Link, table, -1)
	require.NoError(t, err)
	key, err := d.PKey(1, 0)
	require.NoError(t, err)
	require.NotZero(t, key)
	t.Logf("%s: %+v; %+v; %v; P_Key %#x", d.Name(), l, p, table, key)
}

// TestCounters: sent data shows in some counter.
func TestCounters(t *testing.T) {
	a, b := pair(t, config{})
	src := a.register(t, memory(t, 65536), 0)
	dst := b.register(t, memory(t, 65536), verbs.LocalWrite|verbs.Remote)
	before, err := a.device.Counters(1)
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, a.do(t, work(verbs.Write, src, dst, 65536)))
	}
	require.NotContains(t, before, "lifespan")
	require.Eventually(t, func() bool {
		after, err := a.device.Counters(1)
		for name, n := range after {
			if n > before[name] {
				return err == nil
			}
		}
		return false
	}, testkit.Limit, 5*time.Millisecond, "none of %v has grown", before)
}
