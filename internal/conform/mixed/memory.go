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
	bytes []byte
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
	}
	if how == conform.GoSlice || how == conform.Adopted {
		h, err := conform.Hold[byte](m.world, how, m.room)
		k.bytes, k.vec, k.free = h.Slice, h.Vec, h.Free
		return err
	}
	b, err := ubcoll.Alloc[byte](m.world, ubcoll.Host, m.room)
	if err != nil {
		return err
	}
	k.buf, k.bytes, k.vec = b, b.Slice(), b.Vec()
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

// fill gives a slot new bytes on all ranks. A quarter of them is 0: as bools, all others are the same.
func (m *program) fill(s int) {
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
	copy(m.slots[s].bytes, m.want[m.me][s])
}

// fillFloats gives the sources of k, on all members, small whole numbers: their results are exact in any order.
func (m *program) fillFloats(members []int, k *call) {
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
			copy(m.slots[src.slot].bytes[src.at:][:src.n], b)
		}
	}
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
	err := m.allocate(s)
	m.fill(s)
	return err
}

// held reports whether a graph of this program may hold memory, on any rank.
func (m *program) held() bool { return len(m.graphs) > 0 }
