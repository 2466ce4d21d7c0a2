package conform

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Where says how a rank holds a buffer. The ranks of a call may differ.
type Where int

// Where a buffer lies.
const (
	GoSlice Where = iota
	Alloced       // by Alloc, not registered by the program
	Registered
	Adopted
	NumWhere
)

// String is the word for it in an error.
func (w Where) String() string { return [...]string{"go", "alloc", "registered", "adopted"}[w] }

// Memory is n elements of T, held in some way, until Free.
type Memory[T dtype.Elem] struct {
	Slice []T
	Vec   ubcoll.Vec
	Free  func() error
}

// Hold makes memory of n elements.
func Hold[T dtype.Elem](c *ubcoll.Comm, w Where, n int) (Memory[T], error) {
	size := dtype.Of[T]().Size()
	switch w {
	case GoSlice:
		s := make([]T, n)
		return Memory[T]{s, ubcoll.Of(s), func() error { return nil }}, nil
	case Adopted:
		b, err := syscall.Mmap(-1, 0, max(n*size, 1), syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return Memory[T]{}, err
		}
		buf, err := ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&b[0]), len(b))
		if err != nil {
			return Memory[T]{}, err
		}
		v := buf.Vec().Slice(0, n*size).As(dtype.Of[T]())
		return Memory[T]{unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), v,
			func() error { return errors.Join(buf.Free(), syscall.Munmap(b)) }}, nil
	}
	b, err := ubcoll.Alloc[T](c, ubcoll.Host, n)
	if err != nil {
		return Memory[T]{}, err
	}
	m := Memory[T]{b.Slice(), b.Vec(), b.Free}
	if w == Registered && n > 0 {
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return Memory[T]{}, err
		}
		m.Free = func() error { return errors.Join(r.Close(), b.Free()) }
	}
	return m, nil
}

// Region is one rank's registered memory for channels. The first half has what it sends, the second what it gets.
type Region struct {
	Buf *ubcoll.Buffer[byte]
	Reg *ubcoll.Registration
	Mem []byte
}

// NewRegion makes a region of n bytes.
func NewRegion(c *ubcoll.Comm, n int) (*Region, error) {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
	if err != nil {
		return nil, err
	}
	r, err := c.RegisterBuffer(b.Vec())
	if err != nil {
		return nil, err
	}
	return &Region{b, r, b.Slice()}, nil
}

// Free frees the region.
func (r *Region) Free() error { return errors.Join(r.Reg.Close(), r.Buf.Free()) }

// Pattern returns what a rank sends in a round.
func Pattern(rank, round, n int) []byte {
	return testkit.Bytes(rand.New(rand.NewPCG(Seed(), uint64(rank)<<32|uint64(round))), n)
}
