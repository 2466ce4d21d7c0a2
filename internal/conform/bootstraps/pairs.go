package bootstraps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
)

// Exchanges reports whether b is an Exchanger.
func Exchanges(b bootstrap.Bootstrap) bool {
	_, ok := b.(bootstrap.Exchanger)
	return ok
}

func swap(b bootstrap.Bootstrap, peer int, mine []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.(bootstrap.Exchanger).Exchange(ctx, peer, mine)
}

// pairs: what two ranks tell each other arrives, whatever other pairs do meanwhile, and with all-gathers in between.
func pairs(b bootstrap.Bootstrap, seed uint64) error {
	if !Exchanges(b) {
		return nil
	}
	for _, peer := range []int{-1, b.Rank(), b.Size()} {
		if _, err := swap(b, peer, nil); !errors.Is(err, fault.ErrArgument) {
			return fmt.Errorf("exchange with rank %d: %v, want ErrArgument", peer, err)
		}
	}
	random := rand.New(rand.NewPCG(seed, 12)) // the same on all ranks
	for i := range uint64(60) {
		order := random.Perm(b.Size())
		n := []int{0, 1, 300, 5000, 256<<10 + 1, 1 << 20}[random.IntN(6)]
		if random.IntN(4) == 0 {
			if err := exchange(b, func(r int) []byte { return part(n%1000+r, r, seed+i) }); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		for k := 0; k+1 < len(order); k += 2 {
			peer := order[k]
			switch b.Rank() {
			case order[k]:
				peer = order[k+1]
			case order[k+1]:
			default:
				continue
			}
			// Several in a row: one of the two ranks may be one ahead of the other.
			for j := range uint64(random64(seed, i, uint64(k)) % 4) {
				mine, want := part(max(n-b.Rank(), 0), b.Rank(), seed+i+j), part(max(n-peer, 0), peer, seed+i+j)
				got, err := swap(b, peer, mine)
				if err == nil && !bytes.Equal(got, want) {
					err = fmt.Errorf("%d bytes that differ from the %d sent", len(got), len(want))
				}
				if err != nil {
					return fmt.Errorf("step %d: exchange with rank %d: %w", i, peer, err)
				}
				clear(got) // the result is this rank's own, and so is mine after the call
				clear(mine)
			}
		}
	}
	return nil
}

func random64(seed ...uint64) uint64 {
	var s uint64
	for _, v := range seed {
		s = rand.New(rand.NewPCG(s, v)).Uint64()
	}
	return s
}

// ended checks that err says that a context has ended, here or on another rank; if here, that it is about peer.
func ended(ctx context.Context, err error, peer int, p Promises) error {
	e, ok := errors.AsType[*fault.Error](err)
	switch {
	case err == nil || !ok:
		return fmt.Errorf("%v, want a context's end", err)
	case p.Tells && errors.Is(err, fault.ErrTimeout): // another rank's context ended first
		return nil
	case ctx.Err() == nil || !errors.Is(err, ctx.Err()):
		return fmt.Errorf("%v, want the context's error", err)
	case e.Peer < 0 || !p.Tells && e.Peer != peer:
		return fmt.Errorf("%v is about rank %d, want %d", err, e.Peer, peer)
	}
	return nil
}

// circle: ranks that wait for each other in a circle wait until a context ends. It needs three ranks or more. b is not
// closed.
func circle(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	next := (b.Rank() + 1) % b.Size()
	_, err := b.(bootstrap.Exchanger).Exchange(ctx, next, []byte("round"))
	return ended(ctx, err, next, p)
}

// pairMissing: the last rank stays away from its exchange with rank 0.
func pairMissing(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	last := b.Size() - 1
	switch b.Rank() {
	case last:
		time.Sleep(time.Second)
		return nil
	case 0:
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		defer cancel()
		_, err := b.(bootstrap.Exchanger).Exchange(ctx, last, nil)
		if err := about(err, context.DeadlineExceeded, last, p); err != nil {
			return err
		}
		if _, err := swap(b, last, nil); err == nil {
			return errors.New("an exchange after one that failed went well")
		}
	default: // other ranks that wait for it learn of that, too
		if p.Tells {
			_, err := swap(b, last, nil)
			return about(err, fault.ErrTimeout, last, p)
		}
	}
	return nil
}

// pairAbort: rank 1 aborts while rank 0 waits for it.
func pairAbort(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	switch b.Rank() {
	case 1:
		time.Sleep(300 * time.Millisecond)
		b.Abort(9)
		if !p.Tells {
			return errors.New("MPI_Abort returned")
		}
		_, err := swap(b, 0, nil)
		return about(err, fault.ErrAborted, -1, p)
	case 0:
		_, err := swap(b, 1, nil)
		return about(err, fault.ErrAborted, 1, p)
	}
	_, err := gather(b, nil)
	return about(err, fault.ErrAborted, 1, p)
}

// pairKilled: the last rank is killed while rank 0 waits for it, and the others for rank 0.
func pairKilled(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	last := b.Size() - 1
	if b.Rank() == last {
		time.Sleep(300 * time.Millisecond)
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		time.Sleep(time.Minute) // until the signal comes
		return err
	}
	peer := last
	if b.Rank() > 0 {
		peer = 0 // never comes
	}
	_, err := swap(b, peer, nil)
	return about(err, fault.ErrPeerLost, last, p)
}

// pairClosed: the last rank closes while rank 0 waits for it, or before. Ranks that have exchanged with it are not held
// up. b is closed on the last rank only. It needs a bootstrap that tells.
func pairClosed(b bootstrap.Bootstrap, p Promises, _ uint64) error {
	last := b.Size() - 1
	for r := range last { // afterwards the others may still be reading the last rank's answer when it closes
		if b.Rank() == last || b.Rank() == r {
			if _, err := swap(b, last-b.Rank()+r, []byte("the last word")); err != nil {
				return fmt.Errorf("the last exchange: %w", err)
			}
		}
	}
	if b.Rank() == last {
		return b.Close()
	}
	if b.Rank() > 0 {
		_, err := swap(b, 0, nil) // never comes
		return about(err, fault.ErrPeerLost, last, p)
	}
	_, err := swap(b, last, nil)
	return about(err, fault.ErrPeerLost, last, p)
}
