// Package words does atomics on words of 8 bytes by an RDMA device. Most devices do atomics of one word one after the other only
// if all go through that one device: the processor's are not among them (verbs.AtomicsDevice). So everybody who changes a
// word of some rank has a queue pair to that rank's first device, ranks of its own host and the rank itself included.
//
// Everything here is local, and safe for concurrent use.
package words

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
)

// Set is a rank's queue pairs for atomics.
type Set struct {
	pd     *ib.PD
	path   ib.Path
	memory []byte // where what words were comes to: one for each pair
	region *ib.MR

	mu    sync.Mutex
	pairs []*Pair
}

// Open makes an empty Set on the first NIC of a backend. fault.ErrNotSupported: b is nil, or not all of its NICs have atomics,
// so that memory is not registered for them.
func Open(b *mr.Backend) (*Set, error) {
	if b == nil {
		return nil, fmt.Errorf("this rank has no RDMA device: %w", fault.ErrNotSupported)
	}
	for _, n := range b.NICs() {
		if n.Device.Limits().Atomics == ib.AtomicsNone {
			return nil, fmt.Errorf("%s has no atomics: %w", n.Device.Name(), fault.ErrNotSupported)
		}
	}
	nic := b.NICs()[0]
	s := &Set{pd: nic.PD}
	s.path, _ = b.Wires()
	s.path.Port = nic.Ports[0]
	var err error
	if s.memory, err = unix.Mmap(-1, 0, shm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("memory for atomics: %w", err)
	}
	if s.region, err = s.pd.Register(uintptr(unsafe.Pointer(unsafe.SliceData(s.memory))), len(s.memory), ib.LocalWrite); err != nil {
		return nil, errors.Join(err, unix.Munmap(s.memory))
	}
	return s, nil
}

// Name is the device's name.
func (s *Set) Name() string { return s.pd.Device().Name() }

// Close closes all pairs. Nobody may use them meanwhile. A nil Set closes, too.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.pairs {
		errs = append(errs, p.close())
	}
	s.pairs = nil
	if err := s.region.Close(); err != nil { // then the device may still write there
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, unix.Munmap(s.memory))...)
}

// Pair is a queue pair to a rank, for this rank's atomics there and for that rank's here.
type Pair struct {
	set *Set
	cq  *ib.CQ
	qp  *ib.QP
	was *uint64 // what the word was

	doing   sync.Mutex // held by whoever does an atomic
	pending bool       // the one before was given up, and has not completed
	failed  atomic.Pointer[error]
}

// New makes a pair, and returns its address for the peer's Connect. fault.ErrLimit: the set is full.
func (s *Set) New() (p *Pair, addr ib.Address, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.pairs)
	if (i+1)*8 > len(s.memory) {
		return nil, addr, fmt.Errorf("%d queue pairs for atomics: %w", i, fault.ErrLimit)
	}
	made := &Pair{set: s, was: (*uint64)(unsafe.Pointer(&s.memory[8*i]))}
	defer func() {
		if err != nil {
			err = errors.Join(err, made.close())
		}
	}()
	if made.cq, err = s.pd.Device().CreateCQ(2, nil); err != nil {
		return nil, addr, err
	}
	if made.qp, err = s.pd.CreateQP(ib.QPConfig{Send: made.cq, Receive: made.cq, Work: 1}); err != nil {
		return nil, addr, err
	}
	if addr, err = made.qp.Init(s.path, ib.RemoteAtomic); err != nil {
		return nil, addr, err
	}
	s.pairs = append(s.pairs, made)
	return made, addr, nil
}

func (p *Pair) close() error {
	var errs []error
	if p.qp != nil {
		errs = append(errs, p.qp.Close())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	return errors.Join(errs...)
}

// Connect connects the pair; name is the peer's name in errors. It may block, as QP.Connect does.
func (p *Pair) Connect(peer ib.Address, name string) error { return p.qp.Connect(peer, name) }

// FetchAdd and CompareSwap are what Do does to a word.
func FetchAdd(add uint64) ib.Work { return ib.Work{Op: ib.FetchAdd, Add: add} }

// CompareSwap sets the word to new if it is old.
func CompareSwap(old, new uint64) ib.Work { return ib.Work{Op: ib.CompareSwap, Add: old, Swap: new} }

// Unknown is the error of an atomic that may have been done, or not.
type Unknown struct{ Err error }

// Error implements error.
func (e *Unknown) Error() string { return "the outcome is unknown: " + e.Err.Error() }

// Unwrap returns why.
func (e *Unknown) Unwrap() error { return e.Err }

// Do does an atomic, which FetchAdd or CompareSwap has made, to the word at an offset of the peer's region, and returns what the
// word was. wait waits until its
// argument returns true; if it returns an error, Do gives up. Errors: those of wait, as an Unknown if the atomic was begun.
// fault.ErrStale: the peer's memory is not registered any more; it was not done. Others are an Unknown: the device has failed. After
// these two the pair is of no use: see Err.
func (p *Pair) Do(op ib.Work, r transport.Region, off uint64, wait func(ready func() bool) error) (was uint64, err error) {
	if !p.doing.TryLock() {
		if err := wait(p.doing.TryLock); err != nil {
			return 0, err
		}
	}
	defer p.doing.Unlock()
	if err := p.Err(); err != nil {
		return 0, err
	}
	var done [1]ib.Completion
	var failed error
	completed := func() bool {
		var n int
		n, failed = p.cq.Poll(done[:], 1)
		return n > 0 || failed != nil
	}
	if p.pending {
		if err := wait(completed); err != nil {
			return 0, err
		}
		p.pending = false
		if err := p.outcome(&done[0], failed); err != nil {
			return 0, err
		}
	}
	op.Local, op.Length, op.Key, op.Flags = uint64(uintptr(unsafe.Pointer(p.was))), 8, p.set.region.LKey(), ib.Signaled
	op.Remote, op.Peer = r.Address+off, ib.RKey(r.Key)
	if _, err := p.qp.Post(op); err != nil {
		return 0, p.fail(err)
	}
	p.pending = true
	if err := wait(completed); err != nil {
		return 0, &Unknown{err}
	}
	p.pending = false
	if err := p.outcome(&done[0], failed); err != nil {
		return 0, err
	}
	return atomic.LoadUint64(p.was), nil
}

// outcome is the error of a completion, or of looking for it.
func (p *Pair) outcome(done *ib.Completion, failed error) error {
	switch {
	case failed == nil && done.Status == ib.Success:
		return nil
	case failed == nil:
		failed = p.cq.Failure(done)
	}
	p.fail(failed)
	if errors.Is(failed, fault.ErrStale) {
		return failed
	}
	return &Unknown{failed}
}

func (p *Pair) fail(err error) error {
	err = fmt.Errorf("the queue pair for atomics has failed: %w", err)
	p.failed.CompareAndSwap(nil, &err)
	return err
}

// Err is why the pair does no more, or nil.
func (p *Pair) Err() error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}
