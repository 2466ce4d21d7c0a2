package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/sendq"
	"github.com/ubcoll/ubcoll/register"
)

// Sink receives what comes on a connection.
type Sink interface {
	frame.Sink
	// Wrote is called after the peer has written n bytes to the memory that a grant's Landing described, behind those
	// before; last says that the put ends with them. Calls are as those of Landed. An error ends the connection.
	Wrote(index uint32, n int, last bool) error
}

// Conn is one queue pair with its completion queue. Its methods are local and safe for concurrent use. None waits for
// the peer but Connect, Ping and Drop.
//
// What cannot be sent at once waits in a queue, with the same order as that of package tcp: words first, then
// communicators take turns with their other puts, a chunk each.
type Conn struct {
	nic     *NIC
	channel *ib.Channel
	cq      *ib.CQ
	qp      *ib.QP
	out     slots // of messages under way
	find    func(addr uintptr, n int) *register.Claim
	access  ib.Access // what the peer may do by this queue pair
	sink    Sink
	counts  counts

	news      atomic.Bool // perhaps something has completed that nobody has looked at
	receiving sync.Mutex  // held by the goroutine that looks at the completion queue
	done      [16]ib.Completion
	used      []uint64 // receives that are to be posted again
	pinged    bool     // the peer has
	end       error
	wrong     bool // the peer breaks the protocol: nothing more of it counts
	closed    bool // written under receiving and sending
	dead      bool // the queue pair is destroyed; as closed

	sending sync.Mutex // held by the goroutine that posts
	work    [batch]ib.Work

	mu     sync.Mutex // guards the rest
	open   bool       // connected: what is queued may leave
	gone   bool       // as dead
	have   int        // how many messages and chunks the peer has room for
	owed   int        // receives that are posted again, and the peer does not know it
	flight [depth]*sendq.Put
	sizes  [depth]int
	works  [depth]ib.Work
	first  uint64 // of flight that has not completed
	next   uint64 // to be posted; its message is out's of the same index
	queue  sendq.Queue
	broken atomic.Pointer[error] // of posting
}

const (
	depth = credits + 1 // that are under way: an answer to the last one may come before its completion
	batch = 16          // that one call posts
	half  = credits / 2 // so many receives that the peer does not know of are worth a message
	again = half / 2    // so many are posted together
)

// The first byte of messages that are no frames, which begin with another. The second is how many credits they return.
const (
	credit = iota + 1
	ping
)

// Immediates of chunks: the landing's index, whether the put ends, and how many credits return.
const (
	lastBit     = 1 << 20
	creditShift = 24
	mostReturns = 1<<8 - 1
)

// New makes this process's end of a connection, and returns its address for the peer's Connect. find returns the claim
// on registered memory that contains the bytes at an address, or nil. access is what the peer may do by this connection,
// if its keys allow it, too.
func New(n *NIC, find func(addr uintptr, n int) *register.Claim, access ib.Access) (c *Conn, addr ib.Address, err error) {
	if err = n.take(); err != nil {
		return nil, ib.Address{}, err
	}
	made := &Conn{nic: n, find: find, access: access, have: credits}
	c = made
	d := n.pd.Device()
	defer func() {
		if err != nil {
			err = errors.Join(err, made.free())
		}
	}()
	if c.out, err = n.lay(depth); err != nil {
		return nil, addr, err
	}
	if c.channel, err = d.CreateChannel(); err != nil {
		return nil, addr, err
	}
	if c.cq, err = d.CreateCQ(depth+credits, c.channel); err != nil {
		return nil, addr, err
	}
	if addr, err = c.pair(); err != nil {
		return nil, addr, err
	}
	n.mu.Lock()
	n.gid = addr.GID
	n.mu.Unlock()
	return c, addr, c.cq.Notify(false)
}

// pair makes the queue pair.
func (c *Conn) pair() (addr ib.Address, err error) {
	n := c.nic
	if c.qp, err = n.pd.CreateQP(ib.QPConfig{Send: c.cq, Receive: c.cq, Shared: n.shared, Work: depth, Inline: inline}); err != nil {
		return addr, err
	}
	return c.qp.Init(n.path, c.access)
}

// inline is the largest message that every device takes inside of its work request, and sends without reading memory.
const inline = 64

// Connect connects the queue pair; name is the peer's name in errors. See QP.Connect. What has been queued leaves then.
func (c *Conn) Connect(peer ib.Address, name string) error {
	if err := c.connect(peer, name); err != nil {
		return err
	}
	c.Flush()
	return nil
}

func (c *Conn) connect(peer ib.Address, name string) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.dead {
		return fault.ErrClosed
	}
	if err := c.qp.Connect(peer, name); err != nil {
		return err
	}
	for i := c.first; i < c.next; { // of before Renew
		n := 0
		for ; n < batch && i < c.next; i++ {
			c.work[n] = c.works[i%depth]
			n++
		}
		c.post(n)
	}
	c.mu.Lock()
	c.open = true
	c.mu.Unlock()
	return nil
}

// Ping sends the peer a message and waits until its own has come, or ctx ends. Both ends call it, once both have
// connected, and before anything else.
func (c *Conn) Ping(ctx context.Context) error {
	c.message([]byte{ping, 0})
	for {
		c.receiving.Lock()
		_, err := c.take(1)
		pinged := c.pinged
		c.receiving.Unlock()
		c.mu.Lock()
		came := c.first > 0
		c.mu.Unlock()
		switch {
		case err != nil:
			return err
		case pinged && came:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("no answer to a ping: %w", context.Cause(ctx))
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// Begin says who receives. It is called once, after Ping.
func (c *Conn) Begin(s Sink) { c.sink = s }

// Broken reports whether posting has failed, which no completion tells: the next Receive does.
func (c *Conn) Broken() bool { return c.broken.Load() != nil }

// FD is readable once something has completed since Arm.
func (c *Conn) FD() int { return c.channel.FD() }

// Told takes what FD tells of. Then it tells of nothing before Arm.
func (c *Conn) Told() { _, _ = c.channel.Take() }

// Arm lets FD tell of what completes from now on. What has completed before, the next Receive finds: call it.
func (c *Conn) Arm() {
	if err := c.cq.Notify(false); err != nil {
		c.broken.CompareAndSwap(nil, &err)
	}
	c.news.Store(true)
}

// Receive handles what has completed, and reports whether there was anything. It does nothing while another goroutine
// receives. Once there is an error, every call returns it: a *ib.CompletionError, frame.ErrFrame, or an error of the Sink.
func (c *Conn) Receive() (moved bool, err error) {
	for c.receiving.TryLock() {
		c.news.Store(false)
		n, failed := c.takeAll()
		c.receiving.Unlock()
		moved, err = moved || n > 0, failed
		if err != nil || !c.news.Load() { // else Arm was called after the last look, by one who did not get the lock
			break
		}
	}
	c.credit()
	return moved, err
}

// takeAll handles completions until there are none. The caller holds receiving. It ends, since no credit returns
// meanwhile.
func (c *Conn) takeAll() (all int, err error) {
	for {
		n, err := c.take(len(c.done))
		if all += n; err != nil || n < len(c.done) {
			return all, err
		}
	}
}

// Drain waits until no other goroutine receives, and then receives all that has arrived. Its error is Receive's.
func (c *Conn) Drain() error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	_, err := c.takeAll()
	return err
}

// take handles up to most completions. The caller holds receiving.
func (c *Conn) take(most int) (int, error) {
	if c.end != nil {
		return 0, c.end
	}
	if err := c.broken.Load(); err != nil {
		c.end = *err
		return 0, c.end
	}
	n, err := c.cq.Poll(c.done[:most], 1)
	if err != nil {
		c.end = err
		return 0, err
	}
	for i := range c.done[:n] {
		x := &c.done[i]
		c.handle(x)
	}
	if len(c.used) >= again {
		if err := c.nic.again(c.used); err != nil && c.end == nil {
			c.end = err
		}
		c.mu.Lock()
		c.owed += len(c.used)
		c.mu.Unlock()
		c.used = c.used[:0]
	}
	return n, c.end
}

// handle handles a completion. What the peer has sent counts even if this end's work has failed. The caller holds
// receiving.
func (c *Conn) handle(x *ib.Completion) {
	switch {
	case x.Status != ib.Success:
		if c.end == nil {
			c.end = c.cq.Failure(x)
		}
	case !x.Received():
		if c.end == nil {
			c.completed()
		}
	default:
		c.used = append(c.used, x.ID)
		if c.wrong {
			return
		}
		if err := c.arrived(x); err != nil {
			c.end, c.wrong = err, true
		}
	}
}

// unlock unlocks mu, and releases the claims of puts that are over.
func (c *Conn) unlock() {
	ended := c.queue.Ended()
	c.mu.Unlock()
	for _, cl := range ended {
		cl.Release()
	}
}

// completed handles the end of the oldest work request that is under way.
func (c *Conn) completed() {
	c.mu.Lock()
	defer c.unlock()
	i := c.first % depth
	x := c.flight[i]
	c.flight[i] = nil
	c.counts.acked += uint64(c.sizes[i])
	c.first++
	c.queue.Hold(-1)
	if x != nil {
		c.queue.Completed(x)
	}
}

// arrived handles a message or a chunk.
func (c *Conn) arrived(x *ib.Completion) error {
	if v, ok := x.Immediate(); ok {
		c.returned(int(v >> creditShift))
		c.counts.received.Add(uint64(x.Bytes))
		last := v&lastBit != 0
		if last {
			c.counts.putsReceived.Add(1)
		}
		return c.sink.Wrote(v&(lastBit-1), int(x.Bytes), last)
	}
	b := unsafe.Slice((*byte)(c.nic.slot(x.ID)), slotBytes)[:x.Bytes]
	if len(b) < 2 {
		return fmt.Errorf("%w: a message of %d bytes", frame.ErrFrame, len(b))
	}
	switch {
	case b[0] == credit:
		c.returned(int(b[1]))
		return nil
	case b[0] == ping:
		c.pinged = true
		return nil
	case len(b) < frame.HeaderSize:
		return fmt.Errorf("%w: a message of %d bytes that begins with %#x", frame.ErrFrame, len(b), b[0])
	}
	c.counts.received.Add(uint64(x.Bytes))
	c.returned(int(b[creditByte]))
	b[creditByte] = 0
	h, err := frame.Decode(b)
	if err != nil {
		return err
	}
	rest := b[frame.HeaderSize:]
	switch {
	case h.Kind == frame.Grant && len(rest) == landingBytes:
		h.Landing = decodeLanding(rest)
	case len(rest) != h.Payload():
		return frame.Refused(h, fmt.Sprintf("%d bytes follow its head", len(rest)))
	}
	if !h.Kind.Loaded() {
		return c.sink.Told(h)
	}
	p, ok, err := c.sink.Place(h)
	if err != nil {
		return err
	}
	if h.Kind != frame.Part {
		c.counts.putsReceived.Add(1)
	}
	if ok {
		copy(unsafe.Slice((*byte)(p), len(rest)), rest)
		c.sink.Landed(h)
	}
	return nil
}

// creditByte is the byte of a frame's head that says how many credits return with it.
const creditByte = 3

const landingBytes = 8 + 4*mr.MostNICs + 4

func appendLanding(b []byte, l frame.Landing) []byte {
	b = binary.LittleEndian.AppendUint64(b, l.Address)
	for _, key := range l.Keys {
		b = binary.LittleEndian.AppendUint32(b, uint32(key))
	}
	index := l.Index
	if l.Device {
		index |= deviceBit
	}
	return binary.LittleEndian.AppendUint32(b, index)
}

// deviceBit marks the index of a landing in memory of a device.
const deviceBit = 1 << 31

func decodeLanding(b []byte) (l frame.Landing) {
	l.Address, b = binary.LittleEndian.Uint64(b), b[8:]
	for i := range l.Keys {
		l.Keys[i], b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
	}
	index := binary.LittleEndian.Uint32(b)
	l.Index, l.Device = index&^deviceBit, index&deviceBit != 0
	return l
}

// returned adds credits that the peer has returned.
func (c *Conn) returned(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.have += n
	c.mu.Unlock()
	if c.waits() {
		c.Flush()
	}
}

// credit returns credits by a message of their own, if they are many.
func (c *Conn) credit() {
	c.mu.Lock()
	due := c.owed >= half && c.have > 0
	c.mu.Unlock()
	if due {
		c.message([]byte{credit, 0})
	}
}
