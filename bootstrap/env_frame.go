package bootstrap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// After the handshake, Env's connections carry frames: "UB", a kind, a zero byte, a sequence number and the body's
// length (both 32 bits, big endian), the body.
const (
	kindGather          = iota + 1 // to rank 0: the sender's part of AllGather number seq
	kindResult                     // from rank 0: all parts
	kindAbort                      // rank, code: some rank called Abort
	kindLost                       // rank, text: some rank died or gave up
	kindBye                        // the sender has closed
	kindGo                         // from rank 0: all ranks are there; the key, if rank 0 has made it
	kindRefuse                     // from rank 0: text: the job cannot start
	kindTimeout                    // like kindLost, by timeout; empty, to rank 0: the sender's time for AllGather seq is up
	kindSwap                       // to rank 0: the sender's part of an Exchange with rank seq; from rank 0: rank seq's part
	kindExchangeTimeout            // to rank 0: the sender's time for an Exchange with rank seq is up
	kindPacked                     // from rank 0: all parts, compressed
	kindEnd
)

const (
	headerSize = 12
	maxPart    = 64 << 20 // one rank's part of an AllGather
	maxText    = 4 << 10  // every other body
	maxResult  = 1 << 30  // all parts
)

type frame struct {
	kind byte
	seq  uint32
	body []byte
}

func (f frame) append(b []byte) []byte {
	b = append(b, 'U', 'B', f.kind, 0)
	b = binary.BigEndian.AppendUint32(b, f.seq)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.body)))
	return append(b, f.body...)
}

// readFrame reads one frame. It allocates for the bytes that arrive, not for the size that a header claims.
func readFrame(r io.Reader) (frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: h[2], seq: binary.BigEndian.Uint32(h[4:])}
	size := binary.BigEndian.Uint32(h[8:])
	if h[0] != 'U' || h[1] != 'B' || h[3] != 0 || f.kind == 0 || f.kind >= kindEnd {
		return frame{}, fmt.Errorf("not a frame: % x: %w", h, fault.ErrMismatch)
	}
	most := uint32(maxText)
	switch f.kind {
	case kindGather, kindSwap:
		most = maxPart
	case kindResult, kindPacked:
		most = maxResult
	}
	if size > most {
		return frame{}, fmt.Errorf("frame of kind %d with %d bytes, at most %d: %w", f.kind, size, most, fault.ErrLimit)
	}
	var body bytes.Buffer
	if n, err := io.CopyN(&body, r, int64(size)); err != nil {
		return frame{}, fmt.Errorf("connection ended after %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
	}
	f.body = body.Bytes()
	return f, nil
}

// about makes the body of kindAbort (x is the code) and kindLost (text is the reason, x is 0).
func about(rank, x int, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(rank))
	b = binary.BigEndian.AppendUint32(b, uint32(int32(x)))
	return append(b, text[:min(len(text), maxText-8)]...)
}

// decode reads an abort or lost frame of a job of size ranks.
func (f frame) decode(size int) (cause, error) {
	if len(f.body) < 8 {
		return cause{}, fmt.Errorf("frame of kind %d with %d bytes: %w", f.kind, len(f.body), fault.ErrMismatch)
	}
	rank := binary.BigEndian.Uint32(f.body)
	if uint64(rank) >= uint64(size) {
		return cause{}, fmt.Errorf("frame about rank %d of %d: %w", rank, size, fault.ErrMismatch)
	}
	if f.kind == kindAbort {
		return aborted(int(rank), int(int32(binary.BigEndian.Uint32(f.body[4:])))), nil
	}
	c := lost(int(rank), string(f.body[8:]))
	if f.kind == kindTimeout {
		c.err = fault.ErrTimeout
	}
	return c, nil
}

// encode makes the frame that tells another rank of c.
func (c cause) encode() frame {
	if errors.Is(c.err, fault.ErrAborted) {
		return frame{kind: kindAbort, body: about(c.peer, c.code, "")}
	}
	f := frame{kind: kindLost, body: about(c.peer, 0, c.why)}
	if errors.Is(c.err, fault.ErrTimeout) {
		f.kind = kindTimeout
	}
	return f
}

// wire is a connection that several goroutines may write frames to.
type wire struct {
	net.Conn
	mu    sync.Mutex
	first []byte

	silence // of the host at the other end
}

func (w *wire) send(f frame) error {
	if err := w.flushFirst(); err != nil {
		return err
	}
	b := f.append(make([]byte, 0, headerSize+len(f.body)))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.Write(b)
	return err
}

// sendFirst makes b, a frame, the next one to go out, before any other.
func (w *wire) sendFirst(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = b
}

// flushFirst sends the frame of sendFirst, if there is one.
func (w *wire) flushFirst() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.first
	w.first = nil
	if b == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// notice is how long a rank tries to tell another that the job broke.
const notice = 2 * time.Second

// sendNotice sends a frame that breaks the job. It waits at most notice for a peer that has stopped reading, or for
// another send to such a peer.
func (w *wire) sendNotice(f frame) {
	_ = w.SetWriteDeadline(time.Now().Add(notice))
	_ = w.send(f) // a peer that it does not reach finds the connection closed
}
