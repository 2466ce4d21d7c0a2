package net

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// A control connection carries messages: "UC", a kind, 0, the length of the body (4 bytes, little endian), the body.
const (
	controlTell    = iota + 1 // a Message: communicator (8), kind, code, 0, 0, about (4), text
	controlTaken              // how many bytes of messages this side has read since it last said so (4)
	controlBye                // this side closes: nothing comes after this
	controlBroken             // text: how the other side broke the protocol
	controlCut                // text: that a rail is lost
	controlMake               // address: of this side's end of the queue pair for its one-sided operations
	controlMade               // address: the answer, of the other end
	controlNotMade            // text: the answer, why there is no other end
	controlAsk                // the other side answers, if its process runs
	controlAnswer             // the answer
	controlEnd
)

const (
	controlHeader = 8
	tellFixed     = 16
	maxControl    = controlHeader + tellFixed + transport.MaxText

	window = 16 << 10 // most bytes of messages that the peer has not read: they fit its socket, so its kernel acknowledges them
	held   = 64 << 10 // bytes that wait for the window, beyond which what may be lost is; all else has few of them by its nature
	taken  = window / 4
)

// control is the connection for messages about which ranks are alive and what has failed. The window is small, so that
// messages that the peer does not read for long still fit its socket: if its kernel is silent then, its host is dead.
type control struct {
	wire *Wire
	rail int // of the wire's
	end  end

	receiving sync.Mutex
	fd        int // -1 once closed, under both locks
	in        [2 * maxControl]byte
	have      int
	unsaid    int // bytes that were read without telling the peer yet
	bye, eof  bool

	sending sync.Mutex
	out     []byte // to be sent
	held    []byte // waiting for the window
	unread  int    // bytes that were sent and that the peer has not confirmed
	wanted  bool
	said    bool  // bye is in out or held, or sent
	ended   bool  // nothing more can be sent
	broke   error // the socket's error on a send
}

func encodeControl(b []byte, kind byte, body []byte) []byte {
	b = append(b, 'U', 'C', kind, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func encodeMessage(m transport.Message) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, tellFixed+len(m.Text)), m.Comm)
	b = append(b, m.Kind, m.Code, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.About))
	return append(b, m.Text[:min(len(m.Text), transport.MaxText)]...)
}

func decodeMessage(b []byte) transport.Message {
	return transport.Message{Comm: binary.LittleEndian.Uint64(b), Kind: b[8], Code: b[9],
		About: int32(binary.LittleEndian.Uint32(b[12:])), Text: string(b[tellFixed:])}
}

// parseControl parses the first message of b. size is 0 while the message is incomplete. Errors wrap frame.ErrFrame.
func parseControl(b []byte) (kind byte, body []byte, size int, err error) {
	if len(b) < controlHeader {
		return 0, nil, 0, nil
	}
	kind, length := b[2], binary.LittleEndian.Uint32(b[4:])
	least, most := uint32(0), uint32(0)
	switch kind {
	case controlTell:
		least, most = tellFixed, tellFixed+transport.MaxText
	case controlTaken:
		least, most = 4, 4
	case controlBroken, controlCut, controlNotMade:
		most = transport.MaxText
	case controlMake, controlMade:
		least, most = verbs.AddressSize, verbs.AddressSize
	}
	if b[0] != 'U' || b[1] != 'C' || kind == 0 || kind >= controlEnd || b[3] != 0 || length < least || length > most {
		return 0, nil, 0, fmt.Errorf("%w: a message begins with % x", frame.ErrFrame, b[:controlHeader])
	}
	size = controlHeader + int(length)
	if len(b) < size {
		return 0, nil, 0, nil
	}
	return kind, b[controlHeader:size], size, nil
}

// tell queues a message, sends what it can, and reports whether there was room. Only what may be lost needs room.
func (c *control) tell(kind byte, body []byte, mayBeLost bool) bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.fd < 0 || c.said {
		return true
	}
	size := controlHeader + len(body)
	switch {
	case kind == controlBroken, kind == controlCut: // the wire ends with it, and a peer that broke the protocol may not read
		c.out = encodeControl(c.out, kind, body)
	case len(c.held) == 0 && c.unread+size <= window:
		c.unread += size
		c.out = encodeControl(c.out, kind, body)
	case !mayBeLost || len(c.held)+size <= held:
		c.held = encodeControl(c.held, kind, body)
	default:
		return false
	}
	c.said = kind == controlBye
	c.flush()
	return true
}

// flush sends what it can. The caller holds the lock.
func (c *control) flush() {
	if c.ended {
		c.out = nil // what is left are confirmations, which a peer that got the bye does not need
	}
	for c.fd >= 0 && c.broke == nil && len(c.out) > 0 {
		n, err := sendTo(c.fd, c.out)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			c.wants(true)
			return
		case err != nil:
			c.broke = err // receive returns it
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

// drained reports whether the kernel has taken all messages.
func (c *control) drained() bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return len(c.out) == 0 && len(c.held) == 0
}

// silent reports whether the peer's kernel has stopped answering.
func (c *control) silent() bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.fd >= 0 && silent(c.fd, c.wire.node.config.Timeout)
}

func (c *control) shut() {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.fd >= 0 {
		shutdown(c.fd)
		c.ended = true
	}
}

// receive reads and handles what has arrived. The error is io.EOF after a bye, io.ErrUnexpectedEOF without one,
// frame.ErrFrame, errTold, or a system error.
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
		case err != nil && c.bye: // the peer has closed without reading all that it was told
			c.eof, n = true, 0
		case err != nil:
			c.sending.Lock()
			defer c.sending.Unlock()
			if c.broke != nil { // the socket reports each error only once
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

// read handles the complete messages that have been received.
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
			return fmt.Errorf("%w: a message after a bye", frame.ErrFrame)
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
		case controlCut:
			return lostRail(body)
		case controlMake:
			c.unsaid += size
			err = c.wire.askedOneSided(body)
		case controlMade:
			c.unsaid += size
			err = c.wire.answeredOneSided(body)
		case controlNotMade:
			c.unsaid += size
			err = c.wire.refusedOneSided(string(body))
		case controlAsk:
			c.unsaid += size
			c.tell(controlAnswer, nil, false)
		case controlAnswer:
			c.unsaid += size
			c.wire.answered.Store(time.Now().UnixNano())
		}
		if err != nil {
			return err
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

// lift sends the messages that wait for the window: a peer that has said bye reads everything, but confirms no more.
func (c *control) lift() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.out, c.held = append(c.out, c.held...), nil
	c.flush()
}

var errTold = errors.New("the peer ended the wire")

// credit notes that the peer has read n more bytes.
func (c *control) credit(n int) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if n > c.unread {
		return fmt.Errorf("%w: the peer has read %d bytes of %d", frame.ErrFrame, n, c.unread)
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

// leaving reports whether this side has said bye.
func (c *control) leaving() bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.said
}
