package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// gpuMail is a communicator's messages of device memory. Kernels do them, and count them in the device areas, apart for
// each lane: for each peer and way. The host orders kernels of a lane as the calls came, and waits for nobody.
type gpuMail struct {
	mail  *Mail
	d     *device
	first int // status line
	lanes [kernels.MaxLanes]gpuLane
	spare chan int // status lines that no call has
	more  uint32   // of the streams' line: what collect has told of Status.More; under d.mu

	mu     sync.Mutex
	f      *cuda.Function       // nil until it is first used
	kept   laneBlocks           // that captures of others hold
	graphs map[*laneBlocks]bool // and those of graphs
	ops    uint64               // that were queued
	free   []*mark
	all    []*mark
	strays []*gpuStream // with something that no mark is after
	holds  []hold

	forking  sync.Mutex
	branches []*cuda.Stream // of captures

	using sync.RWMutex // held for reading while events are looked at, for writing to close them
	gone  bool
}

// gpuLane is the messages from, or to, one rank.
type gpuLane struct {
	mu     sync.Mutex // held while something is queued, which the driver may hold up
	own    *gpuStream // of blocking calls; nil until the first
	last   *mark      // after what was queued last; or nil
	closed bool

	// Under gpuMail.mu.
	blocks  int32 // of what is queued, at most
	queuing bool  // which no mark is after yet
}

// laneOf is the lane of messages to peer, or from it.
func laneOf(peer int, recv bool) int {
	if recv {
		return 2*peer + 1
	}
	return 2 * peer
}

// mark is an event after something that was queued on a stream.
type mark struct {
	event  *cuda.Event
	stream *gpuStream
	users  int // under gpuMail.mu
}

// hold is memory of a peer that copy engines write, until what was queued is done.
type hold struct {
	peer   DevicePeer
	extent uint32
	after  *mark // or nil
}

// deviceMail is the messages of device memory, or nil without a device.
func (m *Mail) deviceMail() *gpuMail {
	if m.c.device == nil {
		return nil
	}
	return m.gpu
}

// mailLines are the status lines: the first one is that of all that is queued on streams, the others are for one call
// each.
const mailLines = 128

// onDevice implements clientMaker.
func (m *Mail) onDevice(d *device) client {
	m.gpu = newGPUMail(m, d)
	return m.gpu
}

func newGPUMail(mail *Mail, d *device) *gpuMail {
	m := &gpuMail{mail: mail, d: d, spare: make(chan int, mailLines), graphs: map[*laneBlocks]bool{}}
	for i := 1; i < mailLines; i++ {
		m.spare <- i
	}
	return m
}

func (m *gpuMail) lines() int      { return mailLines }
func (m *gpuMail) begin(first int) { m.first = first }

func (m *gpuMail) setTimeout(uint64) {} // kernels take the device's

func (m *gpuMail) watch() { m.release(false) }

func (m *gpuMail) abort() {
	for i := range mailLines {
		m.status(i).Abort.Store(1)
	}
}

func (m *gpuMail) status(line int) *kernels.Status {
	return m.d.line(m.first + line)
}

// load finds the kernel at its first use.
func (m *gpuMail) load() (*cuda.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.f != nil {
		return m.f, nil
	}
	f, err := m.d.gpu.set.Kernel(kernels.Messages, dtype.Invalid, m.d.c.size)
	if err != nil {
		return nil, err
	}
	m.f = f
	return f, nil
}

// lock locks the lanes of a set, for something to be queued.
func (m *gpuMail) lock(lanes uint32) error {
	for i := range m.lanes {
		if lanes>>i&1 == 0 {
			continue
		}
		m.lanes[i].mu.Lock()
		if m.lanes[i].closed {
			m.unlock(lanes & (2<<i - 1))
			return fault.ErrClosed
		}
	}
	return nil
}

func (m *gpuMail) unlock(lanes uint32) {
	for i := range m.lanes {
		if lanes>>i&1 != 0 {
			m.lanes[i].mu.Unlock()
		}
	}
}

// order has what is queued next on cu begin after what the lanes have queued on other streams than s. The caller has
// them locked.
func (m *gpuMail) order(lanes uint32, s *gpuStream, cu *cuda.Stream) error {
	for i := range m.lanes {
		if lanes>>i&1 == 0 {
			continue
		}
		if last := m.lanes[i].last; last != nil && last.stream != s {
			if err := cu.Wait(last.event); err != nil {
				return err
			}
		}
	}
	return nil
}

// take takes a mark for what will be queued on s. The caller lets it go.
func (m *gpuMail) take(s *gpuStream) (*mark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		k := m.free[n-1]
		m.free = m.free[:n-1]
		k.stream, k.users = s, 1
		return k, nil
	}
	e, err := m.d.gpu.ctx.NewEvent(false)
	if err != nil {
		return nil, err
	}
	k := &mark{event: e, stream: s, users: 1}
	m.all = append(m.all, k)
	return k, nil
}

// set puts k after what has been queued on cu, as the last thing of the lanes, which the caller has locked.
func (m *gpuMail) set(k *mark, lanes uint32, cu *cuda.Stream) error {
	if err := k.event.Record(cu); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.lanes {
		if l := &m.lanes[i]; lanes>>i&1 != 0 {
			m.drop(l.last)
			l.last, l.queuing = k, false
			k.users++
		}
	}
	return nil
}

// stray remembers that something may be queued on s which no mark is after.
func (m *gpuMail) stray(s *gpuStream) {
	m.mu.Lock()
	m.strays = append(m.strays, s)
	m.mu.Unlock()
}

func (m *gpuMail) letGo(k *mark) {
	m.mu.Lock()
	m.drop(k)
	m.mu.Unlock()
}

// drop ends one use of k. The caller has mu.
func (m *gpuMail) drop(k *mark) {
	if k == nil {
		return
	}
	if k.users--; k.users == 0 {
		k.stream = nil
		m.free = append(m.free, k)
	}
}

// reached reports whether k has been reached; also when its communicator has gone meanwhile.
func (m *gpuMail) reached(k *mark) (bool, error) {
	m.using.RLock()
	defer m.using.RUnlock()
	if m.gone || k == nil {
		return true, nil
	}
	return k.event.Done()
}

// busy reports whether something that was queued on the lane has not ended. It takes no lock that a launch may hold.
func (m *gpuMail) busy(lane int) bool {
	m.mu.Lock()
	k := m.lanes[lane].last
	if k != nil {
		k.users++
	}
	m.mu.Unlock()
	if k == nil {
		return false
	}
	done, err := m.reached(k)
	m.letGo(k)
	return err == nil && !done
}

// anyBusy is a lane that is busy, or -1.
func (m *gpuMail) anyBusy() int {
	for i := range m.lanes {
		if m.busy(i) {
			return i
		}
	}
	return -1
}

// stuck is a peer that has closed its communicator while messages with it are queued, or -1.
func (m *gpuMail) stuck() int {
	for i := range m.lanes {
		r := i / 2
		if r < m.d.c.size && r != m.d.c.rank && m.d.c.team.Peers[r].Closed() && m.busy(i) {
			return r
		}
	}
	return -1
}

// shut lets nothing be queued any more, until reopen; fault.ErrBusy if something is, on a communicator that still works.
func (m *gpuMail) shut(broken bool) error {
	if err := m.lock(allLanes); err != nil {
		return err
	}
	if i := m.anyBusy(); i >= 0 && !broken {
		m.unlock(allLanes)
		return fmt.Errorf("a message of device memory, from or to rank %d, is on its way (its call, Request.Wait "+
			"or Stream.Sync ends it): %w", i/2, fault.ErrBusy)
	}
	return nil
}

// reopen ends shut, for good if closed.
func (m *gpuMail) reopen(closed bool) {
	for i := range m.lanes {
		m.lanes[i].closed = closed
	}
	m.unlock(allLanes)
}

const allLanes = 1<<kernels.MaxLanes - 1

// close gives up what the messages have on the device, once all that was queued has ended. Nothing is queued any more.
func (m *gpuMail) close() error {
	var errs []error
	m.mu.Lock()
	marks, strays := m.all, m.strays
	m.mu.Unlock()
	for _, s := range strays {
		s.quiet()
	}
	for i := range m.lanes {
		if s := m.lanes[i].own; s != nil {
			s.quiet()
		}
	}
	for _, k := range marks { // not those that are free, but these have been reached
		k.event.Sync() // a device that has ceased to work has said so
	}
	errs = append(errs, m.release(true))
	m.using.Lock()
	m.gone = true
	m.using.Unlock()
	for i := range m.lanes {
		if s := m.lanes[i].own; s != nil {
			m.d.gpu.remove(s)
			errs = append(errs, s.cu.Close())
		}
	}
	for _, s := range m.branches {
		errs = append(errs, s.Close())
	}
	for _, k := range marks {
		errs = append(errs, k.event.Close())
	}
	return errors.Join(errs...)
}

// release gives up the memory of peers that nothing writes any more, or all of it.
func (m *gpuMail) release(all bool) error {
	m.mu.Lock()
	holds := m.holds
	m.holds = nil
	m.mu.Unlock()
	var errs []error
	var rest []hold
	for _, h := range holds {
		if done, _ := m.reached(h.after); !done && !all {
			rest = append(rest, h)
			continue
		}
		if h.after != nil {
			m.letGo(h.after)
		}
		errs = append(errs, h.peer.Unhold(h.extent))
	}
	m.mu.Lock()
	m.holds = append(m.holds, rest...)
	m.mu.Unlock()
	return errors.Join(errs...)
}

// told is what kernels say in a line of the status page, and whether it breaks the communicator. The caller keeps the
// page from going.
func (m *gpuMail) told(op string, s *kernels.Status) (e *fault.Error, fatal bool) {
	c, peer := m.d.c, int(s.Peer)
	if peer >= c.size {
		peer = -1
	}
	code := s.Error.Load()
	if op == "" {
		if op = "send"; s.Detail == 1 && code == kernels.Mismatch {
			op = "recv"
		}
	}
	about := func(step string, err error) *fault.Error {
		e := m.mail.Error(op, peer, step, err)
		e.Seq, e.Device = uint64(s.Epoch), m.d.gpu.ctx.Device()
		return e
	}
	switch code {
	case kernels.OK:
		return nil, false
	case kernels.Mismatch:
		if s.Detail == 1 {
			return about("", fmt.Errorf("it sent %s, and %s were expected: %w", describeHead(s.Theirs),
				describeHead(s.Mine), fault.ErrMismatch)), false
		}
		return about("", fmt.Errorf("it expected %s, and %s were sent: %w", describeHead(s.Theirs), describeHead(s.Mine),
			fault.ErrMismatch)), false
	case kernels.Timeout:
		return about("wait", fmt.Errorf("nothing from it for %v%s: %w", time.Duration(c.team.Timeout.Load()), m.hint(peer),
			fault.ErrTimeout)), true
	case kernels.Aborted:
		return about("wait", fault.ErrAborted), true
	case kernels.NoExtent:
		return about("import", fmt.Errorf("it named memory that is not mapped here (%#x): %w", s.Detail, fault.ErrStale)), true
	case kernels.Astray:
		return about("copy", fmt.Errorf("it receives %s at another place than when both captured: %w",
			describeHead(s.Mine), fault.ErrMismatch)), true
	}
	return about("status", fmt.Errorf("status %d of a kernel is unknown: %w", code, fault.ErrAborted)), true
}

func describeHead(h uint64) string {
	return fmt.Sprintf("%d elements of %v", h&(1<<48-1), dtype.Type(h>>48))
}

// hint says what else has come from a peer that is waited for.
func (m *gpuMail) hint(peer int) string {
	if peer < 0 || peer == m.d.c.rank {
		return ""
	}
	b := m.mail.Box(peer)
	if !b.Recv.TryLock() {
		return ""
	}
	defer b.Recv.Unlock()
	if b.arrived() == nil {
		return ""
	}
	return " (but a message of host memory)"
}

// fatal is what has ended all messages, if something has. The caller keeps the page from going.
func (m *gpuMail) fatal() (first *fault.Error) {
	for i := range mailLines {
		e, fatal := m.told("", m.status(i))
		if fatal && (first == nil || errors.Is(first, fault.ErrAborted)) {
			first = e
		}
	}
	return first
}

// collect takes what kernels on streams have said.
func (m *gpuMail) collect() error {
	d := m.d
	d.mu.Lock()
	if d.gone {
		d.mu.Unlock()
		return nil
	}
	s := m.status(0)
	more := s.More.Load() // before the error is taken: what fails behind it is told or counted, by its own Sync at the latest
	e, fatal := m.told("", s)
	switch n := more - m.more; {
	case fatal:
		e = m.fatal()
	case e != nil:
		s.Error.Store(kernels.OK)
		s.Claim.Store(0)
		if n > 0 {
			e.Err = fmt.Errorf("%w (and %d more messages of this rank's streams did not match)", e.Err, n)
		}
	case n > 0:
		e = m.mail.Error("message", -1, "", fmt.Errorf("%d messages of this rank's streams did not match, and came "+
			"while the error of another one had not been taken: %w", n, fault.ErrMismatch))
		e.Device = d.gpu.ctx.Device()
	}
	m.more = more
	d.mu.Unlock()
	if e == nil {
		return nil
	}
	if fatal {
		d.c.failOpen(e)
		if b := d.c.broken.Load(); b != nil {
			return b
		}
	}
	return e
}
