package bench

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
)

// line is the size of a cache line, the unit in which cores exchange memory.
const line = 64

// memory is one buffer of a rank.
type memory struct {
	vec   ubcoll.Vec             // of bytes
	bytes []byte                 // the memory itself; for device memory, a copy on the host
	words []uint64               // the same as bytes
	buf   *ubcoll.Buffer[uint64] // nil for Go slices
	reg   *ubcoll.Registration   // nil if it is not registered

	allocated, registered time.Duration // how long allocation and registration took
}

// newMemory makes a buffer of n bytes on dev.
func newMemory(c *ubcoll.Comm, dev ubcoll.Device, kind, n int) (*memory, error) {
	m, words := &memory{}, max(1, (n+7)/8) // an empty buffer cannot be registered
	if kind == GoSlices && dev.IsHost() {
		m.words = make([]uint64, words)
		m.vec = ubcoll.Of(m.words)
	} else if err := m.alloc(c, dev, kind, words); err != nil {
		return nil, err
	}
	m.vec = m.vec.As(byteType)
	m.bytes = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(m.words))), 8*len(m.words))[:n]
	return m, nil
}

func (m *memory) alloc(c *ubcoll.Comm, dev ubcoll.Device, kind, words int) (err error) {
	start := time.Now()
	if m.buf, err = ubcoll.Alloc[uint64](c, dev, words); err != nil {
		return err
	}
	m.allocated = time.Since(start)
	m.vec, m.words = m.buf.Vec(), m.buf.Slice()
	if m.onDevice() {
		m.words = make([]uint64, words)
	}
	if kind != Registered {
		return nil
	}
	start = time.Now()
	if m.reg, err = c.RegisterBuffer(m.vec); err != nil {
		return errors.Join(err, m.buf.Free())
	}
	m.registered = time.Since(start)
	return nil
}

func (m *memory) onDevice() bool { return m != nil && m.buf != nil && !m.buf.Device().IsHost() }

// upload copies the first n bytes to the device, download copies them back. For host memory both do nothing.
func (m *memory) upload(ctx context.Context, n int) error {
	if !m.onDevice() {
		return nil
	}
	return m.buf.CopyFrom(ctx, m.words[:(n+7)/8])
}

func (m *memory) download(ctx context.Context, n int) error {
	if !m.onDevice() {
		return nil
	}
	return m.buf.CopyTo(ctx, m.words[:(n+7)/8])
}

// fill fills the memory with values that are ordinary numbers in every float type. It is for runs without checks, where
// nothing else sets the memory: zeros might travel faster.
func (m *memory) fill(ctx context.Context) error {
	for i := range m.words {
		m.words[i] = 0x3f803f803f803f80 ^ uint64(i)*0x9e3779b97f4a7c15&0x007f007f007f007f
	}
	return m.upload(ctx, len(m.bytes))
}

// close gives the memory back.
func (m *memory) close() error {
	if m.buf == nil {
		return nil
	}
	if m.reg != nil {
		if err := m.reg.Close(); err != nil {
			return err
		}
	}
	return m.buf.Free()
}

// rewrite changes every line of b, so that this core owns it and no other core has a copy.
func rewrite(b []byte) {
	for i := 0; i < len(b); i += line {
		b[i] ^= 1
	}
}

// read reads one byte of every line of b and returns their sum.
func read(b []byte) (sum byte) {
	for i := 0; i < len(b); i += line {
		sum += b[i]
	}
	return sum
}
