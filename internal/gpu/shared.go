package gpu

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// shared is what all ranks of this process have in common on one device. They have one context there, and some calls of
// the driver wait until no kernel of the context runs: to unload a module, to load one, to unregister host memory. The
// kernel of one rank may wait for a rank that makes such a call. So kernels are loaded once for all, and host memory is
// registered until the last rank ends.
type shared struct {
	context *cuda.Context
	info    cuda.Info
	kernels *kernels.Set
	most    int          // streams of ranks that share it have work at the same time, at most
	chores  *cuda.Stream // clears memory and writes tables
	copying sync.Mutex   // held during copies
	copies  *cuda.Stream // for copies between host and device

	queueing sync.Mutex  // held while a stream gets work, see BeginQueueing
	unlock   func()      // queueing.Unlock
	several  atomic.Bool // there were several domains at the same time, or there are ranks of other processes

	mu      sync.Mutex
	domains map[*Domain]bool
	pages   map[int][]*page // free ones, by size
	all     []*page
	units   int              // of room that communicators of ranks that share have, see shareOf
	spare   []*cuda.Stream   // without work, see reserve
	queued  map[*Stream]bool // streams on which ranks that share have queued something, at least those where it has not ended
}

// place holds what ranks share on one device, while there are any. Its lock is held while a context is made or closed,
// which takes long: of several devices at the same time.
type place struct {
	sync.Mutex
	shared *shared
}

var places sync.Map // *place by hw.Device

func placeOf(dev hw.Device) *place {
	p, _ := places.LoadOrStore(dev, &place{})
	return p.(*place)
}

// join makes d one of the domains on device i; for streams and more see reserve.
func (d *Domain) join(i, streams, more int) error {
	p := placeOf(hw.CUDA(i))
	p.Lock()
	defer p.Unlock()
	s := p.shared
	if s == nil {
		info, err := cuda.Describe(hw.CUDA(i))
		if err != nil {
			return err
		}
		ctx, err := cuda.Primary(hw.CUDA(i))
		if err != nil {
			return err
		}
		s = &shared{context: ctx, info: info, kernels: kernels.New(ctx), domains: map[*Domain]bool{}, pages: map[int][]*page{},
			queued: map[*Stream]bool{}, most: connections() - 2} // chores and copies have a queue each
		s.unlock = s.queueing.Unlock
		if s.chores, err = ctx.NewStream(); err == nil {
			s.copies, err = ctx.NewStream()
		}
		if err != nil {
			return errors.Join(err, s.close())
		}
		p.shared = s
	}
	d.shared, d.Context, d.Kernels = s, s.context, s.kernels
	s.mu.Lock()
	s.domains[d] = true
	if len(s.domains) > 1 || d.Sharers > 1 {
		s.several.Store(true)
	}
	s.mu.Unlock()
	return s.reserve(streams, more)
}

// streamsOf returns how many streams the ranks that share a device are likely to use there: each has its own for blocking
// calls, and two for its messages with each rank. more are for the user, whose call would else keep other ranks waiting.
func streamsOf(sharers, ranks int) (n, more int) {
	if sharers > 1 {
		more = 32
	}
	return min(sharers*(8+2*ranks), 1024-more), more
}

// reserve makes streams of ranks for NewStream to take, until there are that many, and room for some more. To make more
// streams than a context has ever had (beyond some 35, on an H100 with driver 580), the driver waits until no kernel of the
// context runs, and so do all other calls meanwhile. Then a rank that made a stream for its next message would wait for
// kernels, and these perhaps for a peer that waits for the message. Users may have any number of streams beside these.
// While kernels run it does nothing. The caller has the place's lock.
func (s *shared) reserve(streams, more int) (err error) {
	s.mu.Lock()
	missing := streams - len(s.spare)
	s.mu.Unlock()
	if missing <= 0 || s.busy() {
		return nil
	}
	var all []*cuda.Stream
	for range missing + more {
		cu, err1 := s.context.NewStream()
		if err1 != nil {
			err = err1
			break
		}
		all = append(all, cu)
	}
	kept := min(missing, len(all))
	for _, cu := range all[kept:] {
		err = errors.Join(err, cu.Close())
	}
	s.mu.Lock()
	s.spare = append(s.spare, all[:kept]...)
	s.mu.Unlock()
	return err
}

// reserve makes streams for a communicator of that many ranks.
func (d *Domain) reserve(ranks int) error {
	p := placeOf(d.Context.Device())
	p.Lock()
	defer p.Unlock()
	streams, _ := streamsOf(1, ranks)
	return d.shared.reserve(streams, 0)
}

// takeStream returns a stream without work that is the caller's until giveStream.
func (s *shared) takeStream() (*cuda.Stream, error) {
	s.mu.Lock()
	if n := len(s.spare); n > 0 {
		defer s.mu.Unlock()
		cu := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return cu, nil
	}
	s.mu.Unlock()
	return s.context.NewStream()
}

// giveStream gives a stream back, or closes it if it has work or an error.
func (s *shared) giveStream(cu *cuda.Stream) error {
	if done, err := cu.Done(); !done || err != nil {
		return cu.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, cu)
	return nil
}

// leave undoes join.
func (d *Domain) leave() error {
	s := d.shared
	p := placeOf(s.context.Device())
	p.Lock()
	defer p.Unlock()
	s.mu.Lock()
	delete(s.domains, d)
	left := len(s.domains)
	s.mu.Unlock()
	if left > 0 {
		return nil
	}
	p.shared = nil
	return s.close()
}

// close frees all. Nobody uses it any more.
func (s *shared) close() error {
	var errs []error
	for _, cu := range append(s.spare, s.chores, s.copies) {
		if cu != nil {
			errs = append(errs, cu.Close())
		}
	}
	for _, p := range s.all {
		errs = append(errs, s.context.HostUnregister(unsafe.Pointer(&p.bytes[0])), syscall.Munmap(p.bytes))
	}
	return errors.Join(append(errs, s.kernels.Close(), s.context.Close())...)
}

// busy reports whether work of any rank on the device has not ended.
func (s *shared) busy() bool {
	s.mu.Lock()
	var all []*Domain
	for g := range s.domains {
		all = append(all, g)
	}
	s.mu.Unlock()
	for _, g := range all {
		if !g.idle() {
			return true
		}
	}
	return false
}

// page is zeroed host memory that the device reaches.
type page struct {
	bytes []byte
	at    cuda.Addr // on the device
}

// takePage returns a page of that many bytes. Peers do not reach it.
func (s *shared) takePage(bytes int) (*page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := s.pages[bytes]; len(free) > 0 {
		p := free[len(free)-1]
		s.pages[bytes] = free[:len(free)-1]
		clear(p.bytes)
		return p, nil
	}
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of host memory: %w", bytes, err)
	}
	at, err := s.context.HostRegister(unsafe.Pointer(&b[0]), bytes)
	if err != nil {
		return nil, errors.Join(err, syscall.Munmap(b))
	}
	p := &page{b, at}
	s.all = append(s.all, p)
	return p, nil
}

// givePage gives a page back that no kernel uses any more.
func (s *shared) givePage(p *page) {
	s.mu.Lock()
	s.pages[len(p.bytes)] = append(s.pages[len(p.bytes)], p)
	s.mu.Unlock()
}

// takeUnits takes room for a communicator of a rank that shares its device.
func (s *shared) takeUnits(units, multiprocessors int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := shareOf(multiprocessors, 1); s.units+units > all {
		return fmt.Errorf("kernels of this process's communicators wait in up to %d blocks at the same time, %d more are too many "+
			"for %v, which has room for %d: %w", s.units, units, s.context.Device(), all, fault.ErrLimit)
	}
	s.units += units
	return nil
}

func (s *shared) giveUnits(units int) {
	s.mu.Lock()
	s.units -= units
	s.mu.Unlock()
}

// Admit is called before work is queued on st for a rank of d. A stream with work has one of the device's queues, which
// several streams have together when there are more of them. What waits in a queue keeps back all that is behind it, of
// other streams too, so that ranks which share a device could wait for each other forever. So no more of their streams
// have work at the same time than there are queues. The caller is behind BeginQueueing, which admits its stream.
func (d *Domain) Admit(st *Stream) error {
	if d.Sharers <= 1 {
		return nil
	}
	s := d.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued[st] {
		return nil
	}
	if len(s.queued) >= s.most {
		for other := range s.queued {
			if other.idle() {
				delete(s.queued, other)
			}
		}
	}
	if len(s.queued) >= s.most {
		return fmt.Errorf("work on more than %d streams at the same time, where ranks share %v: each needs a queue of its own "+
			"(CUDA_DEVICE_MAX_CONNECTIONS): %w", s.most, s.context.Device(), fault.ErrLimit)
	}
	s.queued[st] = true
	return nil
}

// BeginQueueing is called before st gets work for a rank of d, and what it returns after that. Nothing in between may wait for
// a kernel. It waits if much is queued on st already, and then admits st: see Admit. If two threads give streams work at the
// same time, and neither stream has a queue, the driver may give both the same one (seen on an H100 with driver 580: once in 50
// times that two ranks made streams and queued two kernels each). So one thread does it at a time, where ranks share a device,
// also if only this process knows that they do: those of other communicators, or that claim other hosts.
func (d *Domain) BeginQueueing(st *Stream) (end func(), err error) {
	d.pace(st, 1)
	return d.beginPaced(st)
}

// pace is Stream.pace where ranks share the device.
func (d *Domain) pace(st *Stream, n int) {
	if d.shared.several.Load() {
		st.pace(int32(n))
	}
}

// beginPaced is BeginQueueing for work that pace has been told of.
func (d *Domain) beginPaced(st *Stream) (end func(), err error) {
	if !d.shared.several.Load() {
		return func() {}, nil
	}
	d.shared.queueing.Lock()
	if err := d.Admit(st); err != nil {
		d.shared.queueing.Unlock()
		return nil, err
	}
	return d.shared.unlock, nil
}

// choresOf is the stream for chores, for packages that know nothing of BeginQueueing.
type choresOf struct{ s *shared }

func (c choresOf) Fill(at cuda.Addr, b byte, n int) error {
	c.s.queueing.Lock()
	defer c.s.queueing.Unlock()
	return c.s.chores.Fill(at, b, n)
}

func (c choresOf) Upload(at cuda.Addr, b []byte) error {
	c.s.queueing.Lock()
	defer c.s.queueing.Unlock()
	return c.s.chores.Upload(at, b)
}

func (c choresOf) Sync() error { return c.s.chores.Sync() }

// copyPiece is how many bytes are copied between host and device, where ranks share it, while no stream can get work.
const copyPiece = 4 << 20

// copy copies between host and device.
func (s *shared) copy(a cuda.Addr, b []byte, in bool) error {
	s.copying.Lock()
	defer s.copying.Unlock()
	s.mu.Lock()
	most := len(b)
	if len(s.domains) > 1 {
		most = copyPiece
	}
	s.mu.Unlock()
	for len(b) > 0 {
		piece := b[:min(len(b), most)]
		s.queueing.Lock()
		var err error
		if in {
			err = s.copies.Upload(a, piece)
		} else {
			err = s.copies.Download(piece, a)
		}
		s.queueing.Unlock()
		if err != nil {
			return err
		}
		a, b = a+cuda.Addr(len(piece)), b[len(piece):]
	}
	return nil
}

// connections is how many queues the driver makes of a device.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
func connections() int {
	if n, err := strconv.Atoi(os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS")); err == nil && n >= 1 && n <= 32 {
		return n
	}
	return 32 // package cuda asks for that
}
