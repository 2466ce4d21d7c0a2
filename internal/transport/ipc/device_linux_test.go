package ipc

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

var background = context.Background()

// memories runs a test on memory from AllocDevice, and on memory like cudaMalloc's.
func memories(t *testing.T, f func(t *testing.T, legacy bool)) {
	for _, legacy := range []bool{false, true} {
		t.Run(map[bool]string{false: "made", true: "adopted"}[legacy], func(t *testing.T) { f(t, legacy) })
	}
}

func TestDeviceOneProcess(t *testing.T) {
	emulated.Primary(t, 0)
	for _, goHeap := range []bool{false, true} {
		t.Run(map[bool]string{false: "files", true: "go heap"}[goHeap], func(t *testing.T) {
			memories(t, func(t *testing.T, legacy bool) {
				foot, memory := measure(t), emulated.Used(t, emulated.Primary(t, 0))
				a, b := newGPU(t, 0, goHeap), newGPU(t, 1, goHeap)
				ab, ba := meet(t, a.rank, b.rank)
				require.True(t, ab.HasDevice())
				require.NotZero(t, ab.Row())
				x := b.make(t, 3<<20, "of b", legacy)
				extent, err := b.Export(x)
				require.NoError(t, err)
				again, err := b.Export(x)
				require.NoError(t, err)
				require.Equal(t, extent, again)
				b.imported(t, extent)
				at := a.row(t, ab, extent)
				require.Equal(t, "of b", a.take(t, at, 4))
				inline, err := ab.Import(background, extent, 0, 0)
				require.NoError(t, err)
				require.Equal(t, at, inline)
				a.put(t, at+100, "by a")
				require.Equal(t, "by a", b.take(t, cuda.Addr(x.Base())+100, 4))

				// In the other direction: numbers are each rank's own.
				y := a.make(t, 4, "of a", legacy)
				back, err := a.Export(y)
				require.NoError(t, err)
				require.Zero(t, back)
				a.imported(t, back)
				require.Equal(t, "of a", b.take(t, b.row(t, ba, back), 4))

				require.NoError(t, b.Withdraw(time.Minute, x))
				require.NoError(t, b.Withdraw(time.Minute, x), "it is over")
				require.Zero(t, a.row(t, ab, extent))
				peer, why := b.Missing(extent)
				require.Equal(t, 0, peer)
				require.Equal(t, "it is not exported any more", why)
				_, err = ab.Import(background, extent, 0, 0)
				require.ErrorIs(t, err, fault.ErrStale)
				third, err := b.Export(b.make(t, 3, "new", legacy))
				require.NoError(t, err)
				require.Equal(t, extent, third, "the number is used again")
				b.imported(t, third)
				require.Equal(t, "new", a.take(t, a.row(t, ab, third), 3))
				if legacy {
					require.NoError(t, a.Withdraw(time.Minute, y)) // as its owner must do before the memory is freed
				}
				begin := time.Now()
				a.close()
				require.Less(t, time.Since(begin), testkit.Limit, "b has followed")
				peer, _ = b.Missing(third)
				require.Equal(t, -1, peer, "who has closed misses nothing")
				b.close()
				if !goHeap && !legacy {
					testkit.Eventually(t, func() bool { return measure(t).mappings == foot.mappings })
					require.Equal(t, memory, emulated.Used(t, emulated.Primary(t, 0)))
				}
			})
		})
	}
}

// Nothing leaks in any number of rounds.
func TestDeviceLeavesNothing(t *testing.T) {
	one, two := emulated.Primary(t, 0), emulated.Primary(t, 1)
	round := func() {
		a, b := newGPU(t, 0, false), newGPU(t, 1, false)
		ab, _ := meet(t, a.rank, b.rank)
		for i := range 5 {
			x := b.make(t, 1<<20, "x", false)
			extent, err := b.Export(x)
			require.NoError(t, err)
			_, err = ab.Import(background, extent, 0, 0)
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, b.Withdraw(time.Minute, x))
				require.NoError(t, b.heap.Retire(x))
			}
		}
		a.close()
		b.close()
	}
	round() // what the driver keeps is made in the first round
	foot, first, second := measure(t), emulated.Used(t, one), emulated.Used(t, two)
	for range 3 {
		round()
	}
	requireFoot(t, foot)
	require.Equal(t, first, emulated.Used(t, one))
	require.Equal(t, second, emulated.Used(t, two))
}

func TestDeviceTwoProcesses(t *testing.T) {
	memories(t, func(t *testing.T, legacy bool) {
		emulated.Primary(t, 1)
		a := newGPU(t, 0, false)
		kind := map[bool]string{false: "device alloc", true: "device legacy"}[legacy]
		c, _ := startPeer(t, nil)
		r := c.tell(t, "device use 1")
		p := a.attach(t, r.Card)
		c.tell(t, "attach "+string(a.card(t)))

		c.tell(t, kind+" 3000000 theirs")
		r = c.tell(t, "device export")
		testkit.Eventually(t, func() bool { return c.tell(t, "device missing 0").Text == "" })
		at := a.row(t, p, r.Extent)
		require.Equal(t, "theirs", a.take(t, at, 6))

		mine := a.make(t, 5<<20, "mine", legacy)
		extent, err := a.Export(mine)
		require.NoError(t, err)
		a.imported(t, extent)
		require.Equal(t, "mine", c.tell(t, fmt.Sprint("device read ", extent, " 4")).Text)
		c.tell(t, fmt.Sprint("device write ", extent, " seen"))
		require.Equal(t, "seen", a.take(t, cuda.Addr(mine.Base()), 4))

		// Made again, often at the same address.
		for i := range 3 {
			require.Empty(t, c.tell(t, "device withdraw").Text)
			require.Zero(t, a.row(t, p, r.Extent))
			c.tell(t, "device free")
			c.tell(t, fmt.Sprint(kind, " 3000000 round", i))
			r = c.tell(t, "device export")
			at, err := p.Import(background, r.Extent, 0, 0)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("round", i), a.take(t, at, 6))
		}
		require.NoError(t, a.Withdraw(time.Minute, mine))
	})
}

// Allocations in one allocation of the driver share its export.
func TestDeviceShared(t *testing.T) {
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ab, _ := meet(t, a.rank, b.rank)
	base, err := b.ctx.Alloc(4 << 20)
	require.NoError(t, err)
	var parts []*mem.Allocation
	var states []mem.Location
	for _, off := range []cuda.Addr{4096, 1 << 20} {
		x, err := b.heap.AdoptDevice(base+off, 1000, nil)
		require.NoError(t, err)
		m := register.Memory{Base: x.Base(), Bytes: x.Bytes, Generation: x.At.Generation, Device: x.Dev}
		s, err := b.Register(m)
		require.NoError(t, err)
		parts, states = append(parts, x), append(states, s.(mem.Location))
	}
	require.Equal(t, []mem.Location{
		{Arena: 0, Slot: parts[0].At.Slot, Generation: parts[0].At.Generation, Offset: 4096},
		{Arena: 0, Slot: parts[1].At.Slot, Generation: parts[1].At.Generation, Offset: 1 << 20},
	}, states)
	at, err := ab.Import(background, 0, 0, 0)
	require.NoError(t, err)
	deregister := func(x *mem.Allocation) error {
		return b.Deregister(register.Memory{Generation: x.At.Generation, Device: x.Dev}, nil)
	}
	require.NoError(t, deregister(parts[0]))
	require.Equal(t, at, a.row(t, ab, 0), "the other one is still there")
	require.NoError(t, deregister(parts[1]))
	require.Zero(t, a.row(t, ab, 0))
	require.NoError(t, b.ctx.Free(base))

	// Memory freed and made again: the adopted allocation is stale.
	_, err = b.Register(register.Memory{Base: parts[0].Base(), Bytes: 1000, Generation: parts[0].At.Generation})
	require.ErrorIs(t, err, fault.ErrStale)
	again, err := b.ctx.Alloc(4 << 20)
	require.NoError(t, err)
	_, err = b.Export(parts[0])
	require.ErrorIs(t, err, fault.ErrStale)
	require.NoError(t, b.ctx.Free(again))
}

func TestDeviceRefused(t *testing.T) {
	plain := newRank(t, false, secret)
	who, why := plain.Missing(0)
	require.Equal(t, -1, who)
	require.Empty(t, why)
	x := plain.alloc(t, 1, "")
	_, err := plain.Export(x)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.NoError(t, plain.Withdraw(time.Minute, x))

	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ap, pa := meet(t, a.rank, plain)
	require.False(t, ap.HasDevice())
	require.True(t, pa.HasDevice())
	require.Zero(t, ap.Row())
	require.Zero(t, pa.Row())
	for _, p := range []*peer{ap, pa} {
		_, err = p.Import(background, 0, 0, 0)
		require.ErrorIs(t, err, fault.ErrNotSupported)
	}
	_, err = a.Export(a.alloc(t, 1, ""))
	require.ErrorIs(t, err, fault.ErrArgument, "host memory")
	y := b.make(t, 1, "", false)
	_, err = a.Export(y)
	require.ErrorIs(t, err, fault.ErrArgument, "another rank's")
	require.ErrorIs(t, a.Withdraw(time.Minute, y), fault.ErrArgument)

	// Numbers count all peers, with or without a device.
	ab, _ := meet(t, a.rank, b.rank)
	require.Equal(t, 0, ap.Number())
	require.Equal(t, 1, ab.Number())
	for _, extent := range []uint32{0, maxExtents - 1, maxExtents, math.MaxUint32} {
		_, err = ab.Import(background, extent, 0, 0)
		require.ErrorIs(t, err, fault.ErrStale)
	}
	stopImporter(b.rank)
	extent, err := a.Export(a.make(t, 1, "", false))
	require.NoError(t, err)
	who, why = a.Missing(extent)
	require.Equal(t, 1, who)
	require.Equal(t, "has not imported it yet", why)
	b.Progress()
	who, why = a.Missing(extent)
	require.Equal(t, -1, who, why)
	require.Zero(t, testing.AllocsPerRun(100, func() { a.Missing(extent) }))
}

// Ranks export and withdraw at random, all at once. What a peer is told must always match what it finds.
func TestDeviceStress(t *testing.T) {
	const ranks, rounds = 3, 40
	var all [ranks]*gpu
	for i := range all {
		all[i] = newGPU(t, i, false)
	}
	var views [ranks][ranks]*peer // [i][j]: rank j as rank i sees it
	for i := range all {
		for j := range all {
			if i != j {
				views[i][j] = all[i].attach(t, all[j].card(t))
			}
		}
	}
	seed := testkit.Seed(t)
	errs := make(chan error)
	for i := range all {
		go func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			errs <- func() error {
				me := all[i]
				for round := range rounds {
					text := fmt.Sprintf("%d of %d", round, i)
					legacy := random.IntN(2) == 0
					x, err := makeDevice(me.heap, me.ctx, 1+random.IntN(4<<20)+len(text), text, legacy)
					if err != nil {
						return err
					}
					extent, err := me.Export(x)
					if err != nil {
						return err
					}
					for j := range all {
						if i == j || random.IntN(2) == 0 {
							continue
						}
						at, err := views[j][i].Import(background, extent, 0, 0)
						if err != nil {
							return err
						}
						if got, err := take(all[j].ctx, at, len(text)); err != nil || got != text {
							return fmt.Errorf("rank %d finds %q in %q: %w", j, got, text, err)
						}
					}
					if random.IntN(2) == 0 {
						for who, why := me.Missing(extent); who >= 0; who, why = me.Missing(extent) {
							if why != "has not imported it yet" {
								return fmt.Errorf("peer %d: %s", who, why)
							}
							time.Sleep(10 * time.Microsecond)
						}
					}
					if err := me.Withdraw(time.Minute, x); err != nil {
						return err
					}
					if err := me.heap.Retire(x); err != nil {
						return err
					}
					if legacy {
						if err := me.ctx.Free(cuda.Addr(x.Base())); err != nil {
							return err
						}
					}
				}
				return nil
			}()
		}()
	}
	for range all {
		require.NoError(t, <-errs)
	}
	for i := range all {
		for j := range all {
			if i != j {
				for extent := range uint32(4) {
					require.Zero(t, all[i].row(t, views[i][j], extent))
				}
			}
		}
	}
}

// Held memory stays mapped, and its owner's withdrawal waits.
func TestDeviceHeld(t *testing.T) {
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ab, _ := meet(t, a.rank, b.rank)
	x, err := b.heap.AllocDevice(3 << 20)
	require.NoError(t, err)
	number, err := b.Export(x)
	require.NoError(t, err)
	at, err := ab.Hold(background, number, 4096, 1<<20)
	require.NoError(t, err)
	base, err := ab.Import(background, number, 0, 0)
	require.NoError(t, err)
	require.Equal(t, base+4096, at)
	for _, bad := range [][2]int{{4 << 20, 1}, {4096, 4 << 20}, {1<<63 - 1, 1<<63 - 1}} {
		_, err = ab.Hold(background, number, uint64(bad[0]), bad[1])
		require.ErrorIs(t, err, fault.ErrStale)
	}
	require.NoError(t, ab.Unhold(number))
	_, err = ab.Hold(background, number, 0, 3<<20)
	require.NoError(t, err)

	require.ErrorIs(t, b.Withdraw(50*time.Millisecond, x), fault.ErrTimeout)
	require.Equal(t, base, a.row(t, ab, number))
	require.NoError(t, ab.Unhold(number))
	require.Zero(t, a.row(t, ab, number))
	_, err = ab.Hold(background, number, 0, 1)
	require.ErrorIs(t, err, fault.ErrStale)
}

// The largest possible number of ranks access each other's memory; each allocates memory for that many.
func TestDeviceAll(t *testing.T) {
	testkit.LongOrRace(t)
	emulated.Primary(t, 0)
	emulated.Only(t)
	foot := measure(t)
	var all []*gpu
	peers := make([][]*peer, engine.MaxRanks)
	for i := range engine.MaxRanks {
		all = append(all, newGPUOf(t, i%4, true, engine.MaxRanks-1))
	}
	text := func(i int) string { return fmt.Sprintf("of %02d", i) }
	var extents []uint32
	// The time goes into pairs of ranks. Outside of full runs these three attach all others, and the others only these.
	three := []int{0, engine.MaxRanks / 2, engine.MaxRanks - 1}
	reaches := func(i, j int) bool {
		return i != j && (testkit.Full() || slices.Contains(three, i) || slices.Contains(three, j))
	}
	for i, a := range all {
		for j, b := range all {
			if reaches(i, j) {
				peers[i] = append(peers[i], a.attach(t, b.card(t)))
			} else {
				peers[i] = append(peers[i], nil)
			}
		}
	}
	for i, a := range all {
		extent, err := a.Export(a.make(t, 1, text(i), false))
		require.NoError(t, err)
		extents = append(extents, extent)
	}
	for i, a := range all {
		a.imported(t, extents[i])
	}
	for i, a := range all {
		at := map[cuda.Addr]bool{}
		for j, p := range peers[i] {
			if p == nil {
				continue
			}
			at[p.Row()] = true
			require.Equal(t, text(j), a.take(t, a.row(t, p, extents[j]), 5))
			require.Len(t, p.remote.maps, 1, "no more than the peer has exported")
		}
		if testkit.Full() || slices.Contains(three, i) {
			require.Len(t, at, engine.MaxRanks-1)
		}
	}
	for _, a := range all {
		a.close()
	}
	requireFoot(t, foot)
}

// The memory that a rank allocates for its peers depends on their number.
func TestDeviceTables(t *testing.T) {
	for _, peers := range []int{0, 1, 7, engine.MaxRanks - 1} {
		t.Run(fmt.Sprint(peers, " peers"), func(t *testing.T) {
			d := newGPUOf(t, 0, false, peers).device.Load()
			require.Equal(t, 128+128*maxExtents+peers*(8*maxExtents+256+8), d.page.Bytes)
			if peers == 0 {
				require.Nil(t, d.rows)
				return
			}
			require.Equal(t, 8*maxExtents*peers, d.rows.Bytes)
			end := uintptr(d.page.Ptr) + uintptr(d.page.Bytes)
			require.Equal(t, end, uintptr(unsafe.Pointer(&d.ledger.attached[peers-1]))+8, "the tables fill it")
		})
	}
}
