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
)

// A connection begins like this. The messages further right are the accepting side's:
//
//	hello       both ranks, which connection of which attempt it is, a nonce, the public key     helloSize bytes
//	       nonce
//	proof       HMAC over "dial", hello and nonce
//	       proof HMAC over "accept", hello and nonce
//	begin       one byte: this is the connection that the dialling side has chosen
//	probe       as large as a segment can be
//	       probe
//	seal        one byte: all has come both ways
//
// The key of the proofs is derived from the X25519 exchange of both public keys and from the job's secret. The dialling
// side proves itself first, so strangers cannot make a node sign anything.
const (
	helloSize = 8 + 4 + 4 + 4 + 4 + 16 + 32 + 32
	nonceSize = 32
	probeSize = 64 << 10
)

var helloMagic = [8]byte{'u', 'b', 'c', 'o', 'l', 'l', 0, 2}

// strangerLimit is how long everything before the proofs may take. Tests make it short.
var strangerLimit = 5 * time.Second

// hello is the first message of a connection.
type hello struct {
	from, to uint32
	index    uint32   // 0: the control connection; else data connection index-1
	count    uint32   // how many connections the wire has
	attempt  [16]byte // made by Connect: tells which connections belong together
	nonce    [32]byte
	key      [32]byte // the public key
}

func (h hello) bytes() []byte {
	b := append(make([]byte, 0, helloSize), helloMagic[:]...)
	for _, x := range []uint32{h.from, h.to, h.index, h.count} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	b = append(b, h.attempt[:]...)
	b = append(b, h.nonce[:]...)
	return append(b, h.key[:]...)
}

var errStranger = errors.New("not of this job")

// parseHello parses a hello from a lower rank for rank. Its contents are not trusted before the proof.
func parseHello(b []byte, rank int) (hello, error) {
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(b[8+4*i:]) }
	if len(b) != helloSize || !bytes.Equal(b[:8], helloMagic[:]) {
		return hello{}, errStranger
	}
	h := hello{from: u(0), to: u(1), index: u(2), count: u(3)}
	if h.to != uint32(rank) || h.from >= h.to || h.count != 1+Lanes || h.index >= h.count {
		return hello{}, fmt.Errorf("%w: a hello from rank %d to rank %d, connection %d of %d", errStranger, h.from, h.to,
			h.index, h.count)
	}
	copy(h.attempt[:], b[24:])
	copy(h.nonce[:], b[40:])
	copy(h.key[:], b[72:])
	return h, nil
}

// pairKey derives the key that only both ends of a pair can know; the lower rank dials.
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

// probe sends and receives a full-size frame: a path that only small packets pass must not become a wire. Once the
// dialling side has sent the seal, the other side has a wire: from then on the end of ctx is not an error. The time
// that it takes is limited by ctx and the peer's kernel, not the peer, which may be stopped.
func probe(ctx context.Context, c stdnet.Conn, dialled bool) error {
	mine, theirs, begin, seal := probeBytes(), make([]byte, probeSize), []byte{1}, []byte{1}
	write := func(b []byte) func() error { return func() error { _, err := c.Write(b); return err } }
	read := func(b []byte) func() error { return func() error { _, err := io.ReadFull(c, b); return err } }
	compare := func() error {
		if !bytes.Equal(mine, theirs) {
			return fmt.Errorf("the probe came back changed: %w", fault.ErrMismatch)
		}
		return nil
	}
	steps := []func() error{write(begin), write(mine), read(theirs), compare, write(seal)}
	if !dialled {
		steps = []func() error{read(begin), read(theirs), compare, write(mine), read(seal)}
	}
	_ = c.SetDeadline(time.Time{})
	defer untilDone(ctx, c)() // called after SetDeadline, which would undo it
	for i, step := range steps {
		switch err := step(); {
		case err == nil:
		case ctx.Err() != nil && i > 0:
			return fmt.Errorf("%w: %w: %w", errSmallOnly, context.Cause(ctx), fault.ErrTimeout)
		case ctx.Err() != nil:
			return ctx.Err()
		case !dialled && i == 0 && hungUp(err):
			return errNoProbe
		case errors.Is(err, syscall.ETIMEDOUT), !dialled && hungUp(err):
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
