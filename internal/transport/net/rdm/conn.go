package rdm

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/net/sendq"
	"github.com/ubcoll/ubcoll/register"
)

const (
	credits = 32          // messages that the peer has room for; this and the next are powers of 2
	depth   = 32          // messages and chunks under way
	batch   = 16          // that one call posts
	half    = credits / 2 // so many handled messages that the peer does not know of are worth a message
)

// Conn is a connection to a peer. Its methods are local and safe for concurrent use. None waits for the peer but Ping
// and Drop; Close waits for the provider.
//
// What cannot be sent at once waits in a queue, with the same order as that of package tcp: words first, then
// communicators take turns with their other puts, a chunk each.
type Conn struct {
	end    *Endpoint
	id     uint32 // of this end
	mine   uint64 // what the peer's messages begin with, id in the lower half
	theirs uint64
	peer   fabric.Peer
	name   string // the peer's
	out    slots  // of messages under way
	find   func(addr uintptr, n int) *register.Claim
	sink   frame.Sink
	move   func() bool // of Begin; guarded by the endpoint's lock
	counts counts

	news      atomic.Bool   // perhaps something has come that nobody has looked at
	waiting   atomic.Bool   // it is in the endpoint's list of news
	acts      atomic.Uint64 // what has completed here
	receiving sync.Mutex    // held by the goroutine that handles what has come
	acted     uint64
	used      []uint32 // receives that are to be posted again
	pinged    bool     // the peer has
	ended     bool     // the peer sends nothing more
	wrong     error    // how the peer has broken the protocol, or the sink's error
	closed    bool     // written under receiving and sending

	sending sync.Mutex // held by the goroutine that posts
	work    [batch]fabric.Work
	from    int // of work, that is not posted yet
	to      int

	mu     sync.Mutex // guards the rest
	err    error      // why nothing more goes
	stale  bool       // the endpoint is closed
	foul   bool       // the peer may still write
	open   bool       // connected: what is queued may leave
	gone   bool       // nothing is queued any more
	shut   bool       // the end of the stream is to be sent behind all that is queued
	flight [depth]flight
	first  uint32 // of flight that has not completed
	next   uint32 // to be laid out; its message is out's of the same index
	queue  sendq.Queue
	held   []frame.Header // that wait for chunks to complete

	sent    uint32 // messages
	taken   uint32 // messages of this end that the peer has handled
	handled uint32 // messages of the peer
	told    uint32 // of these, how many the peer knows of
	in      [credits]message
}

// flight is work that is under way.
type flight struct {
	put  *sendq.Put // of a chunk
	size int
	live bool // and has not completed
}

// message is one that has come, in a receive; its length is 0 if it has not.
type message struct {
	slot  uint32
	bytes int
}

// prefix begins each message, in little endian.
type prefix struct {
	id     uint64 // what the receiver has asked for
	number uint32 // of messages
	taken  uint32 // messages that the sender has handled
	kind   byte
}

// The kinds of messages.
const (
	framed  = iota // frames and their payloads follow
	written        // a frame whose payload was written in chunks before, and its length (8)
	credit         // nothing follows
	ping
	last // nothing more comes
	kinds
)

func (p prefix) encode(b []byte) {
	_ = b[prefixBytes-1]
	binary.LittleEndian.PutUint64(b, p.id)
	binary.LittleEndian.PutUint32(b[8:], p.number)
	binary.LittleEndian.PutUint32(b[12:], p.taken)
	binary.LittleEndian.PutUint64(b[16:], uint64(p.kind))
}

func decodePrefix(b []byte) prefix {
	_ = b[prefixBytes-1]
	return prefix{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]), b[16]}
}

// AddressSize is the size of an Address.
const AddressSize = 8 + 2 + mostName

// mostName is the longest name of an endpoint.
const mostName = 64

// New makes this process's end of a connection, and returns its address, of AddressSize bytes, for the peer's Meet. find returns the claim on
// registered memory that contains the bytes at an address, or nil.
func New(r *Rail, find func(addr uintptr, n int) *register.Claim) (*Conn, []byte, error) {
	e, err := r.endpoint()
	if err != nil {
		return nil, nil, err
	}
	name := e.end.Name()
	if len(name) > mostName {
		return nil, nil, fmt.Errorf("%s has addresses of %d bytes: at most %d are sent: %w", r.Name(), len(name), mostName, fault.ErrNotSupported)
	}
	c := &Conn{end: e, find: find}
	if c.out, err = e.lay(depth); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	if e.closed != nil || (len(e.conns)+1)*depth+receives > under {
		err = fmt.Errorf("%s has room for %d connections: %w", r.Name(), len(e.conns), fault.ErrLimit)
		if e.closed != nil {
			err = e.closed
		}
		e.mu.Unlock()
		return nil, nil, errors.Join(err, c.out.close())
	}
	for c.id == 0 || e.conns[c.id] != nil { // nobody else can guess it
		var random [8]byte
		_, _ = crand.Read(random[:]) // it never fails
		c.mine = binary.LittleEndian.Uint64(random[:]) &^ (1 << 31)
		c.id = uint32(c.mine)
	}
	e.conns[c.id] = c
	e.mu.Unlock()
	if err := e.more(); err != nil {
		e.broke(err)
	}
	a := make([]byte, AddressSize)
	binary.LittleEndian.PutUint64(a, c.mine)
	binary.LittleEndian.PutUint16(a[8:], uint16(len(name)))
	copy(a[10:], name)
	return c, a, nil
}

// Index is that of what the connection goes over, in its backend.
func (c *Conn) Index() int { return c.end.rail.index }

// Device is the name of what the connection goes over.
func (c *Conn) Device() string { return c.end.rail.Name() }

// Meet gives the connection its peer, whose address New has returned there; name is the peer's name in errors. What has been
// queued leaves then.
func (c *Conn) Meet(a []byte, name string) error {
	if len(a) < AddressSize {
		return fmt.Errorf("%s gives %d bytes as its address: %w", name, len(a), fault.ErrMismatch)
	}
	n := int(binary.LittleEndian.Uint16(a[8:]))
	if n > mostName {
		return fmt.Errorf("%s gives an address of %d bytes: %w", name, n, fault.ErrMismatch)
	}
	peer, err := c.end.end.Insert(a[10:][:n])
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.theirs, c.peer, c.name, c.open = binary.LittleEndian.Uint64(a), peer, name, true
	c.mu.Unlock()
	c.Flush()
	return nil
}

// Ping sends the peer a message and waits until its own has come, or ctx ends. Both ends call it, once both have
// connected, and before anything else.
func (c *Conn) Ping(ctx context.Context) error {
	c.message(ping)
	for {
		c.end.poll(false)
		c.receiving.Lock()
		_, err := c.take(true)
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
		c.Flush()
		time.Sleep(20 * time.Microsecond)
	}
}

// Begin says who receives, and move what moves the connection when something has come for it. It is called once, after
// Ping.
func (c *Conn) Begin(s frame.Sink, move func() bool) {
	c.receiving.Lock()
	c.sink = s
	c.receiving.Unlock()
	e := c.end
	e.mu.Lock()
	c.move = move
	e.news = append(e.news, c)
	e.mu.Unlock()
	c.news.Store(true)
}

// Broken reports whether the connection has failed, which the next Receive says.
func (c *Conn) Broken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// Receive takes what has completed on the endpoint, handles what of it is this connection's, and reports whether there was
// anything. It handles nothing while another goroutine receives. Once there is an error, every call returns it: io.EOF, a
// *fabric.CompletionError, frame.ErrFrame, or an error of the Sink.
func (c *Conn) Receive() (moved bool, err error) {
	c.end.poll(false)
	for c.receiving.TryLock() {
		c.news.Store(false)
		some, failed := c.take(false)
		c.receiving.Unlock()
		moved, err = moved || some, failed
		if err != nil || !c.news.Load() { // else something came after the last look, and who gave it did not get the lock
			break
		}
	}
	c.credit()
	return moved, err
}

// Drain waits until no other goroutine receives, and then receives all that has arrived. Its error is Receive's.
func (c *Conn) Drain() error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.end.poll(true)
	_, err := c.take(false)
	return err
}

// take handles what has come, or one message. The caller holds receiving.
func (c *Conn) take(one bool) (moved bool, err error) {
	if acts := c.acts.Load(); acts != c.acted {
		c.acted, moved = acts, true
	}
	for c.wrong == nil && !c.ended && !c.closed {
		c.mu.Lock()
		m := &c.in[c.handled%credits]
		slot, n := m.slot, m.bytes
		var b []byte
		var p prefix
		if n > 0 {
			b = c.end.slots.at(int(slot))[:n]
			p = decodePrefix(b)
			m.bytes = 0
			c.handled++
			if more := p.taken - c.taken; more <= credits {
				c.taken = p.taken
			}
		}
		c.mu.Unlock()
		if n == 0 {
			break
		}
		moved = true
		c.counts.received.Add(uint64(n - prefixBytes))
		c.wrong = c.handle(p.kind, b[prefixBytes:])
		c.used = append(c.used, slot)
		if one {
			break
		}
	}
	if len(c.used) >= int(c.end.together.Load()) && !c.closed { // not each at once: somebody waits for what has come
		if err := c.end.again(c.used); err != nil && c.wrong == nil {
			c.wrong = err
		}
		c.used = c.used[:0]
	}
	switch {
	case c.wrong != nil:
		return moved, c.wrong
	case c.ended:
		return moved, io.EOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return moved, c.err
}

// handle handles a message of the peer's.
func (c *Conn) handle(kind byte, b []byte) error {
	switch kind {
	case credit:
		return nil
	case ping:
		c.pinged = true
		return nil
	case last:
		c.ended = true
		return nil
	case framed, written:
		for len(b) > 0 {
			n, err := c.frame(kind, b)
			if err != nil {
				return err
			}
			b = b[n:]
		}
		return nil
	}
	return fmt.Errorf("%w: a message of kind %d with %d bytes", frame.ErrFrame, kind, len(b))
}

// keysByte is the byte of a grant's head that says how many keys follow.
const keysByte = 3

// frame handles the first frame of a message, and returns how long it is.
func (c *Conn) frame(kind byte, b []byte) (n int, err error) {
	if len(b) < frame.HeaderSize {
		return 0, fmt.Errorf("%w: %d bytes are left of a message", frame.ErrFrame, len(b))
	}
	keys := int(b[keysByte])
	b[keysByte] = 0
	h, err := frame.Decode(b)
	if err != nil {
		return 0, err
	}
	rest := b[frame.HeaderSize:]
	n = h.Payload()
	switch {
	case kind == written:
		if h.Kind != frame.Put || h.Length != 0 || len(rest) != 8 || keys != 0 {
			return 0, frame.Refused(h, "it was not written")
		}
		if h.Length = binary.LittleEndian.Uint64(rest); h.Length == 0 || h.Length > frame.MaxLength {
			return 0, frame.Refused(h, "so much cannot be written")
		}
		n = 8
	case keys > 0 && (h.Kind != frame.Grant || keys > mr.MostNICs):
		return 0, frame.Refused(h, fmt.Sprintf("%d keys follow its head", keys))
	case keys > 0:
		n = 8 + 8*keys
	}
	if len(rest) < n {
		return 0, frame.Refused(h, fmt.Sprintf("%d bytes follow its head", len(rest)))
	}
	rest = rest[:n]
	n += frame.HeaderSize
	if keys > 0 {
		h.Landing = decodeLanding(rest)
	}
	if !h.Kind.Loaded() {
		return n, c.sink.Told(h)
	}
	p, ok, err := c.sink.Place(h)
	if err != nil {
		return 0, err
	}
	if h.Kind != frame.Part {
		c.counts.putsReceived.Add(1)
	}
	if kind == written {
		c.counts.received.Add(h.Length)
	} else if ok {
		copy(unsafe.Slice((*byte)(p), len(rest)), rest)
	}
	if ok {
		c.sink.Landed(h)
	}
	return n, nil
}

// appendLanding adds a landing to the grant that b ends with: its address, and the keys of the rails.
func appendLanding(b []byte, l frame.Landing) []byte {
	b[len(b)-frame.HeaderSize+keysByte] = byte(l.Index)
	b = binary.LittleEndian.AppendUint64(b, l.Address)
	for _, key := range l.Keys[:l.Index] {
		b = binary.LittleEndian.AppendUint64(b, key)
	}
	return b
}

func decodeLanding(b []byte) (l frame.Landing) {
	n := len(b)/8 - 1
	l.Address, l.Index = binary.LittleEndian.Uint64(b), uint32(n)
	for i := range n {
		l.Keys[i] = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	return l
}

// Landing returns what a peer needs to write to the n bytes at p, by any rail, and the claim on them, to be released after that;
// nil if they are not registered, or the provider cannot write.
func (c *Conn) Landing(p unsafe.Pointer, n int) (frame.Landing, *register.Claim) {
	if !c.end.rma {
		return frame.Landing{}, nil
	}
	cl, all, off := c.claim(p, n, fabric.RemoteWrite)
	if cl == nil {
		return frame.Landing{}, nil
	}
	l := frame.Landing{Address: all[0].Remote(off), Index: uint32(len(all))}
	for i, m := range all {
		l.Keys[i] = uint64(m.Key())
	}
	return l, cl
}

// claim returns the claim on registered memory, its registrations with the rails, and where the memory begins in them; nil if
// it is not registered for that.
func (c *Conn) claim(p unsafe.Pointer, n int, access fabric.Access) (*register.Claim, []*fabric.MR, int) {
	cl := c.find(uintptr(p), n)
	if cl == nil {
		return nil, nil, 0
	}
	if h, err := cl.Handle(register.NET); err == nil {
		r := h.(*ofi.Region)
		if all, err := r.For(access); err == nil {
			return cl, all, int(uintptr(p) - r.Address())
		}
	}
	cl.Release()
	return nil, nil, 0
}

// came notes a message, and reports whether it is one that may come. The caller has the receive.
func (c *Conn) came(slot uint32, n int) bool {
	p := decodePrefix(c.end.slots.at(int(slot)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.id != c.mine || c.gone || p.number-c.handled >= credits || c.in[p.number%credits].bytes != 0 {
		return false
	}
	c.in[p.number%credits] = message{slot, n}
	return true
}

// completed notes the end of work.
func (c *Conn) completed(i uint32) {
	c.acts.Add(1)
	c.mu.Lock()
	f := &c.flight[i%depth]
	if !f.live || i-c.first >= depth {
		c.mu.Unlock()
		return
	}
	c.counts.acked += uint64(f.size)
	x := f.put
	*f = flight{}
	for c.first != c.next && !c.flight[c.first%depth].live {
		c.first++
	}
	c.queue.Hold(-1)
	if x != nil {
		c.queue.Completed(x)
		c.release()
	}
	c.unlock()
}

// release queues frames that have waited for chunks. The caller holds mu.
func (c *Conn) release() {
	c.held = slices.DeleteFunc(c.held, func(h frame.Header) bool {
		if c.queue.Flies(h.Comm, h.Place) {
			return false
		}
		c.queue.Hold(-1)
		c.queue.Add(h, nil, nil, nil)
		return true
	})
}

// failed notes that work has failed, which is over with it.
func (c *Conn) failed(i uint32, err error) {
	c.completed(i)
	c.fail(err, false)
}

// fail ends the connection. stale says that the endpoint is closed.
func (c *Conn) fail(err error, stale bool) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.stale = c.stale || stale
	c.mu.Unlock()
	c.news.Store(true)
}

// unlock unlocks mu, and releases the claims of puts that are over.
func (c *Conn) unlock() {
	ended := c.queue.Ended()
	c.mu.Unlock()
	for _, cl := range ended {
		cl.Release()
	}
}

// credit tells the peer how many messages were handled, if it is worth a message.
func (c *Conn) credit() {
	c.mu.Lock()
	due := c.open && c.handled-c.told >= half
	c.mu.Unlock()
	if due {
		c.message(credit)
	}
}

// counts is what a connection has carried. Frames of writes, and calls, count as puts.
type counts struct {
	sent, acked, puts      uint64 // guarded by mu
	received, putsReceived atomic.Uint64
}
