package bench

import (
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
)

// line is how many bytes cross cores together.
const line = 64

// memory is one buffer of a rank.
type memory struct {
	vec   ubcoll.Vec // of bytes
	bytes []byte
	buf   *ubcoll.Buffer[uint64] // nil for Go slices
	reg   *ubcoll.Registration

	allocated, registered time.Duration // what that took
}

// newMemory makes a buffer of n bytes.
func newMemory(c *ubcoll.Comm, kind, n int) (*memory, error) {
	m := &memory{}
	words := make([]uint64, 0)
	if kind == GoSlices {
		words = make([]uint64, (n+7)/8)
		m.vec = ubcoll.Of(words)
	} else {
		start := time.Now()
		buf, err := ubcoll.Alloc[uint64](c, ubcoll.Host, (n+7)/8)
		if err != nil {
			return nil, err
		}
		m.allocated = time.Since(start)
		m.buf, m.vec, words = buf, buf.Vec(), buf.Slice()
		start = time.Now()
		if m.reg, err = c.RegisterBuffer(m.vec); err != nil {
			return nil, err
		}
		m.registered = time.Since(start)
	}
	m.vec = m.vec.As(byteType)
	m.bytes = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))[:n]
	return m, nil
}

// close gives the memory back.
func (m *memory) close() error {
	if m.buf == nil {
		return nil
	}
	if err := m.reg.Close(); err != nil {
		return err
	}
	return m.buf.Free()
}

// rewrite changes every line of b, so that this core owns it and no other core has a copy.
func rewrite(b []byte) {
	for i := 0; i < len(b); i += line {
		b[i] ^= 1
	}
}

// read looks at every line of b.
func read(b []byte) (sum byte) {
	for i := 0; i < len(b); i += line {
		sum += b[i]
	}
	return sum
}
