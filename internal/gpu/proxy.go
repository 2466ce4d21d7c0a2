package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Proxy is what copiers of a communicator have in common. An operation that the host does for the device has a copier in its
// place on the stream, and a goroutine, the caller's or the stream's, that does it between Begin and End. That goroutine makes
// no call of the driver, which may be kept by a full queue behind the very kernel.
type Proxy struct {
	d *Device

	mu      sync.Mutex
	f       *cuda.Function // nil until it is first used
	lost    []*Copier      // whose kernels have not told that they end
	serving bool
	halted  bool

	kept  atomic.Pointer[[]*keptCopier]
	stop  chan struct{}
	goers sync.WaitGroup
}

// keptCopier is the copier of a capture.
type keptCopier struct {
	copier *Copier
	start  func() (run func() error, err error)
	runs   atomic.Bool
}

// NewCopier makes a copier of that many bytes. again says that it will be captured.
func (p *Proxy) NewCopier(bytes int, again bool) (*Copier, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		var err error
		if p.f, err = p.d.loadCopier(); err != nil {
			return nil, err
		}
	}
	return p.d.newCopier(p.f, bytes, again)
}

// Begin waits until the kernel of k runs; own is its stream if nothing else is queued there. Nobody knows when a stream gets to
// it, so this has no deadline of its own. If the communicator breaks, it returns that error.
func (p *Proxy) Begin(ctx context.Context, k *Copier, own *Stream) error {
	var w DeviceWait
	for !k.Begun() {
		if e := p.d.c.Broken(); e != nil {
			return e
		}
		if ctx.Err() != nil {
			return reason.Ended(ctx)
		}
		if _, err := w.Step(p.d, own); err != nil && !errors.Is(err, fault.ErrTimeout) {
			return err
		}
	}
	return nil
}

// Done waits until k has done a copy. If the communicator breaks, it returns that error.
func (p *Proxy) Done(k *Copier, copy uint64) error {
	var w DeviceWait
	for !k.Done(copy) {
		if e := p.d.c.Broken(); e != nil {
			return e
		}
		if _, err := w.Step(p.d, nil); err != nil {
			return err
		}
	}
	return nil
}

// End waits until the kernel of k ends, after its last copy was told, and gives back what it used. If the communicator is
// broken, and own is nil, it does not wait: the Sync of the kernel's stream does.
func (p *Proxy) End(k *Copier, own *Stream) error {
	var w DeviceWait
	var err error
	var broken time.Time
	ended := k.Ended()
	for !ended && err == nil {
		if p.d.c.Broken() != nil {
			if own == nil {
				break
			}
			if broken.IsZero() {
				broken = time.Now()
			}
			if time.Since(broken) > WaitGrace {
				err = fmt.Errorf("what is queued has not ended after %v: %w", WaitGrace, fault.ErrTimeout)
				break
			}
		}
		if ended, err = w.Step(p.d, own); !ended {
			ended = k.Ended()
		}
	}
	switch {
	case !k.Ended():
		p.mu.Lock()
		p.lost = append(p.lost, k)
		p.mu.Unlock()
	case !k.Captured():
		k.GiveBack()
	}
	return err
}

// Keep has start called whenever the kernel of k, which is captured, begins, and then the run that it returns, in a goroutine,
// since others may have to run before it ends. start is called in the order in which kernels begin. If it has no error, the run
// tells the last copy. Its errors are for the next Sync.
func (p *Proxy) Keep(k *Copier, start func() (run func() error, err error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := append(slices.Clone(p.captures()), &keptCopier{copier: k, start: start})
	p.kept.Store(&all)
	if !p.serving && !p.halted {
		p.serving = true
		p.goers.Add(1)
		go p.serve()
	}
}

func (p *Proxy) captures() []*keptCopier {
	if all := p.kept.Load(); all != nil {
		return *all
	}
	return nil
}

// serve runs what was captured.
func (p *Proxy) serve() {
	defer p.goers.Done()
	last := time.Now()
	for p.d.c.Broken() == nil {
		select {
		case <-p.stop:
			return
		default:
		}
		found := false
		for _, k := range p.captures() {
			if !k.runs.Load() && k.copier.Begun() {
				k.runs.Store(true)
				p.replay(k)
				found = true
			}
		}
		switch waited := time.Since(last); {
		case found:
			last = time.Now()
		case waited < team.SleepAfter:
			runtime.Gosched()
		default:
			time.Sleep(min(waited/64, 200*time.Microsecond))
		}
	}
}

// replay runs k.
func (p *Proxy) replay(k *keptCopier) {
	run, err := k.start()
	if err != nil {
		p.d.Report(err)
		k.copier.Copy(0, 0, 0, true)
		run = func() error { return p.End(k.copier, nil) }
	}
	p.goers.Go(func() {
		if err := run(); err != nil {
			p.d.Report(err)
		}
		if k.copier.Ended() {
			k.copier.Again()
			k.runs.Store(false)
		}
	})
}

// Halt ends the runs of captures: it waits for those under way. It may be called more than once.
func (p *Proxy) Halt() {
	p.mu.Lock()
	if !p.halted {
		p.halted = true
		close(p.stop)
	}
	p.mu.Unlock()
	p.goers.Wait()
}

// close gives back what is left. A kernel of a broken communicator may still be in some stream's queue: its page is nobody else's
// then, and late says that there is one, which also looks at the device's status.
func (p *Proxy) close() (late bool) {
	p.Halt()
	for _, k := range p.lost {
		switch {
		case !k.Ended():
			late = true
		case !k.Captured():
			k.GiveBack()
		}
	}
	for _, k := range p.captures() {
		if !slices.Contains(p.lost, k.copier) || k.copier.Ended() {
			k.copier.GiveBack()
		}
	}
	return late
}
