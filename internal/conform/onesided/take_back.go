package onesided

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// TakeBack lets two ranks put, get, and send packets and messages to and from each other's memory, while both close
// what these go by, in any order, free the memory and allocate it again. Freed memory must stay as its next owner wrote
// it, and data that was read without an error must be what the peer had there.
func TakeBack(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() != 2 {
		return conform.Fail(c, "this suite is for two ranks")
	}
	rounds, err := conform.Number("CONFORM_TAKEBACKS", 200)
	if err != nil {
		return err
	}
	t := &takeBack{c: c, peer: 1 - c.Rank(), all: rand.New(rand.NewPCG(conform.Seed(), 5)),
		mine: rand.New(rand.NewPCG(conform.Seed(), 500+uint64(c.Rank())))}
	for r := range t.bank {
		t.bank[r] = conform.Pattern(r, 0, bankBytes)
	}
	if t.scratch, err = conform.NewRegion(c, 2*longest); err != nil {
		return err
	}
	for k := range rounds {
		t.round = k
		if err := t.run(ctx); err != nil {
			return conform.Fail(c, "round %d (%s): %w", k, strings.Join(t.did, ", "), err)
		}
	}
	if c.Rank() == 0 {
		fmt.Printf("took back %d times, during %d calls that ended of it and %d that went well\n", rounds, t.refused, t.well)
	}
	return t.scratch.Free()
}

const (
	longest   = 5 << 20 / 2 // of a part: several pieces
	bankBytes = 4 * longest
)

type takeBack struct {
	c       *ubcoll.Comm
	peer    int
	all     *rand.Rand // the same on both ranks
	mine    *rand.Rand
	bank    [2][]byte       // the contents of each rank's memory, from some offset on
	scratch *conform.Region // never taken back

	round         int
	leaves        bool // the round's communicator is closed, too
	did           []string
	mu            sync.Mutex // guards the fields below
	well, refused int
	err           error
}

// victim is what one round takes back.
type victim struct {
	d           *ubcoll.Comm // a communicator of the round, or the job's
	n           int          // bytes of each half of buf: peers write to the first half, and read the second
	from        int          // where its contents begin in the bank, on both ranks
	buf, letter *ubcoll.Buffer[byte]
	reg         *ubcoll.Registration
	remote      *ubcoll.Remote
	win         *ubcoll.Window
	readOnly    *ubcoll.Window // of the same memory; or nil
	plain       *p2p.Channel   // between the two buffers
	out, in     *p2p.Channel   // from this scratch to the peer's buffer, and from the peer's to this buffer
	over        *p2p.Semaphore // out is over it, and there is no in
	packets     bool           // out and in carry packets
	post        *p2p.Request   // the message of letter
	receives    bool
	kept        bool // letter is freed only after the message is over
}

func (t *takeBack) run(ctx context.Context) error {
	t.did = nil
	v, err := t.open(ctx)
	if err != nil {
		return err
	}
	t.leaves = v.d != t.c
	var wg sync.WaitGroup
	t.attack(ctx, &wg, v)
	next, err := t.close(v)
	wg.Wait()
	if err = errors.Join(err, t.err); err != nil {
		return err
	}
	if v.kept {
		got, want := v.letter.Slice(), t.content(v, t.peer, 1, v.letter.Len())
		if v.receives && !bytes.Equal(got, want) {
			return errors.New("a message: wrong data")
		}
		if err := v.letter.Free(); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, t.c); err != nil { // after this no rank starts anything
		return err
	}
	for i, b := range next {
		if got, want := b.Slice(), t.content(v, t.c.Rank(), 17*i, b.Len()); !bytes.Equal(got, want) {
			at := 0
			for got[at] == want[at] {
				at++
			}
			return fmt.Errorf("buffer %d of %d bytes, allocated afterwards, was written to at %d", i, b.Len(), at)
		}
		if err := b.Free(); err != nil {
			return err
		}
	}
	return nil
}

// content returns n bytes that a rank writes in this round.
func (t *takeBack) content(v *victim, rank, off, n int) []byte {
	off = (v.from + off) % (bankBytes - n)
	return t.bank[rank][off : off+n]
}

// open makes what the round takes back.
func (t *takeBack) open(ctx context.Context) (v *victim, err error) {
	v = &victim{d: t.c, n: []int{64, 4096, 100_000, 1 << 20, longest}[t.all.IntN(5)], from: t.all.IntN(longest)}
	if t.all.IntN(3) == 0 {
		if v.d, err = t.c.Dup(ctx); err != nil {
			return nil, err
		}
	}
	if v.buf, err = ubcoll.Alloc[byte](v.d, ubcoll.Host, 2*v.n); err != nil {
		return nil, err
	}
	copy(v.buf.Slice()[v.n:], t.content(v, t.c.Rank(), 0, v.n))
	if v.reg, err = v.d.RegisterBuffer(v.buf.Vec()); err != nil {
		return nil, err
	}
	if t.all.IntN(2) == 0 {
		if v.win, err = v.d.RegisterWindow(ctx, v.buf.Vec(), ubcoll.WindowAtomic); err != nil {
			return nil, err
		}
		if t.all.IntN(2) == 0 {
			if v.readOnly, err = v.d.RegisterWindow(ctx, v.buf.Vec(), ubcoll.WindowReadOnly); err != nil {
				return nil, err
			}
		}
	}
	if t.all.IntN(2) == 0 {
		if v.plain, err = p2p.Connect(ctx, v.d, t.peer, v.reg); err != nil {
			return nil, err
		}
	}
	if t.all.IntN(2) == 0 {
		if err := t.openImport(ctx, v); err != nil {
			return nil, err
		}
	}
	if t.all.IntN(2) == 0 {
		err = t.openLetter(ctx, v)
	}
	return v, err
}

// openImport makes a channel each way between scratch memory here and the peer's exported memory, or one over a semaphore.
func (t *takeBack) openImport(ctx context.Context, v *victim) error {
	h, err := v.reg.MarshalBinary()
	if err != nil {
		return err
	}
	all := make([]byte, 2*len(h))
	if err := coll.AllGather(ctx, t.c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
		return err
	}
	if v.remote, err = v.d.Import(all[t.peer*len(h):][:len(h)]); err != nil {
		return err
	}
	if t.all.IntN(2) == 0 {
		if v.over, err = p2p.NewSemaphore(ctx, v.d, t.peer, ubcoll.Host); err != nil {
			return err
		}
		if v.out, err = v.over.Channel(t.scratch.Reg, v.remote); err != nil {
			return err
		}
		return coll.Barrier(ctx, t.c) // the peer has made its channel, too
	}
	v.packets = t.all.IntN(2) == 0
	for k := range 2 {
		if k == t.c.Rank() {
			v.out, err = p2p.NewChannel(ctx, v.d, t.scratch.Reg, v.remote)
		} else {
			v.in, err = p2p.Connect(ctx, v.d, t.peer, v.reg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openLetter starts a message from one rank to the other.
func (t *takeBack) openLetter(ctx context.Context, v *victim) (err error) {
	n := 1 + t.all.IntN(longest)
	if v.letter, err = ubcoll.Alloc[byte](t.c, ubcoll.Host, n); err != nil {
		return err
	}
	var g p2p.Exchange
	if t.c.Rank() == t.all.IntN(2) {
		copy(v.letter.Slice(), t.content(v, t.c.Rank(), 1, n))
		g.Send(t.peer, v.letter.Vec())
	} else {
		g.Recv(t.peer, v.letter.Vec())
		v.receives = true
	}
	v.kept = t.mine.IntN(2) == 0
	v.post, err = g.Start(ctx, t.c)
	return err
}

// note counts a call that was made while the memory was taken back. It reports whether the call succeeded.
func (t *takeBack) note(what string, err error, wrong error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed := errors.Is(err, ubcoll.ErrStale) || errors.Is(err, ubcoll.ErrClosed)
	// Between hosts a peer that has closed its communicator no longer answers.
	closed = closed || errors.Is(err, ubcoll.ErrPeerLost) && t.leaves && conform.Far(t.c, t.peer)
	switch {
	case wrong != nil || err != nil && !closed:
		t.err = errors.Join(t.err, fmt.Errorf("%s: %w", what, errors.Join(err, wrong)))
		return false
	case err != nil:
		t.refused++
	default:
		t.well++
	}
	return err == nil
}

// calls is the most calls of each kind: more than there is time for if anything is closed early.
const calls = 40

// attack accesses the peer's memory meanwhile.
func (t *takeBack) attack(ctx context.Context, wg *sync.WaitGroup, v *victim) {
	mine := t.content(v, t.c.Rank(), 3, v.n)
	loop := func(what string, on bool, f func(pick *rand.Rand) (err, wrong error)) {
		if !on || t.mine.IntN(3) == 0 {
			return
		}
		pick := rand.New(rand.NewPCG(t.mine.Uint64(), 0))
		wg.Go(func() {
			for range calls {
				if err, wrong := f(pick); !t.note(what, err, wrong) {
					return
				}
			}
		})
	}
	// A part [off, off+n) of a half.
	part := func(pick *rand.Rand) (off, n int) {
		off = pick.IntN(v.n) &^ 15
		if pick.IntN(2) == 0 {
			off = 0
		}
		return off, v.n - off
	}
	same := func(got []byte, off int) error {
		if !bytes.Equal(got, t.content(v, t.peer, 0, v.n)[off:off+len(got)]) {
			return errors.New("wrong data")
		}
		return nil
	}
	loop("a window's put", v.win != nil, func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		src := ubcoll.Of(mine[:n])
		if pick.IntN(2) == 0 {
			src = v.buf.Vec().Slice(v.n, v.n+n) // may be freed meanwhile
		}
		return v.win.Put(ctx, t.peer, off, src), nil
	})
	loop("a window's get", v.win != nil, func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		got := make([]byte, n)
		if err := v.win.Get(ctx, t.peer, ubcoll.Of(got), v.n+off); err != nil {
			return err, nil
		}
		return nil, same(got, off)
	})
	loop("a window's accumulate", v.win != nil, func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		op := []ubcoll.Op{ubcoll.Sum, ubcoll.Max, ubcoll.Replace}[pick.IntN(3)]
		return v.win.Accumulate(ctx, t.peer, off, ubcoll.Of(mine[:n]), op), nil
	})
	loop("a window's fetch-and-add", v.win != nil, func(pick *rand.Rand) (error, error) {
		off, _ := part(pick)
		_, err := v.win.FetchAdd(ctx, t.peer, off, 1)
		return err, nil
	})
	loop("a view of a read-only part", v.readOnly != nil && !conform.Far(t.c, t.peer), func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		x, err := v.readOnly.Peer(t.peer)
		if err == nil { // nothing says how long the peer leaves the memory as it is
			err = v.win.Put(ctx, t.c.Rank(), off, x.Slice(v.n+off, v.n+off+n))
		}
		return err, nil
	})
	loop("a channel's put", v.plain != nil, func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		if pick.IntN(3) == 0 {
			return v.plain.PutPackets(ctx, 0, v.n, v.n/2, []p2p.PacketWidth{p2p.Packet8, p2p.Packet16}[pick.IntN(2)]), nil
		}
		return v.plain.Put(ctx, off, v.n, n), nil
	})
	stays := v.d == t.c
	loop("an import's put or get", v.out != nil && !(stays && v.packets), func(pick *rand.Rand) (error, error) {
		off, n := part(pick)
		if pick.IntN(2) == 0 {
			return v.out.Put(ctx, off, 0, n), nil
		}
		if err := v.out.Get(ctx, 0, v.n+off, n); err != nil {
			return err, nil
		}
		return nil, same(t.scratch.Mem[:n], off)
	})
	// These waits end when the peer closes. If the peer closed its communicator, that would break this rank's, too.
	if stays && v.packets {
		n := min(v.n, longest/2)
		wg.Go(func() {
			for t.note("packets", v.in.PutPackets(ctx, 0, v.n, n, p2p.Packet8), nil) {
				if !t.note("a wait for the packets' end", v.in.Wait(ctx), nil) {
					return
				}
			}
		})
		wg.Go(func() {
			got := t.scratch.Mem[longest:][:n]
			for t.note("packets' end", v.out.GetPackets(ctx, longest, 0, n, p2p.Packet8), nil) {
				if !t.note("packets", v.out.Signal(ctx), same(got, 0)) {
					return
				}
			}
		})
	}
	if stays && v.win != nil {
		wg.Go(func() {
			for t.note("a window's signal", v.win.Signal(ctx, t.peer), nil) {
				if err := v.win.Wait(ctx, t.peer); !t.note("a window's wait", err, nil) {
					return
				}
			}
		})
	}
	if v.post != nil {
		wg.Go(func() {
			if err := v.post.Wait(ctx); err != nil {
				t.note("a message", nil, err)
			}
		})
	}
}

// close takes the memory back, and returns what it allocated in its place.
func (t *takeBack) close(v *victim) (next []*ubcoll.Buffer[byte], err error) {
	type act struct {
		name string
		do   func() error
	}
	var acts []act
	// What is not closed here ends with the round's communicator.
	add := func(on bool, name string, do func() error) {
		if on && (v.d == t.c || t.mine.IntN(3) > 0) {
			acts = append(acts, act{name, do})
		}
	}
	add(true, "registration", v.reg.Close)
	add(v.win != nil, "window", func() error { return v.win.Close() })
	add(v.readOnly != nil, "read-only window", func() error { return v.readOnly.Close() })
	add(v.plain != nil, "channel", func() error { return v.plain.Close() })
	add(v.out != nil, "channel out", func() error { return v.out.Close() })
	add(v.in != nil, "channel in", func() error { return v.in.Close() })
	add(v.over != nil, "semaphore", func() error { return v.over.Close() })
	add(v.remote != nil, "import", func() error { return v.remote.Close() })
	if v.letter != nil && !v.kept {
		acts = append(acts, act{"letter", v.letter.Free})
	}
	if v.d != t.c {
		acts = append(acts, act{"communicator", func() error {
			for {
				if err := v.d.Close(); !errors.Is(err, ubcoll.ErrBusy) { // this rank's own calls are still running
					return err
				}
				runtime.Gosched()
			}
		}})
	}
	freed := false
	if t.mine.IntN(3) == 0 {
		acts = append(acts, act{"free", func() error {
			err := v.buf.Free()
			freed = err == nil
			return err
		}})
	}
	t.mine.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	t.pause(300)
	together := t.mine.IntN(4) == 0
	if together {
		t.did = append(t.did, "together")
	}
	errs := make([]error, len(acts))
	var wg sync.WaitGroup
	for i, a := range acts {
		t.did = append(t.did, a.name)
		do := func() {
			err := a.do()
			switch {
			case errors.Is(err, ubcoll.ErrClosed) && v.d != t.c: // closed with the communicator
			case errors.Is(err, ubcoll.ErrClosed) && v.over != nil && a.name == "channel out": // closed with the semaphore
			case errors.Is(err, ubcoll.ErrInUse) && a.name == "free":
			case errors.Is(err, ubcoll.ErrTimeout): // the peer got no processor for a second
			case err != nil:
				errs[i] = fmt.Errorf("close %s: %w", a.name, err)
			}
		}
		if together {
			wg.Go(do)
			continue
		}
		do()
		t.pause(50)
	}
	wg.Wait()
	if !freed {
		errs = append(errs, v.buf.Free())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i := range 2 {
		b, err := ubcoll.Alloc[byte](t.c, ubcoll.Host, 2*v.n)
		if err != nil {
			return nil, err
		}
		copy(b.Slice(), t.content(v, t.c.Rank(), 17*i, b.Len()))
		next = append(next, b)
	}
	return next, nil
}

// pause takes up to some microseconds without giving the processor away.
func (t *takeBack) pause(most int) {
	end := time.Now().Add(time.Duration(t.mine.IntN(most)) * time.Microsecond)
	for time.Now().Before(end) {
	}
}
