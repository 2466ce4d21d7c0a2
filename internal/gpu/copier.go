package gpu

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Copier is a kernel that copies, in its place on a stream, what its host tells it, which may wait for other hosts in
// between. It ends with the last copy. In a capture it runs again and again. One goroutine at a time.
type Copier struct {
	d      *Device
	f      *cuda.Function
	page   *page
	words  *kernels.CopierPage
	grid   int
	again  bool // it runs more than once
	serial uint64
	told   uint64             // copies
	queue  []kernels.CopyTold // for which the page has no room
}

// copierBlocks is how many blocks copy more than copierFew bytes, which one block does.
const (
	copierBlocks = 4
	copierFew    = 64 << 10
)

// newCopier makes a copier of that many bytes, whose kernel is f. again says that it will be captured.
func (d *Device) newCopier(f *cuda.Function, bytes int, again bool) (*Copier, error) {
	p, err := d.Domain.shared.takePage(int(unsafe.Sizeof(kernels.CopierPage{})))
	if err != nil {
		return nil, err
	}
	k := &Copier{d: d, f: f, page: p, words: (*kernels.CopierPage)(unsafe.Pointer(&p.bytes[0])), grid: 1, again: again, serial: 1}
	k.words.Serial.Store(1)
	if bytes > copierFew {
		k.grid = min(copierBlocks, d.Room.Collectives)
	}
	return k, nil
}

// loadCopier finds the kernel.
func (d *Device) loadCopier() (*cuda.Function, error) {
	return d.Domain.Kernels.Kernel(kernels.Copier, dtype.Invalid, d.c.Team().Size())
}

// Launch queues the kernel on cu. It ends at once if the communicator breaks.
func (k *Copier) Launch(cu *cuda.Stream) error {
	params := kernels.CopierParams{Status: k.d.Params.Status, Page: uint64(k.page.at)}
	return k.f.Launch(cu, cuda.Launch{Grid: k.grid, Block: min(k.d.Room.Threads, k.f.MaxThreads)}, kernels.Bytes(&params))
}

// Copy tells it to copy n bytes, on the device's addresses, and returns the number of that copy. What is told before the
// kernel begins is copied then. After the last copy nothing more is told.
func (k *Copier) Copy(to, from cuda.Addr, n int, last bool) uint64 {
	c := kernels.CopyTold{To: uint64(to), From: uint64(from), Bytes: uint64(n)}
	if last {
		c.Last = 1
	}
	k.queue = append(k.queue, c)
	k.tell()
	return k.told + uint64(len(k.queue))
}

// tell tells the kernel what there is room for.
func (k *Copier) tell() {
	for len(k.queue) > 0 && k.told-k.done() < kernels.CopierRing {
		c := &k.queue[0]
		k.words.Copies[k.told%kernels.CopierRing] = *c
		if k.told++; c.Last != 0 && k.again {
			k.words.Serial.Store(k.serial%(1<<32-1) + 1)
		}
		k.words.Told.Store(k.serial<<32 | k.told)
		k.queue = k.queue[1:]
	}
}

// done is how many copies are done.
func (k *Copier) done() uint64 {
	done := k.told
	for b := range k.grid {
		v := k.words.Done[b].Load()
		switch n := v & (1<<32 - 1); {
		case v>>32 != k.serial || n == 0:
			return 0
		case n != kernels.CopierEnded:
			done = min(done, n-1)
		}
	}
	return done
}

// Done reports whether the copy of that number is done.
func (k *Copier) Done(number uint64) bool {
	if len(k.queue) > 0 {
		k.tell()
	}
	return k.done() >= number
}

// Begun reports whether the kernel runs.
func (k *Copier) Begun() bool {
	for b := range k.grid {
		if k.words.Done[b].Load()>>32 != k.serial {
			return false
		}
	}
	return true
}

// Ended reports whether the kernel has told that it ends.
func (k *Copier) Ended() bool {
	for b := range k.grid {
		if k.words.Done[b].Load() != k.serial<<32|kernels.CopierEnded {
			return false
		}
	}
	return true
}

// Again makes it ready for the kernel's next run, once it has ended.
func (k *Copier) Again() {
	k.serial = k.words.Serial.Load()
	k.told, k.queue = 0, nil
}

// Captured reports whether it may run again.
func (k *Copier) Captured() bool { return k.again }

// GiveBack ends its use of host memory, once no kernel runs any more.
func (k *Copier) GiveBack() { k.d.Domain.shared.givePage(k.page) }

// DeviceWait is a wait for a kernel that does not wait for others. The zero DeviceWait begins one.
type DeviceWait struct{ w carryWait }

// Step lets others run, or sleeps. Now and then it asks whether s, if it is not nil, has no work, and looks at the time.
func (w *DeviceWait) Step(d *Device, s *Stream) (ended bool, err error) {
	waited := w.w.step()
	if waited == 0 {
		return false, nil
	}
	if s != nil {
		if ended, err = s.Done(); ended || err != nil {
			return ended, err
		}
	}
	if waited > time.Duration(d.c.Team().Timeout.Load())+WaitGrace {
		return false, fmt.Errorf("the device has not ended what it copies after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
	}
	return false, nil
}

// Pinned is page-locked host memory, which the network may reach: see TakePinned.
type Pinned = locked

// Ptr and At are where it is for the host, and for the device.
func (l *locked) Ptr() unsafe.Pointer { return l.ptr }
func (l *locked) At() cuda.Addr       { return l.at }

// TakePinned returns page-locked memory of at least n bytes, GivePinned gives some back.
func (d *Domain) TakePinned(n int) (*Pinned, error) {
	l, err := d.pinned.take(d, n)
	if err != nil {
		return nil, fmt.Errorf("page-locked memory for what goes between hosts: %w", err)
	}
	return l, nil
}

// GivePinned gives back what TakePinned returned.
func (d *Domain) GivePinned(all ...*Pinned) { d.pinned.give(all...) }

// GivePinned gives back what copiers used. If the communicator is broken, it stays until the domain ends: a copier that
// nobody waits for any more may still copy there.
func (d *Device) GivePinned(all ...*Pinned) {
	if d.c.Broken() == nil {
		d.Domain.GivePinned(all...)
	}
}

// Report has the next Sync of a stream that the communicator uses return err.
func (d *Device) Report(err error) {
	d.mu.Lock()
	d.pending = append(d.pending, err)
	d.mu.Unlock()
}
