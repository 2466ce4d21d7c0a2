package net

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// A connection begins like this. The messages further right are the accepting side's:
//
//	hello       both ranks, which connection of which attempt it is, a nonce, the public key     helloSize bytes
//	       nonce
//	proof       HMAC over "dial", hello and nonce
//	       proof HMAC over "accept", hello and nonce
//	begin       one byte: this is the connection that the dialling side has chosen
//	       go   one byte: 1, or 2 if the other side dials at the same time, and its connections count
//	probe       as large as a segment can be
//	       probe
//	offer       of RDMA, and what follows it: see offer; on the control connection alone
//	       offer
//	seal        one byte: all has come both ways
//	       done one byte: the accepting side has taken it
//
// The key of the proofs is derived from the X25519 exchange of both public keys and from the job's secret. The dialling
// side proves itself first, so strangers cannot make a node sign anything.
const (
	helloSize = 8 + 4 + 4 + 4 + 4 + 16 + 16 + 32 + 32
	nonceSize = 32
	probeSize = 64 << 10
)

var helloMagic = [8]byte{'u', 'b', 'c', 'o', 'l', 'l', 0, 5}

// strangerLimit is how long everything before the proofs may take. Tests make it short.
var strangerLimit = 5 * time.Second

// hello is the first message of a connection.
type hello struct {
	from, to uint32
	index    uint32   // 0: the control connection; else data connection index-1
	count    uint32   // how many connections the wire has
	attempt  [16]byte // tells which connections belong together
	instead  [16]byte // the attempt of the wire that the dialling side had before
	nonce    [32]byte
	key      [32]byte // the public key
}

func (h hello) bytes() []byte {
	b := append(make([]byte, 0, helloSize), helloMagic[:]...)
	for _, x := range []uint32{h.from, h.to, h.index, h.count} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	b = append(b, h.attempt[:]...)
	b = append(b, h.instead[:]...)
	b = append(b, h.nonce[:]...)
	return append(b, h.key[:]...)
}

var errStranger = errors.New("not of this job")

// parseHello parses a hello for rank. Its contents are not trusted before the proof.
func parseHello(b []byte, rank int) (hello, error) {
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(b[8+4*i:]) }
	if len(b) != helloSize || !bytes.Equal(b[:8], helloMagic[:]) {
		return hello{}, errStranger
	}
	h := hello{from: u(0), to: u(1), index: u(2), count: u(3)}
	if h.to != uint32(rank) || h.from == h.to || h.count < 2 || h.count > 1+transport.MostConnections || h.index >= h.count {
		return hello{}, fmt.Errorf("%w: a hello from rank %d to rank %d, connection %d of %d", errStranger, h.from, h.to,
			h.index, h.count)
	}
	copy(h.attempt[:], b[24:])
	copy(h.instead[:], b[40:])
	copy(h.nonce[:], b[56:])
	copy(h.key[:], b[88:])
	return h, nil
}

// pairKey derives the key that only both ends of a pair can know.
func (n *Node) pairKey(peer [32]byte, dial, accept uint32, dialKey, acceptKey [32]byte) ([]byte, error) {
	p, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		return nil, err
	}
	shared, err := n.private.ECDH(p)
	if err != nil {
		return nil, err
	}
	info := fmt.Sprintf("ubcoll net 1 %d %d %x %x", dial, accept, dialKey, acceptKey)
	return hkdf.Key(sha256.New, shared, n.config.Secret, info, sha256.Size)
}

func proof(key []byte, side string, hello, nonce []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(side))
	m.Write(hello)
	m.Write(nonce)
	return m.Sum(nil)
}

// meet is the dialling side of the handshake, until both ends are proved.
func (n *Node) meet(c stdnet.Conn, h hello, peer [32]byte) error {
	if _, err := rand.Read(h.nonce[:]); err != nil {
		return err
	}
	first := h.bytes()
	key, err := n.pairKey(peer, h.from, h.to, h.key, peer)
	if err != nil {
		return err
	}
	if _, err := c.Write(first); err != nil {
		return err
	}
	var nonce [nonceSize]byte
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(c, nonce[:]); err != nil {
		return fmt.Errorf("it does not answer as a rank of this job does: %w", err)
	}
	if _, err := c.Write(proof(key, "dial", first, nonce[:])); err != nil {
		return err
	}
	switch _, err := io.ReadFull(c, theirs[:]); {
	case hungUp(err):
		return fmt.Errorf("%w: %w", errProofRefused, err)
	case err != nil:
		return err
	}
	if !hmac.Equal(theirs[:], proof(key, "accept", first, nonce[:])) {
		return fmt.Errorf("it cannot prove that it is the rank: %w", errStranger)
	}
	return nil
}

// welcome is the accepting side of the same.
func (n *Node) welcome(c stdnet.Conn) (hello, error) {
	first := make([]byte, helloSize)
	if _, err := io.ReadFull(c, first); err != nil {
		return hello{}, err
	}
	h, err := parseHello(first, n.config.Rank)
	if err != nil {
		return hello{}, err
	}
	n.strangers.speaks(c)
	key, err := n.pairKey(h.key, h.from, h.to, h.key, n.row.Key)
	if err != nil {
		return hello{}, fmt.Errorf("%w: %w", errStranger, err)
	}
	var nonce [nonceSize]byte
	var theirs [sha256.Size]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return hello{}, err
	}
	if _, err := c.Write(nonce[:]); err != nil {
		return hello{}, err
	}
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return hello{}, err
	}
	if !hmac.Equal(theirs[:], proof(key, "dial", first, nonce[:])) {
		return hello{}, fmt.Errorf("%w: the proof is wrong", errStranger)
	}
	_, err = c.Write(proof(key, "accept", first, nonce[:]))
	return h, err
}

// probeBytes returns a pattern that no middlebox would produce.
func probeBytes() []byte {
	b := make([]byte, probeSize)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

var (
	errNoProbe      = errors.New("closed before the probe") // the other side took another address, which answered, too
	errProofRefused = errors.New("it refuses this rank's proof: another job's, or another secret")
	errSmallOnly    = fmt.Errorf("small messages pass, and %d bytes do not: is the MTU the same on the whole way?", probeSize)
)

// The bytes that go and done consist of.
const (
	goOn   = 1
	goBack = 2
)

// dialled does the rest of the handshake after the proofs, on the dialling side. It sends and receives a full-size frame:
// a path that only small packets pass must not become a wire. The time that it takes is limited by ctx and the peer's
// kernel, not the peer, which may be stopped. sealed says, of a failure too, that the peer may take the connection for good.
func dialled(ctx context.Context, c stdnet.Conn, offer func(p *dialProbe) error) (sealed bool, err error) {
	p := newProbe(c)
	seal := func() error {
		err := p.write([]byte{1})()
		sealed = err == nil
		return err
	}
	err = p.run(ctx, p.write([]byte{1}), p.status, p.write(p.mine), p.read(p.theirs), p.compare, func() error { return offer(p) },
		seal, p.status)
	return sealed, err
}

// accepting does the same on the accepting side, but for its last byte. wanted says whether the connection may go on.
func accepting(ctx context.Context, c stdnet.Conn, wanted func() bool, offer func(p *dialProbe) error) error {
	p := newProbe(c)
	begin := func() error {
		err := p.read(make([]byte, 1))()
		if hungUp(err) {
			return errNoProbe
		}
		return err
	}
	decide := func() error {
		if wanted() {
			return p.write([]byte{goOn})()
		}
		return errors.Join(errCrossed, p.write([]byte{goBack})())
	}
	err := p.run(ctx, begin, decide, p.read(p.theirs), p.compare, p.write(p.mine),
		func() error { return offer(p) }, p.read(make([]byte, 1)))
	if hungUp(err) {
		err = fmt.Errorf("%w: %w: %w", errSmallOnly, err, fault.ErrTimeout)
	}
	return err
}

// dialProbe is what both sides do.
type dialProbe struct {
	c            stdnet.Conn
	mine, theirs []byte
}

func newProbe(c stdnet.Conn) *dialProbe {
	return &dialProbe{c: c, mine: probeBytes(), theirs: make([]byte, probeSize)}
}

func (p *dialProbe) write(b []byte) func() error {
	return func() error { _, err := p.c.Write(b); return err }
}

func (p *dialProbe) read(b []byte) func() error {
	return func() error { _, err := io.ReadFull(p.c, b); return err }
}

func (p *dialProbe) compare() error {
	if !bytes.Equal(p.mine, p.theirs) {
		return fmt.Errorf("the probe came back changed: %w", fault.ErrMismatch)
	}
	return nil
}

func (p *dialProbe) status() error {
	var b [1]byte
	if err := p.read(b[:])(); err != nil {
		return err
	}
	if b[0] != goOn {
		return errCrossed
	}
	return nil
}

// run does the steps, until ctx ends.
func (p *dialProbe) run(ctx context.Context, steps ...func() error) error {
	_ = p.c.SetDeadline(time.Time{})
	defer untilDone(ctx, p.c)() // called after SetDeadline, which would undo it
	for i, step := range steps {
		err := ctx.Err() // the deadline takes effect a moment after ctx has ended
		if err == nil {
			err = step()
		}
		switch {
		case err == nil:
		case errors.Is(err, errCrossed), errors.Is(err, errNoProbe):
			return err
		case ctx.Err() != nil && i > 1:
			return fmt.Errorf("%w: %w: %w", errSmallOnly, context.Cause(ctx), fault.ErrTimeout)
		case ctx.Err() != nil:
			return fmt.Errorf("no answer yet: %w", late(ctx))
		case i > 1 && errors.Is(err, syscall.ETIMEDOUT):
			return fmt.Errorf("%w: %w: %w", errSmallOnly, err, fault.ErrTimeout)
		default:
			return err
		}
	}
	return nil
}

// untilDone ends all calls on c when ctx ends, by a deadline in the past. Call stop before using c in any other way.
func untilDone(ctx context.Context, c stdnet.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}
