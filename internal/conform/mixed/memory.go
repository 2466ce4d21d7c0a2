package mixed

import (
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// slot is this rank's memory in a slot.
type slot struct {
	buf   *ubcoll.Buffer[byte] // made by Alloc, or nil
	reg   *ubcoll.Registration // or nil
	bytes []byte               // nil on a device
	vec   ubcoll.Vec
	free  func() error // frees other memory
}

// allocate makes the memory of a slot.
func (m *program) allocate(s int) error {
	k := &m.slots[s]
	*k = slot{}
	how := conform.Alloced
	if s >= ours {
		how = conform.Where(m.mine.IntN(int(conform.NumWhere)))
		if m.dev != ubcoll.Host && how != conform.Registered {
			how = conform.Alloced
		}
	}
	if how == conform.GoSlice || how == conform.Adopted {
		h, err := conform.Hold[byte](m.world, how, m.room)
		k.bytes, k.vec, k.free = h.Slice, h.Vec, h.Free
		return err
	}
	b, err := ubcoll.Alloc[byte](m.world, m.dev, m.room)
	if err != nil {
		return err
	}
	if k.buf, k.vec = b, b.Vec(); m.dev == ubcoll.Host {
		k.bytes = b.Slice()
	}
	if how == conform.Registered || m.mine.IntN(2) == 0 {
		return m.register(s)
	}
	return nil
}

func (m *program) register(s int) (err error) {
	m.slots[s].reg, err = m.world.RegisterBuffer(m.slots[s].vec)
	return err
}

func (m *program) deregister(s int) error {
	r := m.slots[s].reg
	m.slots[s].reg = nil
	if r == nil {
		return nil
	}
	return r.Close()
}

func (m *program) release(s int) error {
	err := m.deregister(s)
	if m.slots[s].buf != nil {
		return errors.Join(err, m.slots[s].buf.Free())
	}
	return errors.Join(err, m.slots[s].free())
}

// read returns what a slot's memory has.
func (m *program) read(s int) ([]byte, error) {
	if k := &m.slots[s]; k.bytes == nil {
		b := make([]byte, m.room)
		return b, k.buf.CopyTo(m.ctx, b)
	}
	return m.slots[s].bytes, nil
}

// write gives n bytes of a slot's memory, from at on, what the reference has there.
func (m *program) write(s, at, n int) error {
	b, err := m.read(s)
	if err != nil {
		return err
	}
	copy(b[at:][:n], m.want[m.me][s][at:])
	if k := &m.slots[s]; k.bytes == nil {
		return k.buf.CopyFrom(m.ctx, b)
	}
	return nil
}

// fill gives a slot new bytes on all ranks. A quarter of them is 0: as bools, all others are the same.
func (m *program) fill(s int) error {
	for r := range m.n {
		seed := m.all.Uint64()
		for i := range m.want[r][s] {
			x := byte(verify.Mix(seed+uint64(i>>3)) >> (8 * (i & 7)))
			if x < 64 {
				x = 0
			}
			m.want[r][s][i] = x
		}
	}
	return m.write(s, 0, m.room)
}

// fillFloats gives the sources of k, on all members, small whole numbers: their results are exact in any order.
func (m *program) fillFloats(members []int, k *call) error {
	seed := m.all.Uint64()
	for r, w := range members {
		src, _ := k.places(len(members), r)
		b := m.want.of(w, src)
		for i := range src.n / k.typ.Size() {
			h := verify.Mix(seed + uint64(w)<<40 + uint64(i))
			x := float64(h%31) - 15
			if k.red == "prod" {
				x = float64(1+h%2) * float64(1-int(h>>8%2)*2)
			}
			setElement(k.typ, b, i, verify.Encode(k.typ, x))
		}
		if w == m.me && src.slot >= 0 {
			if err := m.write(src.slot, src.at, src.n); err != nil {
				return err
			}
		}
	}
	return nil
}

// churn replaces the memory of a slot, or registers or deregisters it.
func (m *program) churn() error {
	s := m.all.IntN(numSlots)
	if s < ours && m.held() {
		if m.slots[s].reg != nil {
			return m.deregister(s)
		}
		return m.register(s)
	}
	if err := m.release(s); err != nil {
		return err
	}
	if k := &m.slots[s]; k.buf != nil {
		if err := m.expect("second free", nil, k.buf.Free(), ubcoll.ErrClosed); err != nil {
			return err
		}
	}
	if err := m.allocate(s); err != nil {
		return err
	}
	return m.fill(s)
}

// held reports whether a graph of this program may hold memory, on any rank.
func (m *program) held() bool { return len(m.graphs) > 0 }
