// Package onesided has the suites for memory that peers access directly: handles, channels, windows, and memory that is
// taken back meanwhile.
package onesided

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Handles sends handles around, whole and damaged, of memory that exists, was freed, or was allocated again.
func Handles(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	return conform.Each(ctx, c, wholeHandles, badHandles, staleHandles, adoptedHandles)
}

// swap gathers every rank's handle.
func swap(ctx context.Context, c *ubcoll.Comm, r *ubcoll.Registration) ([][]byte, error) {
	h, err := r.MarshalBinary()
	if err != nil {
		return nil, err
	}
	all := make([]byte, len(h)*c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
		return nil, err
	}
	var hs [][]byte
	for r := range c.Size() {
		hs = append(hs, all[r*len(h):][:len(h)])
	}
	return hs, nil
}

func wholeHandles(ctx context.Context, c *ubcoll.Comm) error {
	r, err := conform.NewRegion(c, 1000+c.Rank())
	if err != nil {
		return err
	}
	hs, err := swap(ctx, c, r.Reg)
	if err != nil {
		return err
	}
	for p, h := range hs {
		m, err := c.Import(h)
		if p == c.Rank() {
			if err := conform.Refused(c, "one's own handle", err, ubcoll.ErrArgument); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if m.Rank() != p || m.Len() != 1000+p {
			return conform.Fail(c, "handle of rank %d: rank %d, %d bytes", p, m.Rank(), m.Len())
		}
		if err := m.Close(); err != nil {
			return err
		}
		if err := conform.Refused(c, "a second Close", m.Close(), ubcoll.ErrClosed); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return r.Free()
}

func badHandles(ctx context.Context, c *ubcoll.Comm) error {
	r, err := conform.NewRegion(c, 4096)
	if err != nil {
		return err
	}
	hs, err := swap(ctx, c, r.Reg)
	if err != nil {
		return err
	}
	h := hs[(c.Rank()+1)%c.Size()]
	for n := range len(h) {
		what := fmt.Sprintf("%d bytes of a handle", n)
		if err := conform.Refused(c, what, testkit.ErrOf(c.Import(h[:n])), ubcoll.ErrArgument); err != nil {
			return err
		}
		bad := bytes.Clone(h)
		bad[n] ^= 1 << (n % 8)
		if m, err := c.Import(bad); err == nil {
			return conform.Fail(c, "a handle with byte %d changed was imported: %v", n, m.Rank())
		}
	}
	if err := conform.Refused(c, "a longer handle", testkit.ErrOf(c.Import(append(bytes.Clone(h), 0))),
		ubcoll.ErrArgument); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return r.Free()
}

// staleHandles makes every rank free its memory and allocate other memory in its place. What peers know about the first
// must not lead to the second.
func staleHandles(ctx context.Context, c *ubcoll.Comm) error {
	const n = 128 << 10
	reused := 0
	for round := range 4 {
		r, err := conform.NewRegion(c, n)
		if err != nil {
			return err
		}
		peer := conform.Partner(c)
		if peer < 0 {
			peer = c.Rank()
		}
		hs, err := swap(ctx, c, r.Reg)
		if err != nil {
			return err
		}
		var ch *p2p.Channel
		var m *ubcoll.Remote
		mine, err := conform.NewRegion(c, n)
		if err != nil {
			return err
		}
		if peer != c.Rank() {
			if m, err = c.Import(hs[peer]); err != nil {
				return err
			}
			if ch, err = p2p.NewChannel(ctx, c, mine.Reg, m); err != nil {
				return err
			}
		}
		fill(r.Mem, 0xAA)
		fill(mine.Mem, 0x11)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		at := place(r.Buf)
		// In turn: freed; closed but kept; closed and registered again.
		if err := r.Reg.Close(); err != nil {
			return err
		}
		var next *ubcoll.Buffer[byte]
		switch round % 2 {
		case 0:
			if err := r.Buf.Free(); err != nil {
				return err
			}
			if next, err = ubcoll.Alloc[byte](c, ubcoll.Host, n); err != nil {
				return err
			}
			if to := place(next); to.Arena == at.Arena && to.Offset == at.Offset {
				reused++
			}
		default:
			next = r.Buf
		}
		again, err := c.RegisterBuffer(next.Vec())
		if err != nil {
			return err
		}
		if _, err := again.MarshalBinary(); err != nil {
			return err
		}
		fill(next.Slice(), 0x55)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if ch != nil {
			err := errors.Join(
				conform.Refused(c, "get from stale memory", ch.Get(ctx, 0, 0, n), ubcoll.ErrStale),
				conform.Refused(c, "put to stale memory", ch.Put(ctx, 0, 0, n), ubcoll.ErrStale),
				conform.Refused(c, "packets to stale memory", ch.PutPackets(ctx, 0, 0, n/2, p2p.Packet8), ubcoll.ErrStale),
				conform.Refused(c, "a stale handle", testkit.ErrOf(c.Import(hs[peer])), ubcoll.ErrStale),
				conform.Refused(c, "a channel on it", testkit.ErrOf(p2p.NewChannel(ctx, c, mine.Reg, m)), ubcoll.ErrStale))
			if err != nil {
				return err
			}
			if !all(mine.Mem, 0x11) {
				return conform.Fail(c, "bytes were read through a stale handle")
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if !all(next.Slice(), 0x55) {
			return conform.Fail(c, "bytes were written through a stale handle")
		}
		if ch != nil {
			if err := errors.Join(ch.Close(), m.Close()); err != nil {
				return err
			}
		}
		if err := errors.Join(again.Close(), next.Free(), mine.Free()); err != nil {
			return err
		}
	}
	if reused == 0 && at(c) {
		return conform.Fail(c, "no arena offset was used again: the test shows nothing")
	}
	return nil
}

// place returns where a buffer's memory is.
func place(b *ubcoll.Buffer[byte]) mem.Location {
	v := inside.Vec(b.Vec())
	return v.Team().Alloc.At
}

// at reports whether memory comes from arenas.
func at(c *ubcoll.Comm) bool { return !(*inside.Comm)(c).View().Domain().Heap.GoHeap() }

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func all(b []byte, v byte) bool {
	for _, x := range b {
		if x != v {
			return false
		}
	}
	return true
}

// adoptedHandles adopts memory of mmap at one address, twice. It cannot be exported, and the error says so.
func adoptedHandles(ctx context.Context, c *ubcoll.Comm) error {
	const n = 1 << 16
	var where unsafe.Pointer
	for range 2 {
		m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return err
		}
		where = unsafe.Pointer(&m[0])
		b, err := ubcoll.Adopt(c, ubcoll.Host, where, n)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		if err := conform.Refused(c, "a handle of adopted memory", testkit.ErrOf(r.MarshalBinary()),
			fault.ErrNotSupported); err != nil {
			return err
		}
		// A channel over it is refused on both ranks.
		if peer := conform.Partner(c); peer >= 0 {
			err := conform.Refused(c, "a channel over adopted memory", testkit.ErrOf(p2p.Connect(ctx, c, peer, r)),
				fault.ErrNotSupported)
			if err != nil {
				return err
			}
		}
		if err := conform.Refused(c, "a window of adopted memory", testkit.ErrOf(c.RegisterWindow(ctx, b.Vec(), 0)),
			fault.ErrNotSupported); err != nil {
			return err
		}
		if err := errors.Join(r.Close(), b.Free(), syscall.Munmap(m)); err != nil {
			return err
		}
	}
	return nil
}
