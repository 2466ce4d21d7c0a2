package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/p2p"
)

// region is one rank's memory for channels: what it sends in the first half, what it gets in the second.
type region struct {
	buf *ubcoll.Buffer[byte]
	reg *ubcoll.Registration
	mem []byte
}

func newRegion(c *ubcoll.Comm, n int) (*region, error) {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
	if err != nil {
		return nil, err
	}
	r, err := c.RegisterBuffer(b.Vec())
	if err != nil {
		return nil, err
	}
	return &region{b, r, b.Slice()}, nil
}

func (r *region) free() error { return errors.Join(r.reg.Close(), r.buf.Free()) }

// pattern is what a rank sends in a round.
func pattern(rank, round, n int) []byte {
	p := rand.New(rand.NewPCG(Seed(), uint64(rank)<<32|uint64(round)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(p.Uint32())
	}
	return b
}

// refused checks that err is the sentinel.
func refused(c *ubcoll.Comm, what string, err, want error) error {
	var e *ubcoll.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		return fail(c, "%s gave %v, not a *ubcoll.Error with %v", what, err, want)
	}
	return nil
}

// Handles sends handles around, whole and damaged, of memory that is there, gone and made anew.
func Handles(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	for _, f := range []Suite{wholeHandles, badHandles, staleHandles, adoptedHandles} {
		if err := f(ctx, c); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// swap is every rank's handle.
func swap(ctx context.Context, c *ubcoll.Comm, r *ubcoll.Registration) ([][]byte, error) {
	h, err := r.MarshalBinary()
	if err != nil {
		return nil, err
	}
	all := make([]byte, len(h)*c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
		return nil, err
	}
	var hs [][]byte
	for r := range c.Size() {
		hs = append(hs, all[r*len(h):][:len(h)])
	}
	return hs, nil
}

func wholeHandles(ctx context.Context, c *ubcoll.Comm) error {
	r, err := newRegion(c, 1000+c.Rank())
	if err != nil {
		return err
	}
	hs, err := swap(ctx, c, r.reg)
	if err != nil {
		return err
	}
	for p, h := range hs {
		m, err := c.Import(h)
		if p == c.Rank() {
			if err := refused(c, "one's own handle", err, ubcoll.ErrArgument); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if m.Rank() != p || m.Len() != 1000+p {
			return fail(c, "handle of rank %d: rank %d, %d bytes", p, m.Rank(), m.Len())
		}
		if err := m.Close(); err != nil {
			return err
		}
		if err := refused(c, "a second Close", m.Close(), ubcoll.ErrClosed); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return r.free()
}

func badHandles(ctx context.Context, c *ubcoll.Comm) error {
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	hs, err := swap(ctx, c, r.reg)
	if err != nil {
		return err
	}
	h := hs[(c.Rank()+1)%c.Size()]
	for n := range len(h) {
		what := fmt.Sprintf("%d bytes of a handle", n)
		if err := refused(c, what, second(c.Import(h[:n])), ubcoll.ErrArgument); err != nil {
			return err
		}
		bad := bytes.Clone(h)
		bad[n] ^= 1 << (n % 8)
		if m, err := c.Import(bad); err == nil {
			return fail(c, "a handle with byte %d changed was imported: %v", n, m.Rank())
		}
	}
	if err := refused(c, "a longer handle", second(c.Import(append(bytes.Clone(h), 0))), ubcoll.ErrArgument); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return r.free()
}

func second[T any](_ T, err error) error { return err }

// staleHandles has every rank free its memory and make other memory in its place. What peers knew of the first must not
// lead to the second.
func staleHandles(ctx context.Context, c *ubcoll.Comm) error {
	const n = 128 << 10
	reused := 0
	for round := range 4 {
		r, err := newRegion(c, n)
		if err != nil {
			return err
		}
		peer := c.Rank() ^ 1
		if peer >= c.Size() {
			peer = c.Rank()
		}
		hs, err := swap(ctx, c, r.reg)
		if err != nil {
			return err
		}
		var ch *p2p.Channel
		var m *ubcoll.Remote
		mine, err := newRegion(c, n)
		if err != nil {
			return err
		}
		if peer != c.Rank() {
			if m, err = c.Import(hs[peer]); err != nil {
				return err
			}
			if ch, err = p2p.NewChannel(ctx, c, mine.reg, m); err != nil {
				return err
			}
		}
		fill(r.mem, 0xAA)
		fill(mine.mem, 0x11)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		at := r.buf.Vec().Engine().Alloc.At
		// Round by round: freed; closed but kept; closed and registered again.
		if err := r.reg.Close(); err != nil {
			return err
		}
		var next *ubcoll.Buffer[byte]
		switch round % 2 {
		case 0:
			if err := r.buf.Free(); err != nil {
				return err
			}
			if next, err = ubcoll.Alloc[byte](c, ubcoll.Host, n); err != nil {
				return err
			}
			if to := next.Vec().Engine().Alloc.At; to.Arena == at.Arena && to.Offset == at.Offset {
				reused++
			}
		default:
			next = r.buf
		}
		again, err := c.RegisterBuffer(next.Vec())
		if err != nil {
			return err
		}
		if _, err := again.MarshalBinary(); err != nil {
			return err
		}
		fill(next.Slice(), 0x55)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if ch != nil {
			err := errors.Join(
				refused(c, "get from stale memory", ch.Get(ctx, 0, 0, n), ubcoll.ErrStale),
				refused(c, "put to stale memory", ch.Put(ctx, 0, 0, n), ubcoll.ErrStale),
				refused(c, "packets to stale memory", ch.PutPackets(ctx, 0, 0, n/2, p2p.Packet8), ubcoll.ErrStale),
				refused(c, "a stale handle", second(c.Import(hs[peer])), ubcoll.ErrStale),
				refused(c, "a channel on it", second(p2p.NewChannel(ctx, c, mine.reg, m)), ubcoll.ErrStale))
			if err != nil {
				return err
			}
			if !all(mine.mem, 0x11) {
				return fail(c, "bytes were read through a stale handle")
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if !all(next.Slice(), 0x55) {
			return fail(c, "bytes were written through a stale handle")
		}
		if ch != nil {
			if err := errors.Join(ch.Close(), m.Close()); err != nil {
				return err
			}
		}
		if err := errors.Join(again.Close(), next.Free(), mine.free()); err != nil {
			return err
		}
	}
	if reused == 0 && at(c) {
		return fail(c, "no arena offset was used again: the test shows nothing")
	}
	return nil
}

// at reports whether memory comes from arenas.
func at(c *ubcoll.Comm) bool { return !c.Engine().Domain().Heap.GoHeap() }

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func all(b []byte, v byte) bool {
	for _, x := range b {
		if x != v {
			return false
		}
	}
	return true
}

// adoptedHandles adopts memory of mmap at one address, twice: it cannot be exported, and says so.
func adoptedHandles(ctx context.Context, c *ubcoll.Comm) error {
	const n = 1 << 16
	var where unsafe.Pointer
	for range 2 {
		m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return err
		}
		where = unsafe.Pointer(&m[0])
		b, err := ubcoll.Adopt(c, ubcoll.Host, where, n)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		if err := refused(c, "a handle of adopted memory", second(r.MarshalBinary()), hw.ErrNotSupported); err != nil {
			return err
		}
		// A channel over it is refused on both ranks, at once.
		if peer := c.Rank() ^ 1; peer < c.Size() {
			start := time.Now()
			err := refused(c, "a channel over adopted memory", second(p2p.Connect(ctx, c, peer, r)), hw.ErrNotSupported)
			if err != nil {
				return err
			}
			if d := time.Since(start); d > 5*time.Second {
				return fail(c, "refused after %v", d)
			}
		}
		if err := refused(c, "a window of adopted memory", second(c.RegisterWindow(ctx, b.Vec(), 0)),
			hw.ErrNotSupported); err != nil {
			return err
		}
		if err := errors.Join(r.Close(), b.Free(), syscall.Munmap(m)); err != nil {
			return err
		}
	}
	return nil
}

// Channels connects every pair of ranks, and moves data both ways in all manners.
func Channels(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	for _, f := range []Suite{channelData, channelOrder, channelMany, channelLimits, channelWaits, channelEnds,
		channelStream} {
		if err := f(ctx, c); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

const half = 3 << 20

// channelData puts, gets and sends packets between all pairs at once, one goroutine a pair.
func channelData(ctx context.Context, c *ubcoll.Comm) error {
	var wg sync.WaitGroup
	errs := make([]error, c.Size())
	regions := make([]*region, c.Size())
	for p := range c.Size() {
		if p == c.Rank() {
			continue
		}
		var err error
		if regions[p], err = newRegion(c, 2*half+4096); err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, p, regions[p].reg)
		if err != nil {
			return err
		}
		wg.Go(func() {
			if errs[p] = exchangeData(ctx, c, ch, regions[p].mem); errs[p] == nil {
				errs[p] = ch.Close()
			}
		})
	}
	wg.Wait()
	for _, r := range regions {
		if r != nil {
			errs = append(errs, r.free())
		}
	}
	return errors.Join(errs...)
}

func exchangeData(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel, mem []byte) error {
	peer := ch.Peer()
	sizes := []int{0, 1, 3, 7, 8, 9, 63, 64, 65, 1000, 4096, 4097, 65536, 65537, 1 << 20}
	for round, n := range sizes {
		off, to := round%3, half+round%5 // both aligned and not
		sent, want := pattern(c.Rank(), round, n), pattern(peer, round, n)
		same := func(what string, at int) error {
			if !bytes.Equal(mem[at:at+n], want) {
				return fail(c, "%s of %d bytes from rank %d: wrong data", what, n, peer)
			}
			return nil
		}
		copy(mem[off:], sent)
		// A put, with its signal or before it.
		var err error
		if round%2 == 0 {
			err = ch.PutWithSignal(ctx, to, off, n)
		} else {
			err = errors.Join(ch.Put(ctx, to, off, n), ch.Flush(ctx), ch.Signal(ctx))
		}
		if err = errors.Join(err, ch.Wait(ctx), same("put", to)); err != nil {
			return err
		}
		// A get, once the peer has seen the put.
		clear(mem[half:])
		err = errors.Join(ch.RelaxedSignal(ctx), ch.Wait(ctx), ch.Get(ctx, to, off, n), same("get", to))
		if err != nil {
			return err
		}
		for _, w := range []p2p.PacketWidth{p2p.Packet8, p2p.Packet16} {
			// Neither rank may overwrite what the other still reads.
			if err := errors.Join(ch.Signal(ctx), ch.Wait(ctx)); err != nil {
				return err
			}
			land, out := half+64*(round%2), half+64+2*(1<<20)+8
			if err := errors.Join(ch.PutPackets(ctx, land, off, n, w), ch.GetPackets(ctx, out, land, n, w),
				same("packets", out)); err != nil {
				return err
			}
		}
		if err := errors.Join(ch.Signal(ctx), ch.Wait(ctx)); err != nil {
			return err
		}
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return fail(c, "a signal is left: %v %v", ok, err)
	}
	return nil
}

// neighbour is who a rank has to itself, or -1.
func neighbour(c *ubcoll.Comm) int {
	if p := c.Rank() ^ 1; p < c.Size() {
		return p
	}
	return -1
}

// channelOrder makes several channels between two ranks: the k-th belongs to the k-th. And more than there is room for
// one after the other.
func channelOrder(ctx context.Context, c *ubcoll.Comm) error {
	peer := neighbour(c)
	if peer < 0 {
		return nil
	}
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	var chs []*p2p.Channel
	for range 5 {
		ch, err := p2p.Connect(ctx, c, peer, r.reg)
		if err != nil {
			return err
		}
		chs = append(chs, ch)
	}
	for i := range chs {
		r.mem[i] = byte(10*c.Rank() + i)
	}
	for i, ch := range chs {
		if err := ch.PutWithSignal(ctx, 100+i, i, 1); err != nil {
			return err
		}
		for range i {
			if err := ch.Signal(ctx); err != nil {
				return err
			}
		}
	}
	for i := len(chs) - 1; i >= 0; i-- {
		for range i + 1 {
			if err := chs[i].Wait(ctx); err != nil {
				return err
			}
		}
		if r.mem[100+i] != byte(10*peer+i) {
			return fail(c, "channel %d brought %d", i, r.mem[100+i])
		}
		if ok, err := chs[i].Poll(); ok || err != nil {
			return fail(c, "channel %d has a signal more: %v", i, err)
		}
	}
	for _, ch := range chs {
		if err := ch.Close(); err != nil {
			return err
		}
	}
	for k := range 1200 {
		ch, err := p2p.Connect(ctx, c, peer, r.reg)
		if err != nil {
			return fmt.Errorf("channel %d: %w", k, err)
		}
		if err := errors.Join(ch.Signal(ctx), ch.Wait(ctx), ch.Close()); err != nil {
			return err
		}
	}
	return r.free()
}

// channelMany makes all channels that there is room for, and one more.
func channelMany(ctx context.Context, c *ubcoll.Comm) error {
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	var chs []*p2p.Channel
	for peer := neighbour(c); peer >= 0; {
		ch, err := p2p.Connect(ctx, c, peer, r.reg)
		if err != nil {
			if err := refused(c, "a channel too many", err, ubcoll.ErrLimit); err != nil {
				return err
			}
			if len(chs) != 512 {
				return fail(c, "%d channels are the limit", len(chs))
			}
			break
		}
		chs = append(chs, ch)
	}
	for _, ch := range chs {
		if err := ch.Close(); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil { // both ends must be closed
		return err
	}
	if peer := neighbour(c); peer >= 0 {
		ch, err := p2p.Connect(ctx, c, peer, r.reg)
		if err != nil {
			return err
		}
		if err := errors.Join(ch.Signal(ctx), ch.Wait(ctx), ch.Close()); err != nil {
			return err
		}
	}
	return r.free()
}

// channelLimits goes out of bounds on either side.
func channelLimits(ctx context.Context, c *ubcoll.Comm) error {
	peer := neighbour(c)
	if peer < 0 {
		return nil
	}
	sizes := []int{4096, 8192}
	r, err := newRegion(c, sizes[c.Rank()&1])
	if err != nil {
		return err
	}
	mine, theirs := sizes[c.Rank()&1], sizes[peer&1]
	ch, err := p2p.Connect(ctx, c, peer, r.reg)
	if err != nil {
		return err
	}
	const huge = 1<<63 - 1
	for _, k := range []struct {
		name    string
		dst, n  int
		src     int
		forGets bool
	}{
		{name: "past the end there", dst: theirs, n: 1},
		{name: "across the end there", dst: theirs - 10, n: 11},
		{name: "before the start there", dst: -1, n: 1},
		{name: "past the end here", src: mine, n: 1},
		{name: "across the end here", src: mine - 10, n: 11},
		{name: "before the start here", src: -1, n: 1},
		{name: "negative size", n: -1},
		{name: "huge size", n: huge},
		{name: "huge offset there", dst: huge, n: 1},
		{name: "huge offset here", src: huge, n: 1},
		{name: "sum overflows", dst: huge, src: huge, n: huge},
	} {
		for what, err := range map[string]error{
			"put":     ch.Put(ctx, k.dst, k.src, k.n),
			"signal":  ch.PutWithSignal(ctx, k.dst, k.src, k.n),
			"get":     ch.Get(ctx, k.src, k.dst, k.n),
			"packets": ch.PutPackets(ctx, k.dst, k.src, k.n, p2p.Packet16),
		} {
			if err := refused(c, what+" "+k.name, err, ubcoll.ErrArgument); err != nil {
				return err
			}
		}
	}
	for what, err := range map[string]error{
		"packets across the end": ch.PutPackets(ctx, theirs-16, 0, 9, p2p.Packet16),
		"packets not aligned":    ch.PutPackets(ctx, 4, 0, 8, p2p.Packet8),
		"packets of no width":    ch.PutPackets(ctx, 0, 0, 8, 12),
		"packets onto packets":   ch.GetPackets(ctx, 8, 0, 64, p2p.Packet8),
		"a bad rank":             second(p2p.Connect(ctx, c, c.Size(), r.reg)),
		"a negative rank":        second(p2p.Connect(ctx, c, -1, r.reg)),
		"its own rank":           second(p2p.Connect(ctx, c, c.Rank(), r.reg)),
		"no registration":        second(p2p.Connect(ctx, c, peer, nil)),
		"no remote memory":       second(p2p.NewChannel(ctx, c, r.reg, nil)),
	} {
		if err := refused(c, what, err, ubcoll.ErrArgument); err != nil {
			return err
		}
	}
	// All of it still works, and the peer's one signal is the only one.
	if err := errors.Join(ch.PutWithSignal(ctx, theirs-1, 0, 1), ch.Wait(ctx)); err != nil {
		return err
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return fail(c, "something that was refused has signalled: %v", err)
	}
	if !all(r.mem, 0) {
		return fail(c, "something that was refused has written")
	}
	if err := ch.Close(); err != nil {
		return err
	}
	return r.free()
}

// channelWaits lets waits end without a signal.
func channelWaits(ctx context.Context, c *ubcoll.Comm) error {
	peer := neighbour(c)
	if peer < 0 {
		return nil
	}
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(ctx, c, peer, r.reg)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := refused(c, "a wait", ch.Wait(short), context.DeadlineExceeded); err != nil {
		return err
	}
	if d := time.Since(start); d > 2*time.Second {
		return fail(c, "a wait of 30 ms took %v", d)
	}
	if err := refused(c, "packets", ch.GetPackets(short, 2048, 0, 8, p2p.Packet8), context.DeadlineExceeded); err != nil {
		return err
	}
	if c.Err() != nil {
		return c.Err()
	}
	// The signal that comes later is taken, once; the packets too.
	copy(r.mem[1024:], []byte("a packet"))
	if err := errors.Join(ch.PutPackets(ctx, 0, 1024, 8, p2p.Packet8), ch.GetPackets(ctx, 2048, 0, 8, p2p.Packet8),
		ch.Signal(ctx), ch.Wait(ctx)); err != nil {
		return err
	}
	if string(r.mem[2048:2056]) != "a packet" {
		return fail(c, "packets brought %q", r.mem[2048:2056])
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return fail(c, "a second signal: %v", err)
	}
	// A Close from another goroutine ends it.
	time.AfterFunc(20*time.Millisecond, func() { ch.Close() })
	if err := refused(c, "a wait on a channel that is closed", ch.Wait(ctx), ubcoll.ErrClosed); err != nil {
		return err
	}
	return r.free()
}

// channelEnds uses what is closed, here or there.
func channelEnds(ctx context.Context, c *ubcoll.Comm) error {
	peer := neighbour(c)
	if peer < 0 {
		return nil
	}
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(ctx, c, peer, r.reg)
	if err != nil {
		return err
	}
	if c.Rank() < peer {
		// Two signals, and the end.
		if err := errors.Join(ch.Signal(ctx), ch.Signal(ctx), ch.Close()); err != nil {
			return err
		}
		for what, err := range map[string]error{
			"put": ch.Put(ctx, 0, 0, 1), "get": ch.Get(ctx, 0, 0, 1), "signal": ch.Signal(ctx), "wait": ch.Wait(ctx),
			"flush": ch.Flush(ctx), "poll": second(ch.Poll()), "close": ch.Close(),
			"packets": ch.PutPackets(ctx, 0, 0, 8, p2p.Packet8), "take": ch.GetPackets(ctx, 0, 64, 8, p2p.Packet8),
		} {
			if err := refused(c, what+" after Close", err, ubcoll.ErrClosed); err != nil {
				return err
			}
		}
	} else {
		if err := errors.Join(ch.Wait(ctx), ch.Wait(ctx)); err != nil {
			return err
		}
		if err := refused(c, "a wait for one who has closed", ch.Wait(ctx), ubcoll.ErrClosed); err != nil {
			return err
		}
		if err := ch.Close(); err != nil {
			return err
		}
	}
	// A registration closed under a channel is stale here and there.
	if ch, err = p2p.Connect(ctx, c, peer, r.reg); err != nil {
		return err
	}
	if c.Rank() < peer {
		if err := errors.Join(r.reg.Close(), ch.Signal(ctx), ch.Wait(ctx)); err != nil {
			return err
		}
	} else if err := errors.Join(ch.Wait(ctx), ch.Signal(ctx)); err != nil {
		return err
	}
	if err := errors.Join(refused(c, "put", ch.Put(ctx, 0, 0, 1), ubcoll.ErrStale),
		refused(c, "get", ch.Get(ctx, 0, 0, 1), ubcoll.ErrStale)); err != nil {
		return err
	}
	// Memory with an open registration cannot be freed.
	if c.Rank() > peer {
		if err := refused(c, "free", r.buf.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		if err := errors.Join(r.reg.Close()); err != nil {
			return err
		}
	}
	return errors.Join(ch.Close(), r.buf.Free())
}

// channelStream queues a channel's operations.
func channelStream(ctx context.Context, c *ubcoll.Comm) error {
	peer := neighbour(c)
	if peer < 0 {
		return nil
	}
	r, err := newRegion(c, 4096)
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(ctx, c, peer, r.reg)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	q := ch.On(s)
	copy(r.mem, pattern(c.Rank(), 1, 64))
	for k := range 10 {
		if err := errors.Join(q.Put(ctx, 1000+100*k, k, 50), q.Signal(ctx), q.Wait(ctx)); err != nil {
			return err
		}
	}
	if err := errors.Join(q.PutPackets(ctx, 2048, 0, 64, p2p.Packet16), q.GetPackets(ctx, 3000, 2048, 64, p2p.Packet16),
		s.Sync(ctx)); err != nil {
		return err
	}
	want := pattern(peer, 1, 64)
	for k := range 10 {
		if at := 1000 + 100*k; at+50 <= 2048 && !bytes.Equal(r.mem[at:at+50], want[k:k+50]) {
			return fail(c, "put %d on a stream: wrong data", k)
		}
	}
	if !bytes.Equal(r.mem[3000:3064], want) {
		return fail(c, "packets on a stream: wrong data")
	}
	if err := q.Put(ctx, -1, 0, 1); err != nil {
		return err
	}
	if err := refused(c, "the stream's error", s.Sync(ctx), ubcoll.ErrArgument); err != nil {
		return err
	}
	return errors.Join(s.Close(), ch.Close(), r.free())
}
