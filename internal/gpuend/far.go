package gpuend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
)

// Host does the steps of a far end, on memory of the host. Each call is in its place in the order of the end's steps, and of
// those of ends that share its signals: only waits run beside others. Close ends waits, and lets puts, gets and flushes end.
type Host interface {
	// Live returns why the peer's memory must not be used any more, or nil.
	Live() error
	// Put puts n bytes to offset off of the peer's memory. When it returns, the source may be changed. Get is the reverse.
	Put(ctx context.Context, off int, from unsafe.Pointer, n int) error
	Get(ctx context.Context, off int, to unsafe.Pointer, n int) error
	// PutDevice and GetDevice are Put and Get from and to memory of the device. They report false, and do nothing, if RDMA devices do
	// not do that.
	PutDevice(ctx context.Context, off int, from unsafe.Pointer, n int) (done bool, err error)
	GetDevice(ctx context.Context, off int, to unsafe.Pointer, n int) (done bool, err error)
	Signal(ctx context.Context) error
	Wait(ctx context.Context) error
	// Flush waits until what was put is in the peer's memory.
	Flush(ctx context.Context) error
}

// FarConfig is what a far end is opened with.
type FarConfig struct {
	Owner Owner
	Op    string // in errors
	Name  string // likewise
	Rank  int    // the peer
	Host  Host
}

// FarEnd is an end whose peer is on another host. Data pass through page-locked memory, unless RDMA devices reach that of the
// device. On a stream each call has a copier in its place, and the stream's goroutine does the steps: see gpu.Proxy. Without a
// stream the caller does them, and the driver copies.
type FarEnd struct {
	FarConfig
	memories
	*order
	t    *Table
	fate *fate

	mu     sync.Mutex
	closed bool
	stages [2]*gpu.Pinned // for little, and for much; nil until they are needed
	runs   sync.WaitGroup // calls on streams
}

// fate is the error that has ended the signals of an end, and so it and those that share them.
type fate struct {
	mu     sync.Mutex
	failed error
}

// stageBytes are the sizes of stages. What is more than the second one goes in pieces of half of it.
var stageBytes = [2]int{16 << 10, 1 << 20}

// OpenFar opens a far end. The caller closes it.
func (t *Table) OpenFar(k FarConfig, m Memory) (*FarEnd, error) {
	return t.openFar(&FarEnd{FarConfig: k, order: &order{}, fate: &fate{}}, m)
}

// Share opens an end that shares e's signals. The caller closes it before e.
func (e *FarEnd) Share(host Host, m Memory) (*FarEnd, error) {
	k := e.FarConfig
	k.Host = host
	return e.t.openFar(&FarEnd{FarConfig: k, order: e.order, fate: e.fate}, m)
}

func (t *Table) openFar(e *FarEnd, m Memory) (*FarEnd, error) {
	e.t, e.memories = t, memories{Memory: m, peer: e.Rank}
	if e.Local != nil {
		if err := e.acquire(); err != nil {
			return nil, err
		}
	}
	t.mu.Lock()
	t.far[e] = true
	t.mu.Unlock()
	return e, nil
}

// Close waits for all that the end has queued, and releases it. No Launch is under way, and none follows. quick: if the
// communicator is broken, the end is released later, with the communicator.
func (e *FarEnd) Close(quick bool) error {
	if quick && e.t.c.Broken() != nil {
		return nil
	}
	e.release()
	return nil
}

// release releases what the end has, once.
func (e *FarEnd) release() {
	e.t.mu.Lock()
	open := e.t.far[e]
	delete(e.t.far, e)
	e.t.mu.Unlock()
	if !open {
		return
	}
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.runs.Wait()
	for _, m := range e.stages {
		if m != nil {
			e.t.d.GivePinned(m)
		}
	}
	e.unclaim()
}

// begin begins a run on a stream.
func (e *FarEnd) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%s: %w", e.Name, fault.ErrClosed)
	}
	e.runs.Add(1)
	return nil
}

// err returns the error that ended the end, or nil.
func (e *FarEnd) err() error {
	e.fate.mu.Lock()
	defer e.fate.mu.Unlock()
	return e.fate.failed
}

// fail ends the end, and those that share its signals, after a wait that failed.
func (e *FarEnd) fail(err error) {
	e.fate.mu.Lock()
	defer e.fate.mu.Unlock()
	if e.fate.failed == nil {
		e.fate.failed = err
	}
}

// error returns err as an error of a step.
func (e *FarEnd) error(step string, err error) error {
	d := e.t.d
	var typed *fault.Error
	if errors.As(err, &typed) {
		k := *typed
		k.Device = d.Domain.Context.Device()
		return &k
	}
	return &fault.Error{Op: e.Op, Rank: e.t.c.Rank(), Peer: e.Rank, Host: e.t.c.Hostname(e.t.c.Rank()), Step: step,
		Device: d.Domain.Context.Device(), Err: err}
}

// Launch queues steps on s. Without s it does them. If any step is invalid or not allowed, it queues none. Any goroutine may
// call it.
func (e *FarEnd) Launch(ctx context.Context, s *engine.Stream, steps []Step) error {
	for i := range steps {
		if steps[i].Width != 0 {
			return fmt.Errorf("packets of device memory, between hosts (Put and Signal do the same): %w", fault.ErrNotSupported)
		}
	}
	if _, err := e.check(steps, nil); err != nil {
		return err
	}
	return e.submit(ctx, s, steps, nil)
}

// submit is Launch for steps that have been checked.
func (e *FarEnd) submit(ctx context.Context, s *engine.Stream, steps []Step, _ []touch) error {
	if err := e.registered(); err != nil {
		return err
	}
	on, err := e.t.stream(s)
	if err != nil {
		return err
	}
	most := 0
	for i := range steps {
		if k := steps[i].Kind; k == StepPut || k == StepGet {
			if err := e.Host.Live(); err != nil {
				return err
			}
			most = max(most, steps[i].N)
		}
	}
	if err := e.err(); err != nil {
		return err
	}
	r := &farRun{e: e, steps: steps}
	if err := e.reserve(r, most); err != nil {
		return err
	}
	if on == nil {
		return r.now(ctx)
	}
	return r.queue(ctx, s, on)
}

// reserve gives r memory for steps of n bytes at most. It may call the driver.
func (e *FarEnd) reserve(r *farRun, n int) error {
	if n == 0 {
		return nil
	}
	size := 0
	if n > stageBytes[0] {
		size = 1
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stages[size] == nil {
		m, err := e.t.d.Domain.TakePinned(stageBytes[size])
		if err != nil {
			return err
		}
		e.stages[size] = m
	}
	r.stage, r.room = e.stages[size], stageBytes[size]
	return nil
}
