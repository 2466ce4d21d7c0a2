package gpumail

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/register"
)

// farLane is the messages to a rank of another host, or from it.
type farLane struct {
	mu  sync.Mutex  // held while messages get their places and their kernel is queued on own: both orders are the same
	own *gpu.Stream // for blocking calls; nil until the first

	// Messages have slots in their order. Else later ones, of other streams, could keep all slots, and wait for an earlier
	// one that gets none.
	buffers sync.Mutex
	sizes   [2]slots // for short messages, and for others
	order   []*bounce
}

// slots are the buffers of one size.
type slots struct {
	memory *gpu.Pinned
	free   []slot
}

// slot is a buffer of page-locked memory.
type slot struct {
	ptr unsafe.Pointer
	at  cuda.Addr
}

// shortBytes is the size of a slot for short messages, and slotBytes that of the other ones.
var slotBytes = [2]int{shortBytes, mail.BouncePart}

const (
	shortBytes = 16 << 10
	laneSlots  = mail.BounceAhead // of each size
)

// sizeOf is the index of the slots for messages of n bytes.
func sizeOf(n int) int {
	if n > shortBytes {
		return 1
	}
	return 0
}

// reserve makes the slots for messages of n bytes. It may call the driver.
func (l *farLane) reserve(d *gpu.Domain, n int) error {
	size := sizeOf(n)
	l.buffers.Lock()
	defer l.buffers.Unlock()
	s := &l.sizes[size]
	if n == 0 || s.memory != nil {
		return nil
	}
	memory, err := d.TakePinned(laneSlots * slotBytes[size])
	if err != nil {
		return err
	}
	s.memory = memory
	for i := range laneSlots {
		s.free = append(s.free, slot{unsafe.Add(memory.Ptr(), i*slotBytes[size]), memory.At() + cuda.Addr(i*slotBytes[size])})
	}
	return nil
}

// bounce is the buffers through which a message passes: implements mail.Bounce. Whoever runs it copies; others, who have the
// message's lane, see how far that is. Where RDMA devices reach the memory of the device, nothing is copied.
type bounce struct {
	lane  *farLane
	msg   *mail.Message
	at    cuda.Addr // on the device
	bytes int
	parts int
	recv  bool
	claim *register.Claim // RDMA devices reach the memory by it; or nil
	why   string          // how they do, or why they do not

	slots  [laneSlots]slot // of part i: i % laneSlots
	copies [laneSlots]uint64
	told   int          // copies that were told
	freed  int          // parts whose slots were given back
	taken  atomic.Int64 // parts that have had a slot
	there  atomic.Int64 // parts of a send that were copied
	passed atomic.Int64 // parts that were sent, or have landed
	direct atomic.Int64 // parts, the first ones, that need no slots
	copied bool         // the others are copied
}

// nothing is where a message without data is.
var nothing [8]byte

func (b *bounce) set(l *farLane, k *mail.Call) {
	n := k.Vec.Bytes()
	*b = bounce{lane: l, at: cuda.Addr(uintptr(k.Vec.Ptr)), bytes: n, parts: (n + mail.BouncePart - 1) / mail.BouncePart, recv: k.Recv}
	b.msg = mail.NewBounced(k, b, whyBounced)
}

// reach lets RDMA devices read or write the message's memory, if there is a claim on it. It is called before the message has its place.
func (b *bounce) reach(cl *register.Claim, why string) {
	if b.claim, b.why = cl, why; cl != nil {
		b.direct.Store(int64(b.parts))
	}
}

// wasDirect reports whether RDMA devices have had all of the message.
func (b *bounce) wasDirect() bool { return b.parts > 0 && int(b.direct.Load()) == b.parts }

// whyBounced is why a message between hosts is not direct.
const whyBounced = "copied through page-locked host memory"

// Part implements mail.Bounce.
func (b *bounce) Part(i int) (p unsafe.Pointer, device bool) {
	ready := &b.there
	if b.recv {
		ready = &b.taken
	}
	switch {
	case b.bytes == 0:
		return unsafe.Pointer(&nothing), false
	case i < int(b.direct.Load()):
		off, _ := mail.PartOf(b.bytes, i)
		return unsafe.Add(b.memory(), off), true
	case int(ready.Load()) <= i:
		return nil, false
	}
	return b.slots[i%laneSlots].ptr, false
}

// Buffers implements mail.Bounce.
func (b *bounce) Buffers(i int) { b.direct.Store(int64(i)) }

// Passed implements mail.Bounce.
func (b *bounce) Passed(i int) { b.passed.Store(int64(i) + 1) }

// place gives the message its place, and its turn for slots.
func (b *bounce) place(m *mail.Mail, op string) error {
	l := b.lane
	l.buffers.Lock()
	defer l.buffers.Unlock()
	if err := m.Start(op, []*mail.Message{b.msg}); err != nil {
		return err
	}
	if b.bytes > 0 {
		l.order = append(l.order, b)
	}
	return nil
}

// take takes a slot for the next part, if it is the message's turn and one is free.
func (b *bounce) take() bool {
	l, i := b.lane, int(b.taken.Load())
	l.buffers.Lock()
	defer l.buffers.Unlock()
	s := &l.sizes[sizeOf(b.bytes)]
	last := len(s.free) - 1
	if last < 0 || len(l.order) == 0 || l.order[0] != b {
		return false
	}
	b.slots[i%laneSlots] = s.free[last]
	s.free = s.free[:last]
	b.taken.Store(int64(i) + 1)
	if i+1 == b.parts {
		l.order = l.order[1:]
	}
	return true
}

// release gives the slot of the oldest part back.
func (b *bounce) release() {
	l := b.lane
	l.buffers.Lock()
	s := &l.sizes[sizeOf(b.bytes)]
	s.free = append(s.free, b.slots[b.freed%laneSlots])
	l.buffers.Unlock()
	b.freed++
}

// end gives everything back. Nobody uses it any more.
func (b *bounce) end() {
	for b.freed < int(b.taken.Load()) {
		b.release()
	}
	if b.claim != nil {
		b.claim.Release()
		b.claim = nil
	}
	b.leave()
}

// leave ends its turn for slots.
func (b *bounce) leave() {
	l := b.lane
	l.buffers.Lock()
	defer l.buffers.Unlock()
	for i := range l.order {
		if l.order[i] == b {
			l.order = append(l.order[:i], l.order[i+1:]...)
			break
		}
	}
}

// memory is where the message is.
func (b *bounce) memory() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&b.at)) }

// part returns where part i is on the device, and its size.
func (b *bounce) part(i int) (at cuda.Addr, n int) {
	off, n := mail.PartOf(b.bytes, i)
	return b.at + cuda.Addr(off), n
}

// advance moves it on: it takes slots, tells copies, and gives slots back. It reports whether copies are under way.
func (b *bounce) advance(r *farRun) (busy bool) {
	done := b.msg.Done.Load()
	switch {
	case b.bytes == 0:
		return false
	case done && b.msg.Err != nil:
		if b.told > b.freed { // copies to the host: they end soon
			for b.told > b.freed && r.copier.Done(b.copies[b.freed%laneSlots]) {
				b.release()
			}
		}
		return b.told > b.freed
	case done && b.parts == 1:
		b.Passed(0)
	}
	if !b.copying(r, done) {
		return false
	}
	for int(b.taken.Load()) < min(b.parts, b.freed+laneSlots) && b.take() {
		if !b.recv {
			b.tell(r)
		}
	}
	passed := int(b.passed.Load())
	if !b.recv {
		there := int(b.there.Load())
		for ; there < b.told && r.copier.Done(b.copies[there%laneSlots]); there++ {
			b.there.Store(int64(there) + 1)
		}
		for b.freed < passed {
			b.release()
		}
		return there < b.told
	}
	for b.told < passed {
		b.tell(r)
	}
	for b.freed < b.told && r.copier.Done(b.copies[b.freed%laneSlots]) {
		b.release()
	}
	return b.freed < b.told
}

// copying reports whether parts are copied. done says that the message is over.
func (b *bounce) copying(r *farRun, done bool) bool {
	n := int(b.direct.Load())
	switch {
	case b.wasDirect():
		if done {
			b.leave()
		}
		return false
	case !b.copied:
		b.copied = true
		if b.claim != nil { // RDMA devices have what is before
			b.why = "the peer's memory is none that RDMA devices write, or the two have no connection over them"
			r.left += b.parts - n
			b.told, b.freed = n, n
			b.there.Store(int64(n))
			b.taken.Store(int64(n))
		}
	}
	return true
}

// tell tells the copy of the next part.
func (b *bounce) tell(r *farRun) {
	to, n := b.part(b.told)
	from := b.slots[b.told%laneSlots].at
	if !b.recv {
		to, from = from, to
	}
	r.left--
	// Sync of a program's own graph waits for the kernel alone, and RDMA devices use the memory until the end.
	r.last = r.left == 0 && !r.copier.Captured() && !r.direct
	b.copies[b.told%laneSlots] = r.copier.Copy(to, from, n, r.last)
	b.told++
}

// over reports whether all is done.
func (b *bounce) over() bool {
	switch {
	case !b.msg.Done.Load():
		return false
	case b.bytes == 0:
		return true
	case b.msg.Err != nil:
		return b.freed >= b.told
	}
	return b.wasDirect() || b.freed == b.parts
}
