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
func (p *program) allocate(s int) error {
	k := &p.slots[s]
	*k = slot{}
	how := conform.Alloced
	if s >= ours {
		how = conform.Where(p.mine.IntN(int(conform.NumWhere)))
		if p.dev != ubcoll.Host && how != conform.Registered {
			how = conform.Alloced
		}
	}
	if how == conform.GoSlice || how == conform.Adopted {
		h, err := conform.Hold[byte](p.world, how, p.room)
		k.bytes, k.vec, k.free = h.Slice, h.Vec, h.Free
		return err
	}
	b, err := ubcoll.Alloc[byte](p.world, p.dev, p.room)
	if err != nil {
		return err
	}
	if k.buf, k.vec = b, b.Vec(); p.dev == ubcoll.Host {
		k.bytes = b.Slice()
	}
	if how == conform.Registered || p.mine.IntN(2) == 0 {
		return p.register(s)
	}
	return nil
}

func (p *program) register(s int) (err error) {
	p.slots[s].reg, err = p.world.RegisterBuffer(p.slots[s].vec)
	return err
}

func (p *program) deregister(s int) error {
	r := p.slots[s].reg
	p.slots[s].reg = nil
	if r == nil {
		return nil
	}
	return r.Close()
}

func (p *program) release(s int) error {
	err := p.deregister(s)
	if p.slots[s].buf != nil {
		return errors.Join(err, p.slots[s].buf.Free())
	}
	return errors.Join(err, p.slots[s].free())
}

// read returns what a slot's memory has.
func (p *program) read(s int) ([]byte, error) {
	if k := &p.slots[s]; k.bytes == nil {
		b := make([]byte, p.room)
		return b, k.buf.CopyTo(p.ctx, b)
	}
	return p.slots[s].bytes, nil
}

// write gives n bytes of a slot's memory, from at on, what the reference has there.
func (p *program) write(s, at, n int) error {
	b, err := p.read(s)
	if err != nil {
		return err
	}
	copy(b[at:][:n], p.want[p.me][s][at:])
	if k := &p.slots[s]; k.bytes == nil {
		return k.buf.CopyFrom(p.ctx, b)
	}
	return nil
}

// fill gives a slot new bytes on all ranks. A quarter of them is 0: as bools, all others are the same.
func (p *program) fill(s int) error {
	for r := range p.n {
		seed := p.all.Uint64()
		for i := range p.want[r][s] {
			x := byte(verify.Mix(seed+uint64(i>>3)) >> (8 * (i & 7)))
			if x < 64 {
				x = 0
			}
			p.want[r][s][i] = x
		}
	}
	return p.write(s, 0, p.room)
}

// fillFloats gives the sources of k, on all members, small whole numbers: their results are exact in any order.
func (p *program) fillFloats(members []int, k *call) error {
	seed := p.all.Uint64()
	for r, w := range members {
		src, _ := k.places(len(members), r)
		b := p.want.of(w, src)
		for i := range src.n / k.typ.Size() {
			h := verify.Mix(seed + uint64(w)<<40 + uint64(i))
			x := float64(h%31) - 15
			if k.red == "prod" {
				x = float64(1+h%2) * float64(1-int(h>>8%2)*2)
			}
			setElement(k.typ, b, i, verify.Encode(k.typ, x))
		}
		if w == p.me && src.slot >= 0 {
			if err := p.write(src.slot, src.at, src.n); err != nil {
				return err
			}
		}
	}
	return nil
}

// churn replaces the memory of a slot, or registers or deregisters it.
func (p *program) churn() error {
	s := p.all.IntN(numSlots)
	if s < ours && p.held() {
		if p.slots[s].reg != nil {
			return p.deregister(s)
		}
		return p.register(s)
	}
	if err := p.release(s); err != nil {
		return err
	}
	if k := &p.slots[s]; k.buf != nil {
		if err := p.expect("second free", nil, k.buf.Free(), ubcoll.ErrClosed); err != nil {
			return err
		}
	}
	if err := p.allocate(s); err != nil {
		return err
	}
	return p.fill(s)
}

// held reports whether a graph of this program may hold memory, on any rank.
func (p *program) held() bool { return len(p.graphs) > 0 }
