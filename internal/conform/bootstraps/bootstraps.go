// Package bootstraps tests what every kind of bootstrap has to do, by functions that each rank runs. The ranks are
// goroutines of a test, processes of a test, or ranks under an MPI launcher. A nil result means that this rank saw what
// it should.
package bootstraps

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
)

// patience is the longest that any exchange here may take on a slow, oversubscribed machine.
const patience = 60 * time.Second

// Promises says what a bootstrap promises beyond the interface.
type Promises struct {
	Tells     bool // the other ranks learn which rank is lost, aborts or gives up
	Group     int  // ranks that share a process: errors may name only the first of them
	OneThread bool // all calls have to come from the goroutine that made it
}

// Brief is the shortest check that ranks and exchanges are right. It leaves b open.
func Brief(b bootstrap.Bootstrap, seed uint64) error {
	if err := identity(b, seed); err != nil {
		return err
	}
	return lengths(b, seed)
}

// Healthy runs all cases that leave a job whole, and closes b.
func Healthy(b bootstrap.Bootstrap, p Promises, seed uint64) error {
	for _, c := range []struct {
		name string
		run  func(bootstrap.Bootstrap, uint64) error
	}{
		{"identity", identity}, {"lengths", lengths}, {"large", large}, {"rounds", rounds}, {"ownership", ownership},
		{"pairs", pairs},
	} {
		if err := c.run(b, seed); err != nil {
			return fmt.Errorf("rank %d of %d: %s: %w", b.Rank(), b.Size(), c.name, err)
		}
	}
	if !p.OneThread {
		if err := oneAtATime(b); err != nil {
			return fmt.Errorf("rank %d of %d: one at a time: %w", b.Rank(), b.Size(), err)
		}
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("rank %d of %d: close: %w", b.Rank(), b.Size(), err)
	}
	if err := b.Close(); !errors.Is(err, fault.ErrClosed) {
		return fmt.Errorf("second close: %v, want ErrClosed", err)
	}
	if _, err := b.AllGather(context.Background(), nil); !errors.Is(err, fault.ErrClosed) {
		return fmt.Errorf("all-gather after close: %v, want ErrClosed", err)
	}
	return nil
}

func gather(b bootstrap.Bootstrap, mine []byte) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := b.AllGather(ctx, mine)
	if err == nil && len(all) != b.Size() {
		err = fmt.Errorf("%d parts for %d ranks", len(all), b.Size())
	}
	return all, err
}

// exchange gathers each rank's part(rank), and compares.
func exchange(b bootstrap.Bootstrap, part func(rank int) []byte) error {
	all, err := gather(b, part(b.Rank()))
	if err != nil {
		return err
	}
	for r, got := range all {
		if want := part(r); !bytes.Equal(got, want) {
			return fmt.Errorf("part of rank %d has %d bytes and differs from the %d bytes sent", r, len(got), len(want))
		}
	}
	return nil
}

// part returns n bytes that differ between ranks and salts.
func part(n, rank int, salt uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], salt)
	binary.LittleEndian.PutUint64(key[8:], uint64(rank))
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

func identity(b bootstrap.Bootstrap, _ uint64) error {
	if b.Size() < 1 || b.Rank() < 0 || b.Rank() >= b.Size() {
		return fmt.Errorf("rank %d of %d", b.Rank(), b.Size())
	}
	return exchange(b, func(r int) []byte { return fmt.Appendf(nil, "I am %d of %d", r, b.Size()) })
}

func lengths(b bootstrap.Bootstrap, seed uint64) error {
	for _, part := range []func(int) []byte{
		func(int) []byte { return nil },
		func(int) []byte { return []byte{} },
		func(r int) []byte { return part(r*1001, r, seed) },            // rank 0 has none
		func(r int) []byte { return part((b.Size()-1-r)*7, r, seed) },  // the last has none
		func(r int) []byte { return part(r%2*(256<<10+1), r, seed) },   // only odd ranks
		func(r int) []byte { return part(256<<10, r, seed) },           // exactly one chunk of MPI's
		func(r int) []byte { return part(256<<10*(r%3)+r, r, seed+1) }, // different numbers of chunks
	} {
		if err := exchange(b, part); err != nil {
			return err
		}
	}
	return nil
}

func large(b bootstrap.Bootstrap, seed uint64) error {
	n := 1 << 20
	if b.Size() > 8 {
		n = 64 << 10 // every rank holds every part
	}
	return exchange(b, func(r int) []byte { return part(n, r, seed) })
}

func rounds(b bootstrap.Bootstrap, seed uint64) error {
	for i := range uint64(100) {
		n := int(rand.New(rand.NewPCG(seed, i)).Uint32() % 300)
		if err := exchange(b, func(r int) []byte { return part(n+r, r, seed+i) }); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

// ownership: what a rank writes to its part and its result afterwards affects no other rank.
func ownership(b bootstrap.Bootstrap, seed uint64) error {
	mine := part(100, b.Rank(), seed)
	first, err := gather(b, mine)
	if err != nil {
		return err
	}
	for _, p := range append(first, mine) {
		clear(p)
	}
	second, err := gather(b, part(100, b.Rank(), seed+1))
	if err != nil {
		return err
	}
	for r := range second {
		if !bytes.Equal(first[r], make([]byte, 100)) || !bytes.Equal(second[r], part(100, r, seed+1)) {
			return fmt.Errorf("part of rank %d changed after the call", r)
		}
	}
	return nil
}

// oneAtATime: if rank 0 makes two calls at once, one is refused and the other succeeds. Calls that did not overlap both
// succeed, each in its own exchange: then rank 0 tries again, until it tells the others that they have overlapped.
func oneAtATime(b bootstrap.Bootstrap) error {
	if b.Size() == 1 {
		return nil
	}
	met := []byte("met")
	for b.Rank() != 0 {
		time.Sleep(5 * time.Millisecond) // so that rank 0's calls overlap
		all, err := gather(b, nil)
		if err != nil || bytes.Equal(all[0], met) {
			return err
		}
	}
	for {
		var errs [2]error
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = gather(b, nil) })
		}
		wg.Wait()
		if errs[0] == nil && errs[1] == nil {
			continue
		}
		if errors.Is(errs[0], fault.ErrBusy) == errors.Is(errs[1], fault.ErrBusy) || errs[0] != nil && errs[1] != nil {
			return fmt.Errorf("two calls at once: %v, %v; want one ErrBusy", errs[0], errs[1])
		}
		_, err := gather(b, met)
		return err
	}
}

// Missing: the last rank stays away, and the others return when their context ends. The job is broken afterwards. b is
// not closed.
func Missing(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	for away := time.Second; ; away *= 2 {
		if came, err := missing(b, p, away); !came {
			return err
		}
	}
}

// missing makes the last rank stay away for that long. If it arrived before the context of another rank had ended,
// which all ranks see, they have to try again.
func missing(b bootstrap.Bootstrap, p Promises, away time.Duration) (came bool, err error) {
	last := b.Size() - 1
	if b.Rank() == last && last > 0 {
		time.Sleep(away)
		if !p.Tells {
			return false, nil
		}
		if _, err = gather(b, nil); err != nil && !errors.Is(err, fault.ErrTimeout) {
			return false, fmt.Errorf("the rank that stayed away: %v, want ErrTimeout", err)
		}
		return err == nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	if last == 0 {
		cancel()
	}
	_, err = b.AllGather(ctx, nil)
	switch {
	case err == nil && last > 0 && p.Tells:
		return true, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return false, nil
	case p.Tells && errors.Is(err, fault.ErrTimeout): // another rank's context ended first
		return false, nil
	}
	return false, fmt.Errorf("%v, want the context's error", err)
}

// Abort: rank 1 (or 0 of 1) aborts while the others are in an AllGather. If the bootstrap tells, they learn of it.
func Abort(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	culprit := min(1, b.Size()-1)
	if b.Rank() == culprit {
		time.Sleep(300 * time.Millisecond)
		b.Abort(9)
		if !p.Tells {
			return errors.New("MPI_Abort returned")
		}
		_, err := gather(b, nil)
		if !errors.Is(err, fault.ErrAborted) {
			return fmt.Errorf("after own abort: %v", err)
		}
		return nil
	}
	_, err := gather(b, nil)
	return about(err, fault.ErrAborted, culprit, p)
}

// about checks which rank an error names.
func about(err, want error, peer int, p Promises) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || !errors.Is(err, want) || e.Peer != peer && e.Peer != peer/p.Group*p.Group {
		return fmt.Errorf("%v, want %v about rank %d", err, want, peer)
	}
	return nil
}

// killedLast: the last rank is killed while the others are in an AllGather.
func killedLast(b bootstrap.Bootstrap, p Promises, _ uint64) error { return killed(b, p, b.Size()-1) }

// killedRoot is killedLast for rank 0.
func killedRoot(b bootstrap.Bootstrap, p Promises, _ uint64) error { return killed(b, p, 0) }

func killed(b bootstrap.Bootstrap, p Promises, victim int) error {
	if b.Rank() == victim {
		time.Sleep(300 * time.Millisecond)
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		time.Sleep(time.Minute) // until the signal comes
		return err
	}
	_, err := gather(b, nil)
	return about(err, fault.ErrPeerLost, victim, p)
}

// Exit: the last rank exits with this code while the others are in an AllGather. Only a launcher can see that.
func Exit(code int) func(bootstrap.Bootstrap, Promises, uint64) error {
	return func(b bootstrap.Bootstrap, _ Promises, _ uint64) error {
		if b.Rank() == b.Size()-1 {
			time.Sleep(300 * time.Millisecond)
			os.Exit(code)
		}
		_, err := gather(b, nil)
		return fmt.Errorf("a rank left, and the job goes on: %w", err)
	}
}

// Cases is every case by name.
var Cases = map[string]func(bootstrap.Bootstrap, Promises, uint64) error{
	"healthy":      Healthy,
	"missing":      Missing,
	"circle":       circle,
	"pair-missing": pairMissing,
	"pair-abort":   pairAbort,
	"pair-killed":  pairKilled,
	"pair-closed":  pairClosed,
	"abort":        Abort,
	"killed":       killedLast,
	"killed-root":  killedRoot,
	"exit0":        Exit(0),
	"exit6":        Exit(6),
}
