//go:build mpi && cgo

package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	gompi "github.com/sbromberger/gompi"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// startTimeout bounds the first exchange after MPI_Init.
const startTimeout = time.Minute

// mpiState says whether this process has started or ended MPI through this package.
var mpiState atomic.Int32

const (
	mpiUnused int32 = iota
	mpiRunning
	mpiOver
)

// MPI starts MPI and uses its world as the job. It is collective over the world, and blocks until all processes are
// there: MPI_Init has no deadline, and neither has MPI_Finalize, which Close calls; every other wait has one. All MPI
// calls run on one goroutine that has a thread of its own, on a communicator of its own, and only during AllGather,
// Exchange ([Exchanger]; 1 GiB at most), Abort and Close.
//
// A process can start MPI once: a second call is ErrBusy while the first result is open, and ErrClosed afterwards. In a
// program that started MPI itself it is ErrArgument; use [Gompi] there. If a launcher started several ranks but MPI
// sees one, it is [ErrLauncher]. After MPI_Init, signal handlers that MPI installed without SA_ONSTACK are re-installed
// with it, because Go's runtime crashes without it.
//
// After any error the process must end by Abort or with a non-zero exit code, never by finalizing MPI. After a death that it has
// survived ([Survivor]) it ends with the exit code that is its own, without finalizing MPI either.
func MPI() (Bootstrap, error) {
	if !mpiState.CompareAndSwap(mpiUnused, mpiRunning) {
		if mpiState.Load() == mpiRunning {
			return nil, fmt.Errorf("bootstrap: MPI runs already, a process has one MPI() at a time: %w", fault.ErrBusy)
		}
		return nil, fmt.Errorf("bootstrap: MPI cannot start twice in one process: %w", fault.ErrClosed)
	}
	if gompi.IsOn() {
		mpiState.Store(mpiUnused)
		return nil, fmt.Errorf("bootstrap: this program started MPI itself: use Gompi with its communicator: %w",
			fault.ErrArgument)
	}
	w := &world{calls: make(chan func()), aborts: make(chan int, 1), ended: make(chan struct{})}
	go w.run()
	var err error
	w.do(func() { err = w.start() })
	if err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// UsesMPI reports whether this process is a rank of a job of [MPI] that is not closed yet. Local, does not block.
func UsesMPI() bool { return mpiState.Load() == mpiRunning }

// world is this process in MPI_COMM_WORLD.
type world struct {
	rank, size int
	gate       gate
	failed     atomic.Bool // the job is broken: do not finalize

	calls  chan func()   // for the MPI goroutine
	aborts chan int      // likewise, but also read during a wait
	ended  chan struct{} // closed when the MPI goroutine has ended
}

// run is the MPI goroutine. It alone is locked to a thread: a locked goroutine is slow to yield.
func (w *world) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(w.ended)
	for {
		select {
		case call, ok := <-w.calls:
			if !ok {
				return
			}
			call()
		case code := <-w.aborts:
			mpiAbort(code)
		}
	}
}

// do runs f on the MPI goroutine.
func (w *world) do(f func()) {
	done := make(chan struct{})
	w.calls <- func() { f(); close(done) }
	<-done
}

// stop ends the MPI goroutine and leaves MPI as it is.
func (w *world) stop() {
	close(w.calls)
	<-w.ended
	mpiState.Store(mpiOver)
}

func (w *world) start() error {
	gompi.Start(false)
	mendSignalHandlers()
	w.rank, w.size = gompi.WorldRank(), gompi.WorldSize()
	if name, n := Launcher(); n > 1 && w.size == 1 {
		other := ""
		if name == srun {
			other = ", or with srun --mpi=none, which needs no MPI"
		}
		return fmt.Errorf("bootstrap: %s started %d ranks, but %s sees only this one, so each would run alone; "+
			"start the program with that library's own mpirun%s: %w", name, n, MPILibrary(), other, ErrLauncher)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return w.finish(ctx, mpiTest, mpiDup())
}

func (w *world) Rank() int { return w.rank }
func (w *world) Size() int { return w.size }

func (w *world) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = w.call(ctx, -1, func() (err error) {
		all, err = w.allGather(ctx, mine)
		return err
	})
	return all, err
}

// Exchange implements Exchanger.
func (w *world) Exchange(ctx context.Context, peer int, mine []byte) (theirs []byte, err error) {
	if err := checkPeer(w, peer); err != nil {
		return nil, err
	}
	err = w.call(ctx, peer, func() (err error) {
		theirs, err = w.exchange(ctx, peer, mine)
		return err
	})
	return theirs, err
}

// call runs f on the MPI goroutine; an error names peer.
func (w *world) call(ctx context.Context, peer int, f func() error) (err error) {
	if err := w.gate.enter(busy); err != nil {
		return err
	}
	defer w.gate.leave()
	if w.failed.Load() {
		return w.fail(-1, fmt.Errorf("the bootstrap failed before: %w", fault.ErrClosed))
	}
	if ctx.Err() != nil {
		return w.fail(peer, reason.Ended(ctx))
	}
	if w.do(func() { err = f() }); err != nil {
		return w.fail(peer, err)
	}
	return nil
}

// fail marks the job as broken and gives the error its rank.
func (w *world) fail(peer int, err error) error {
	w.failed.Store(true)
	return &fault.Error{Op: "bootstrap", Rank: w.rank, Peer: peer, Err: err}
}

// maxSwap is how many bytes an Exchange can carry, because MPI counts in C ints.
const maxSwap = 1 << 30

// exchange swaps lengths with peer, then the parts. It leaves the buffers of unfinished operations to MPI.
func (w *world) exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	in, out := newCbuf(8), newCbuf(8)
	binary.NativeEndian.PutUint64(in.get(), uint64(len(mine)))
	if err := w.finish(ctx, mpiTestSwap, mpiSwap(in, out, peer)); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint64(out.get()))
	in.free()
	out.free()
	if max(n, len(mine)) > maxSwap { // both ranks see it
		return nil, fmt.Errorf("parts of %d and %d bytes, at most %d: %w", len(mine), n, maxSwap, fault.ErrLimit)
	}
	in, out = newCbuf(len(mine)), newCbuf(n)
	copy(in.get(), mine)
	if err := w.finish(ctx, mpiTestSwap, mpiSwap(in, out, peer)); err != nil {
		return nil, err
	}
	theirs := append([]byte{}, out.get()...)
	in.free()
	out.free()
	return theirs, nil
}

// allGather exchanges the lengths, then the parts in chunks. It leaves the buffers of an unfinished exchange to MPI,
// which may still write to them.
func (w *world) allGather(ctx context.Context, mine []byte) ([][]byte, error) {
	in, out := newCbuf(8), newCbuf(8*w.size)
	binary.NativeEndian.PutUint64(in.get(), uint64(len(mine)))
	if err := w.finish(ctx, mpiTest, mpiAllGather(in, out)); err != nil {
		return nil, err
	}
	lengths := make([]int, w.size)
	parts := make([][]byte, w.size)
	for r := range lengths {
		lengths[r] = int(binary.NativeEndian.Uint64(out.get()[8*r:]))
		parts[r] = make([]byte, 0, lengths[r])
	}
	in.free()
	out.free()

	for from, sizes := range chunks(lengths) {
		in, out, table := newCbuf(sizes[w.rank]), newCbuf(sum(sizes)), newCbuf(2*cintSize*w.size)
		if in.n > 0 {
			copy(in.get(), mine[from:])
		}
		if err := w.finish(ctx, mpiTest, mpiAllGatherV(in, out, table, sizes)); err != nil {
			return nil, err
		}
		scatter(parts, out.get(), sizes)
		in.free()
		out.free()
		table.free()
	}
	return parts, nil
}

// finish waits for the operation that was started with err, until test says that it has completed or ctx ends. It tests
// often at first, then sleeps in between, so that more ranks than cores do not starve each other.
func (w *world) finish(ctx context.Context, test func() (bool, error), err error) error {
	pause := time.Microsecond
	for looks := 0; err == nil; looks++ {
		var done bool
		if done, err = test(); err != nil || done {
			break
		}
		select {
		case code := <-w.aborts:
			mpiAbort(code)
		case <-ctx.Done():
			return reason.Ended(ctx)
		default:
		}
		if looks >= 100 {
			time.Sleep(pause)
			pause = min(2*pause, time.Millisecond)
		}
	}
	return err
}

func (w *world) Abort(code int) {
	w.failed.Store(true)
	select {
	case w.aborts <- code:
	default: // under way already
	}
	select {
	case <-w.ended: // closed: there is no job to end
	case <-time.After(10 * time.Second): // MPI_Abort does not return; if it fails, the caller can exit
	}
}

// Survive implements Survivor.
func (w *world) Survive() { w.failed.Store(true) }

func (w *world) Close() error {
	if err := w.gate.enter(closed); err != nil {
		return err
	}
	defer w.stop()
	if w.failed.Load() {
		return nil
	}
	var err error
	w.do(func() {
		ctx, cancel := clock.WithTimeout(context.Background(), closeTimeout, nil)
		defer cancel()
		if err = w.finish(ctx, mpiTest, mpiBarrier()); err == nil {
			gompi.Stop()
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("other ranks did not close: %w", fault.ErrTimeout)
	}
	if err != nil {
		return w.fail(-1, err)
	}
	return nil
}
