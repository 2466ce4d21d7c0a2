package net

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
)

// A control connection carries messages: "UC", a kind, 0, the length of what follows (4 bytes, little endian).
const (
	controlTell   = iota + 1 // a Message: communicator (8), kind, code, 0, 0, about (4), text
	controlTaken             // how many bytes of messages this side has read since it last said so (4)
	controlBye               // this side closes: nothing comes after what it has sent
	controlBroken            // text: what this side saw the other do wrong
	controlEnd
)

const (
	controlHeader = 8
	tellFixed     = 16
	maxControl    = controlHeader + tellFixed + MaxText

	window = 16 << 10 // bytes of messages that the peer has not read: so many fit its socket, and are acknowledged by its kernel
	held   = 64 << 10 // bytes that wait for the window
	taken  = window / 4
)

// control is the connection of messages: who is alive, what has failed. Kept small, so that what the peer does not read
// for long fits its socket: then silence of its kernel is the death of its host.
type control struct {
	wire *Wire
	end  end

	receiving sync.Mutex
	fd        int // -1 once closed, under both locks
	in        [2 * maxControl]byte
	have      int
	unsaid    int // bytes read that the peer was not told of
	bye, eof  bool

	sending sync.Mutex
	out     []byte // for the socket
	held    []byte // for the window
	unread  int    // bytes sent that the peer has not said it read
	wanted  bool
	said    bool  // bye is in out or held, or sent
	ended   bool  // nothing can be sent any more
	broke   error // what the socket said to a send
}

func encodeControl(b []byte, kind byte, body []byte) []byte {
	b = append(b, 'U', 'C', kind, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func (m Message) encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, tellFixed+len(m.Text)), m.Comm)
	b = append(b, m.Kind, m.Code, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.About))
	return append(b, m.Text[:min(len(m.Text), MaxText)]...)
}

func decodeMessage(b []byte) Message {
	return Message{Comm: binary.LittleEndian.Uint64(b), Kind: b[8], Code: b[9],
		About: int32(binary.LittleEndian.Uint32(b[12:])), Text: string(b[tellFixed:])}
}

// parseControl takes the first message of b, whose size is 0 while it is not all there. Errors wrap tcp.ErrFrame.
func parseControl(b []byte) (kind byte, body []byte, size int, err error) {
	if len(b) < controlHeader {
		return 0, nil, 0, nil
	}
	kind, length := b[2], binary.LittleEndian.Uint32(b[4:])
	least, most := uint32(0), uint32(0)
	switch kind {
	case controlTell:
		least, most = tellFixed, tellFixed+MaxText
	case controlTaken:
		least, most = 4, 4
	case controlBroken:
		most = MaxText
	}
	if b[0] != 'U' || b[1] != 'C' || kind == 0 || kind >= controlEnd || b[3] != 0 || length < least || length > most {
		return 0, nil, 0, fmt.Errorf("%w: a message begins with % x", tcp.ErrFrame, b[:controlHeader])
	}
	size = controlHeader + int(length)
	if len(b) < size {
		return 0, nil, 0, nil
	}
	return kind, b[controlHeader:size], size, nil
}

// tell queues a message, sends what can be, and says whether there was room.
func (c *control) tell(kind byte, body []byte) bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.fd < 0 || c.said {
		return true
	}
	size := controlHeader + len(body)
	switch {
	case kind == controlBroken: // it ends the wire, and whoever broke the rules may not read
		c.out = encodeControl(c.out, kind, body)
	case len(c.held) == 0 && c.unread+size <= window:
		c.unread += size
		c.out = encodeControl(c.out, kind, body)
	case len(c.held)+size <= held || kind == controlBye:
		c.held = encodeControl(c.held, kind, body)
	default:
		return false
	}
	c.said = kind == controlBye
	c.flush()
	return true
}

// flush is called under the lock.
func (c *control) flush() {
	if c.ended {
		c.out = nil // what the peer has been told by the bye, at the latest
	}
	for c.fd >= 0 && c.broke == nil && len(c.out) > 0 {
		n, err := sendTo(c.fd, c.out)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			c.wants(true)
			return
		case err != nil:
			c.broke = err // who receives tells
			return
		default:
			c.out = c.out[:copy(c.out, c.out[n:])]
		}
	}
	c.wants(false)
}

func (c *control) wants(room bool) {
	if room != c.wanted && c.fd >= 0 {
		c.wanted = room
		c.wire.node.poll.want(&c.end, room)
	}
}

// send sends what is queued.
func (c *control) send() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.flush()
}

// drained reports whether the kernel has all that was told.
func (c *control) drained() bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return len(c.out) == 0 && len(c.held) == 0
}

// silent reports whether the peer's kernel does not answer.
func (c *control) silent() bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.fd >= 0 && silent(c.fd)
}

func (c *control) shut() {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.fd >= 0 {
		shutdown(c.fd)
		c.ended = true
	}
}

// receive reads what is there. The error is io.EOF after a bye, io.ErrUnexpectedEOF without, tcp.ErrFrame, errTold, or what
// the system says.
func (c *control) receive() error {
	if !c.receiving.TryLock() {
		return nil
	}
	defer c.receiving.Unlock()
	for c.fd >= 0 && !c.eof {
		n, err := receiveFrom(c.fd, c.in[c.have:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return nil
		case err != nil && c.bye: // it has closed, and not read all that it was told
			c.eof, n = true, 0
		case err != nil:
			c.sending.Lock()
			defer c.sending.Unlock()
			if c.broke != nil { // the socket tells each error once
				return c.broke
			}
			return err
		case n == 0:
			c.eof = true
		}
		c.have += n
		if err := c.read(); err != nil {
			return err
		}
	}
	switch {
	case c.fd < 0:
		return nil
	case c.bye:
		return io.EOF
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.broke != nil && !errors.Is(c.broke, syscall.EPIPE) {
		return c.broke
	}
	return io.ErrUnexpectedEOF
}

// read takes the messages that are there.
func (c *control) read() error {
	b := c.in[:c.have]
	for {
		kind, body, size, err := parseControl(b)
		if err != nil {
			return err
		}
		if size == 0 {
			break
		}
		if c.bye {
			return fmt.Errorf("%w: a message after a bye", tcp.ErrFrame)
		}
		switch kind {
		case controlTell:
			c.unsaid += size
			if heard := c.wire.node.config.Heard; heard != nil {
				heard(c.wire.peer, decodeMessage(body))
			}
		case controlTaken:
			if err := c.credit(int(binary.LittleEndian.Uint32(body))); err != nil {
				return err
			}
		case controlBye:
			c.bye = true
			c.lift()
		case controlBroken:
			return fmt.Errorf("%w: it says: %s", errTold, body)
		}
		b = b[size:]
	}
	c.have = copy(c.in[:], b)
	if c.unsaid >= taken {
		c.sending.Lock()
		c.out = encodeControl(c.out, controlTaken, binary.LittleEndian.AppendUint32(nil, uint32(c.unsaid)))
		c.flush()
		c.sending.Unlock()
		c.unsaid = 0
	}
	return nil
}

// lift sends what waits for the window: a peer that has said bye reads all that comes, and acknowledges no more.
func (c *control) lift() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.out, c.held = append(c.out, c.held...), nil
	c.flush()
}

var errTold = errors.New("the peer ended the wire")

// credit is what the peer has read.
func (c *control) credit(n int) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if n > c.unread {
		return fmt.Errorf("%w: the peer has read %d bytes of %d", tcp.ErrFrame, n, c.unread)
	}
	c.unread -= n
	for len(c.held) > 0 {
		_, _, size, _ := parseControl(c.held)
		if c.unread+size > window {
			break
		}
		c.unread += size
		c.out = append(c.out, c.held[:size]...)
		c.held = c.held[:copy(c.held, c.held[size:])]
	}
	c.flush()
	return nil
}

func (c *control) close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.fd >= 0 {
		closeSocket(c.fd)
		c.fd = -1
	}
}
