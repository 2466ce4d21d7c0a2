package onesided

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Revocations makes CONFORM_REVOCATIONS tries. In each, one rank takes memory back that all others access, on this host
// and on others: while their calls are under way, or before they come with a stale handle; or it has granted less than
// they do. Each call either is complete before the memory is taken back, or is refused by name. The memory's next owner
// finds only what it wrote, and a get that succeeds has only what the first owner wrote.
func Revocations(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	tries, err := conform.Number("CONFORM_REVOCATIONS", 100)
	if err != nil {
		return err
	}
	r := &revocations{ctx: ctx, c: c, sems: make([]*p2p.Semaphore, c.Size()), bank: conform.Pattern(0, 0, 1<<20),
		all: rand.New(rand.NewPCG(conform.Seed(), 7)), mine: rand.New(rand.NewPCG(conform.Seed(), 700+uint64(c.Rank())))}
	if r.scratch, err = conform.NewRegion(c, 3*mostLane); err != nil {
		return err
	}
	for p := range c.Size() {
		if p == c.Rank() {
			continue
		}
		if r.sems[p], err = p2p.NewSemaphore(ctx, c, p, ubcoll.Host); err != nil {
			return err
		}
	}
	counts := map[string]int{}
	for k := range tries {
		x := r.draw(k)
		if err := r.try(x); err != nil {
			return conform.Fail(c, "try %d (%v): %w", k, x, err)
		}
		counts[x.how]++
	}
	// All ranks are done with this rank's ends only after a barrier.
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("took back in %v tries, during %d calls that were refused and %d that went well\n", counts, r.refused, r.well)
	}
	errs := []error{r.scratch.Free()}
	for _, s := range r.sems {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

const (
	mostLane = 4 << 20
	words    = 16 // that a rank accumulates to
)

// revocations is what one rank has in all tries.
type revocations struct {
	ctx       context.Context
	c         *ubcoll.Comm
	all, mine *rand.Rand // the same on all ranks, and this rank's own
	sems      []*p2p.Semaphore
	scratch   *conform.Region // what is put, and what is got
	bank      []byte          // random bytes

	mu            sync.Mutex // guards the fields below
	well, refused int
	err           error
}

// revocation is one try.
type revocation struct {
	how     string
	owner   int
	lane    int  // bytes
	shift   int  // of the lanes, from where they would be aligned
	window  bool // there is one, too
	again   bool // the next owner registers the memory, too
	bytes   int  // of the memory
	from    int  // where the old content begins in the bank
	handle  []byte
	remote  *ubcoll.Remote
	chs     []*p2p.Channel // to the remote memory
	win     *ubcoll.Window
	reached [numReached]uint64 // by this rank
}

// What a rank has reached with the calls of a try: for each kind of data how much is sure to be in the memory, and how much
// may be.
const (
	sureChannelPut = iota
	mayChannelPut
	sureChannelAdd
	mayChannelAdd
	sureWindowPut
	mayWindowPut
	sureWindowAdd
	mayWindowAdd
	sureAccumulated
	mayAccumulated
	numReached
)

func (x *revocation) String() string {
	return fmt.Sprintf("%s: memory of rank %d, lanes of %d bytes, window %v", x.how, x.owner, x.lane, x.window)
}

func (r *revocations) draw(k int) *revocation {
	x := &revocation{owner: k % r.c.Size(), shift: r.all.IntN(16), window: r.all.IntN(2) == 0, again: r.all.IntN(2) == 0,
		from: r.all.IntN(len(r.bank))}
	x.how = []string{"stale", "under way", "under way", "a put under way", "read-only"}[r.all.IntN(5)]
	x.lane = 1 + r.all.IntN([]int{1, 64, 4096, 4096, 100_000, 100_000, 1 << 20, mostLane}[r.all.IntN(8)])
	if x.how == "a put under way" { // so large that it is, almost surely
		x.window, x.lane = false, mostLane/4*(1+r.all.IntN(4))
	}
	if race.Enabled { // filling and comparing takes long
		x.lane = min(x.lane, 256<<10)
	}
	x.bytes = x.at(r.c.Size(), 0, 0)
	return x
}

// The memory has a part that others read, and then for each rank: lanes for puts of a channel and a window, one for
// packets, and words.
const (
	laneChannel = iota
	laneWindow
	lanePackets
	laneWords
	numLanes
)

// at returns where byte i of a rank's lane is.
func (x *revocation) at(rank, lane, i int) int {
	wide := (x.lane + 16 + 15) &^ 15
	base := wide + rank*(4*wide+8*(words+2))
	switch lane {
	case laneChannel, laneWindow:
		return base + lane*wide + x.shift + i
	case lanePackets:
		return base + 2*wide + i
	}
	return base + 4*wide + i
}

// old is the content of the part that others read.
func (r *revocations) old(x *revocation, at, n int) []byte { return r.tile(x.from+at, n) }

// tile returns n bytes of the bank, which begins again at its end.
func (r *revocations) tile(from, n int) []byte {
	b := make([]byte, 0, n+len(r.bank))
	for from %= len(r.bank); len(b) < n; from = 0 {
		b = append(b, r.bank[from:min(len(r.bank), from+n-len(b))]...)
	}
	return b
}

func (r *revocations) try(x *revocation) error {
	owns := r.c.Rank() == x.owner
	buf, err := ubcoll.Alloc[byte](r.c, ubcoll.Host, x.bytes)
	if err != nil {
		return err
	}
	if owns {
		clear(buf.Slice())
		copy(buf.Slice(), r.old(x, 0, x.lane))
	}
	var reg *ubcoll.Registration
	x.handle = make([]byte, 256)
	if owns {
		access := ubcoll.AccessLocalWrite | ubcoll.AccessRemoteRead
		if x.how != "read-only" {
			access |= ubcoll.AccessRemoteWrite | ubcoll.AccessRemoteAtomic
		}
		if reg, err = r.c.RegisterWith(buf.Vec(), ubcoll.RegisterOptions{Access: access}); err != nil {
			return err
		}
		h, err := reg.MarshalBinary()
		if err != nil {
			return err
		}
		x.handle[0] = byte(len(h))
		copy(x.handle[1:], h)
	}
	if err := coll.Broadcast(r.ctx, r.c, ubcoll.Of(x.handle), x.owner); err != nil {
		return err
	}
	x.handle = x.handle[1:][:x.handle[0]]
	if x.window {
		if x.win, err = r.c.RegisterWindow(r.ctx, buf.Vec(), ubcoll.WindowAtomic); err != nil {
			return err
		}
	}
	if !owns {
		if x.remote, err = r.c.Import(x.handle); err != nil {
			return err
		}
		for range 4 {
			ch, err := r.sems[x.owner].Channel(r.scratch.Reg, x.remote)
			if err != nil {
				return err
			}
			x.chs = append(x.chs, ch)
		}
	}
	if err := coll.Barrier(r.ctx, r.c); err != nil {
		return err
	}
	if owns {
		err = r.own(x, buf, reg)
	} else {
		err = r.access(x)
		err = errors.Join(err, x.remote.Close())
		if x.win != nil {
			err = errors.Join(err, x.win.Close())
		}
		err = errors.Join(err, buf.Free())
	}
	return err
}

// own is the owner's part of a try.
func (r *revocations) own(x *revocation, buf *ubcoll.Buffer[byte], reg *ubcoll.Registration) error {
	if x.how == "read-only" { // the others try before it is closed
		if err := coll.Barrier(r.ctx, r.c); err != nil {
			return err
		}
	}
	if strings.HasSuffix(x.how, "under way") {
		r.pause(1500)
	}
	acts := []func() error{reg.Close}
	if x.win != nil {
		acts = append(acts, x.win.Close)
	}
	r.mine.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	for _, close := range acts {
		if err := close(); err != nil && !errors.Is(err, ubcoll.ErrTimeout) { // a peer on this host got no processor
			return err
		}
		r.pause(100)
	}
	last := bytes.Clone(buf.Slice())
	if err := buf.Free(); err != nil {
		return err
	}
	next, err := ubcoll.Alloc[byte](r.c, ubcoll.Host, x.bytes)
	if err != nil {
		return err
	}
	want := r.tile(x.from+7777, x.bytes)
	copy(next.Slice(), want)
	var again *ubcoll.Registration
	if x.again {
		if again, err = r.c.RegisterBuffer(next.Vec()); err != nil {
			return err
		}
	}
	if x.how == "stale" {
		if err := coll.Barrier(r.ctx, r.c); err != nil {
			return err
		}
	}
	rows, err := r.gather(x)
	if err != nil {
		return err
	}
	if got := next.Slice(); !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		return fmt.Errorf("memory allocated afterwards was written to at %d of %d", at, len(got))
	}
	if err := r.compare(x, last, rows); err != nil {
		return err
	}
	if again != nil {
		err = again.Close()
	}
	return errors.Join(err, next.Free())
}

// gather waits until all ranks' calls have ended, and returns what they have reached.
func (r *revocations) gather(x *revocation) ([]uint64, error) {
	rows := make([]uint64, numReached*r.c.Size())
	return rows, coll.AllGather(r.ctx, r.c, ubcoll.Of(rows), ubcoll.Of(x.reached[:]))
}

// compare compares what was in the memory when it was taken back with what the others know.
func (r *revocations) compare(x *revocation, last []byte, rows []uint64) error {
	if !bytes.Equal(last[:x.lane], r.old(x, 0, x.lane)) {
		return errors.New("what others only read has changed")
	}
	for p := range r.c.Size() {
		row := rows[numReached*p:]
		within := func(what string, got, sure, may uint64) error {
			if got < sure || got > may {
				return fmt.Errorf("%s of rank %d: %d, not %d to %d", what, p, got, sure, may)
			}
			return nil
		}
		var errs []error
		for _, k := range []struct{ lane, sure int }{{laneChannel, sureChannelPut}, {laneWindow, sureWindowPut}} {
			b := last[x.at(p, k.lane, 0):][:x.lane]
			errs = append(errs, within("least of the puts", uint64(slices.Min(b)), row[k.sure], row[k.sure+1]),
				within("most of the puts", uint64(slices.Max(b)), row[k.sure], row[k.sure+1]))
		}
		word := func(i int) uint64 { return binary.LittleEndian.Uint64(last[x.at(p, laneWords, 8*i):]) }
		errs = append(errs, within("a channel's additions", word(0), row[sureChannelAdd], row[mayChannelAdd]),
			within("a window's additions", word(1), row[sureWindowAdd], row[mayWindowAdd]))
		for i := range words {
			errs = append(errs, within("accumulates", word(2+i), row[sureAccumulated], row[mayAccumulated]))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// access is the others' part of a try.
func (r *revocations) access(x *revocation) error {
	var err error
	switch x.how {
	case "stale":
		if err = coll.Barrier(r.ctx, r.c); err == nil {
			err = r.stale(x, x.chs[0])
		}
	case "read-only":
		if err = r.readOnly(x, x.chs[0]); err == nil {
			err = coll.Barrier(r.ctx, r.c)
		}
	default:
		r.underWay(x)
		err = r.err
	}
	// What this rank has sent has arrived, or was refused, before the owner looks.
	for _, ch := range x.chs {
		if e := ch.Flush(r.ctx); e != nil && !errors.Is(e, ubcoll.ErrStale) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return err
	}
	if _, err := r.gather(x); err != nil {
		return err
	}
	var errs []error
	for _, ch := range x.chs {
		errs = append(errs, ch.Close())
	}
	return errors.Join(errs...)
}

// stale uses a handle and what was made of it after the owner has closed the registration.
func (r *revocations) stale(x *revocation, ch *p2p.Channel) error {
	_, err := r.c.Import(x.handle)
	errs := []error{conform.Refused(r.c, "import of a stale handle", err, ubcoll.ErrStale)}
	n := 1 + r.mine.IntN(x.lane)
	calls := []struct {
		name string
		do   func() error
	}{
		{"put", func() error {
			if err := ch.Put(r.ctx, x.at(r.c.Rank(), laneChannel, 0), 0, n); err != nil {
				return err
			}
			return ch.Flush(r.ctx)
		}},
		{"packets", func() error {
			if err := ch.PutPackets(r.ctx, x.at(r.c.Rank(), lanePackets, 0), 0, 4, p2p.Packet8); err != nil {
				return err
			}
			return ch.Flush(r.ctx)
		}},
		{"get", func() error { return ch.Get(r.ctx, mostLane, 0, n) }},
		{"fetch_add", func() error { return testkit.ErrOf(ch.FetchAdd(r.ctx, x.at(r.c.Rank(), laneWords, 0), 1)) }},
	}
	r.mine.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, k := range calls {
		errs = append(errs, conform.Refused(r.c, k.name, k.do(), ubcoll.ErrStale))
	}
	if x.win != nil {
		errs = append(errs, conform.Refused(r.c, "a window's put", testkit.InOrder(
			func() error {
				return x.win.Put(r.ctx, x.owner, x.at(r.c.Rank(), laneWindow, 0), ubcoll.Of(r.scratch.Mem[:n]))
			},
			func() error { return x.win.Flush(r.ctx) }), ubcoll.ErrStale),
			conform.Refused(r.c, "a window's accumulate", testkit.InOrder(
				func() error {
					return x.win.Accumulate(r.ctx, x.owner, x.at(r.c.Rank(), laneWords, 16), ubcoll.Of([]uint64{1}), ubcoll.Sum)
				},
				func() error { return x.win.Flush(r.ctx) }), ubcoll.ErrStale))
	}
	return errors.Join(errs...)
}

// readOnly does what was not granted. Between hosts the owner refuses it, too, in case that a rank believes that it may.
func (r *revocations) readOnly(x *revocation, ch *p2p.Channel) error {
	n := 1 + r.mine.IntN(x.lane)
	me := r.c.Rank()
	put := func() error { return ch.Put(r.ctx, x.at(me, laneChannel, 0), 0, n) }
	packets := func() error { return ch.PutPackets(r.ctx, x.at(me, lanePackets, 0), 0, 4, p2p.Packet16) }
	add := func() error { return testkit.ErrOf(ch.FetchAdd(r.ctx, x.at(me, laneWords, 0), 1)) }
	errs := []error{conform.Refused(r.c, "put", put(), ubcoll.ErrArgument),
		conform.Refused(r.c, "packets", packets(), ubcoll.ErrArgument),
		conform.Refused(r.c, "fetch_add", add(), ubcoll.ErrArgument), ch.Flush(r.ctx)}
	if err := ch.Get(r.ctx, mostLane, 0, n); err != nil {
		errs = append(errs, err)
	}
	if !bytes.Equal(r.scratch.Mem[mostLane:][:n], r.old(x, 0, n)) {
		errs = append(errs, errors.New("a get: wrong data"))
	}
	if conform.Far(r.c, x.owner) {
		(*inside.Remote)(x.remote).Onesided().Access = engine.RemoteRead | engine.RemoteWrite | engine.RemoteAtomic
		calls := []func() error{put, packets, add}
		r.mine.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		for _, do := range calls {
			err := do()
			if err == nil {
				err = ch.Flush(r.ctx)
			}
			if !errors.Is(err, ubcoll.ErrArgument) { // the owner says why only in answers
				errs = append(errs, conform.Refused(r.c, "what was not granted, forced", err, ubcoll.ErrStale))
			}
		}
	}
	return errors.Join(errs...)
}

// underWay calls until the memory is taken back.
func (r *revocations) underWay(x *revocation) {
	const most = 250 // calls: less than a byte counts
	var wg sync.WaitGroup
	flow := func(do func(pick *rand.Rand, k uint64) error) {
		pick := rand.New(rand.NewPCG(r.mine.Uint64(), 0))
		wg.Go(func() {
			for k := uint64(1); k <= most; k++ {
				if err := do(pick, k); err != nil || r.failed() {
					r.note(err)
					return
				}
				r.note(nil)
			}
		})
	}
	me, ctx := r.c.Rank(), r.ctx
	reached := func(sure int, k uint64, err error, flush func() error) error {
		x.reached[sure+1] = k
		if err == nil && flush != nil {
			err = flush()
		}
		if err == nil && flush != nil {
			x.reached[sure] = k
		}
		return err
	}
	// flushes returns how a call is known to be complete, or nil if this time it is not asked.
	flushes := func(pick *rand.Rand, flush func(ctx context.Context) error) func() error {
		if pick.IntN(3) > 0 {
			return nil
		}
		return func() error { return flush(ctx) }
	}
	src := r.scratch.Mem[:x.lane]
	flow(func(pick *rand.Rand, k uint64) error { // the source changes as soon as Put has returned
		fill(src, byte(k))
		x.reached[mayChannelPut] = k
		return reached(sureChannelPut, k, x.chs[0].Put(ctx, x.at(me, laneChannel, 0), 0, x.lane), flushes(pick, x.chs[0].Flush))
	})
	if x.how == "a put under way" {
		wg.Wait()
		return
	}
	flow(func(pick *rand.Rand, _ uint64) error {
		at := pick.IntN(x.lane)
		n := x.lane - at
		if err := x.chs[1].Get(ctx, mostLane, at, n); err != nil {
			return err
		}
		if !bytes.Equal(r.scratch.Mem[mostLane:][:n], r.old(x, at, n)) {
			return errors.New("a get: wrong data")
		}
		return nil
	})
	flow(func(pick *rand.Rand, _ uint64) error {
		n := max((1+pick.IntN(x.lane))&^3, 4)
		return x.chs[2].PutPackets(ctx, x.at(me, lanePackets, 0), 2*mostLane, n, p2p.Packet8)
	})
	flow(func(_ *rand.Rand, k uint64) error {
		_, err := x.chs[3].FetchAdd(ctx, x.at(me, laneWords, 0), 1)
		return reached(sureChannelAdd, k-flag(err), err, func() error { return nil })
	})
	if x.win != nil {
		r.windowUnderWay(x, flow, reached, flushes)
	}
	wg.Wait()
}

func (r *revocations) windowUnderWay(x *revocation, flow func(do func(pick *rand.Rand, k uint64) error),
	reached func(sure int, k uint64, err error, flush func() error) error,
	flushes func(pick *rand.Rand, flush func(ctx context.Context) error) func() error) {
	me, ctx := r.c.Rank(), r.ctx
	src, dst := make([]byte, x.lane), make([]byte, x.lane)
	flow(func(pick *rand.Rand, k uint64) error {
		fill(src, byte(k))
		x.reached[mayWindowPut] = k
		return reached(sureWindowPut, k, x.win.Put(ctx, x.owner, x.at(me, laneWindow, 0), ubcoll.Of(src)), flushes(pick, x.win.Flush))
	})
	flow(func(pick *rand.Rand, _ uint64) error {
		at := pick.IntN(x.lane)
		if err := x.win.Get(ctx, x.owner, ubcoll.Of(dst[at:]), at); err != nil {
			return err
		}
		if !bytes.Equal(dst[at:], r.old(x, at, x.lane-at)) {
			return errors.New("a window's get: wrong data")
		}
		return nil
	})
	flow(func(_ *rand.Rand, k uint64) error {
		_, err := x.win.FetchAdd(ctx, x.owner, x.at(me, laneWords, 8), 1)
		return reached(sureWindowAdd, k-flag(err), err, func() error { return nil })
	})
	ones := slices.Repeat([]uint64{1}, words)
	flow(func(pick *rand.Rand, k uint64) error {
		x.reached[mayAccumulated] = k
		return reached(sureAccumulated, k, x.win.Accumulate(ctx, x.owner, x.at(me, laneWords, 16), ubcoll.Of(ones), ubcoll.Sum),
			flushes(pick, x.win.Flush))
	})
}

// flag is 1 for an error.
func flag(err error) uint64 {
	if err != nil {
		return 1
	}
	return 0
}

// failed reports whether a call has had a wrong result: then the others end, too.
func (r *revocations) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil
}

// note counts a call that was made while the memory was taken back.
func (r *revocations) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.well++
	case errors.Is(err, ubcoll.ErrStale):
		r.refused++
	default:
		r.err = errors.Join(r.err, err)
	}
}

// pause takes up to some microseconds without giving the processor away.
func (r *revocations) pause(most int) {
	end := time.Now().Add(time.Duration(r.mine.IntN(most)) * time.Microsecond)
	for time.Now().Before(end) {
	}
}
