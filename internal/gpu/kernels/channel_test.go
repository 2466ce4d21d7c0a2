package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

const (
	channelSlot = 5 // slot of the channel ends
	slots       = 8 // slots of signals
	units       = 128
	saltOf      = 1000 // salt of the packets to a rank, plus its number
)

// channel queues a kernel of rank r's end of a channel between ranks 0 and 1.
func (w *world) channel(s *cuda.Stream, r, blocks, threads, side int, steps ...Step) {
	m, peer := w.ranks[r], w.ranks[1-r]
	p := ChannelParams{Mine: uint64(m.area) + uint64(w.layout.Channel(channelSlot)),
		Theirs: uint64(peer.area) + uint64(w.layout.Channel(channelSlot)), Status: uint64(m.statusAt), Timeout: uint64(testkit.Limit),
		SaltOut: uint32(saltOf + 1 - r), SaltIn: uint32(saltOf + r), Peer: uint32(1 - r), Side: uint32(side),
		Steps: uint32(len(steps))}
	for i, x := range steps {
		p.Step[i] = x
		if x.Bytes > 0 {
			p.Spread = uint32(i + 1)
		}
	}
	f, err := m.set.Kernel(Channel, dtype.Invalid, 2)
	require.NoError(w.t, err)
	l := cuda.Launch{Grid: blocks, Block: min(threads, f.MaxThreads), Early: m.ctx.Early() && w.rand.IntN(2) == 0}
	require.NoError(w.t, f.Launch(s, l, Bytes(&p)))
}

// sync waits for both ranks' kernels.
func (w *world) sync() {
	for r, m := range w.ranks {
		require.NoError(w.t, m.stream.Sync())
		require.Zero(w.t, m.status.Error.Load(), "rank %d", r)
	}
}

// end reads rank r's end from its area, through s.
func (w *world) end(r int, s *cuda.Stream) (in [slots]uint32, counts [ChannelGrid][4]uint32) {
	b := make([]byte, ChannelBytes)
	require.NoError(w.t, s.Download(b, w.ranks[r].area+cuda.Addr(w.layout.Channel(channelSlot))))
	for i := range in {
		in[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	_, err := binary.Decode(b[256:], binary.LittleEndian, &counts)
	require.NoError(w.t, err)
	return in, counts
}

func (w *world) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.rand.Uint32())
	}
	return b
}

// TestChannelAhead lets one block of a kernel run far ahead of the other one, which waits for packets. None of the
// first block's signals may stand in for data that the other block has not moved yet.
func TestChannelAhead(t *testing.T) {
	w := newWorld(t, 2)
	const threads, half = 32, 8 * 32 // bytes of a block
	data := w.bytes(2 * half)
	packets := make([]byte, 0, 4*half)
	for at := 0; at < len(data); at += 4 {
		packets = binary.LittleEndian.AppendUint32(append(packets, data[at:at+4]...), saltOf+1)
	}
	a, b := w.ranks[0], w.ranks[1]
	beside, err := a.ctx.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, beside.Close()) }()
	for _, m := range w.ranks {
		require.NoError(t, m.stream.Fill(m.src, 0, len(packets)))
		require.NoError(t, m.stream.Fill(m.dst, poison, len(data)))
		require.NoError(t, m.stream.Sync())
	}
	// Rank 1 reads what rank 0 has sent as soon as the first signal has arrived.
	w.channel(b.stream, 1, 2, threads, SideBoth, Step{What: StepWait},
		Step{What: StepCopy, Dst: uint64(b.dst), Src: uint64(a.dst), Bytes: uint64(len(data))})
	steps := []Step{{What: StepGetPackets | 16<<32, Dst: uint64(a.dst), Src: uint64(a.src), Bytes: uint64(len(data))}}
	for len(steps) < MaxSteps {
		steps = append(steps, Step{What: StepSignal})
	}
	require.NoError(t, beside.Upload(a.src, packets[:2*half]))
	w.channel(a.stream, 0, 2, threads, SideBoth, steps...)
	const mine = units - 1                                              // block 0's units of a signal
	for start, sum := time.Now(), uint32(0); sum < (MaxSteps-1)*mine; { // until it has sent all its signals
		require.Less(t, time.Since(start), testkit.Limit)
		in, _ := w.end(1, beside)
		sum = 0
		for _, n := range in {
			sum += n
		}
	}
	in, _ := w.end(1, beside)
	require.Equal(t, [slots]uint32{mine, mine, mine, mine, mine, mine, mine}, in)
	require.NoError(t, beside.Upload(a.src+2*half, packets[2*half:]))
	w.sync()
	in, counts := w.end(1, beside)
	require.Equal(t, [slots]uint32{units, units, units, units, units, units, units}, in)
	for i := range counts {
		require.Equal(t, [4]uint32{0, 0, 1, 0}, counts[i], "block %d", i)
	}
	_, counts = w.end(0, beside)
	for i := range counts {
		require.Equal(t, [4]uint32{MaxSteps - 1, 0, 0, 1}, counts[i], "block %d", i)
	}
	got := make([]byte, len(data))
	require.NoError(t, b.stream.Download(got, b.dst))
	require.True(t, bytes.Equal(data, got))
}

// TestChannelCounts runs kernels of all kinds and grids one after the other; all counts wrap around on the way.
func TestChannelCounts(t *testing.T) {
	for _, before := range []uint32{0, 20} { // signals until counts wrap around; 0: fresh counts
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			w := newWorld(t, 2)
			start := -before
			end := make([]byte, ChannelBytes)
			for i := range slots {
				binary.LittleEndian.PutUint32(end[4*i:], uint32(units*((uint64(start)+slots-1-uint64(i))/slots)))
			}
			for i := range ChannelGrid {
				for j := range 4 {
					binary.LittleEndian.PutUint32(end[256+16*i+4*j:], start)
				}
			}
			if before > 0 {
				for _, m := range w.ranks {
					require.NoError(t, m.stream.Upload(m.area+cuda.Addr(w.layout.Channel(channelSlot)), end))
				}
			}
			var beside [2]*cuda.Stream
			for r, m := range w.ranks {
				var err error
				beside[r], err = m.ctx.NewStream()
				require.NoError(t, err)
				defer func() { require.NoError(t, beside[r].Close()) }()
			}
			signals, packed := start, start
			for range 50 {
				s, p := w.meet(beside)
				signals, packed = signals+s, packed+p
			}
			require.Greater(t, signals-start, uint32(20))
			for r, m := range w.ranks {
				_, counts := w.end(r, m.stream)
				for i := range counts {
					require.Equal(t, [4]uint32{signals, packed, signals, packed}, counts[i], "rank %d, block %d", r, i)
				}
			}
		})
	}
}

// meet makes both ranks do the same at once: move some of their bytes to the other rank, and there to a second place as
// soon as they have arrived. Waits and gets of packets run on their own streams. It returns how many signals a rank has
// sent, and how often packets.
func (w *world) meet(beside [2]*cuda.Stream) (signals, packed uint32) {
	const part = 16 << 10
	how, moves := w.rand.IntN(3), 1+w.rand.IntN(3)
	wide := uint64(8 + 8*w.rand.IntN(2))
	n, off := w.rand.IntN(part/2-16), w.rand.IntN(16)
	if w.rand.IntN(2) == 0 {
		n, off = n&^15, 0
	}
	var sent [2][]byte
	for r, m := range w.ranks {
		sent[r] = w.bytes(moves * part)
		require.NoError(w.t, m.stream.Upload(m.src, sent[r]))
		require.NoError(w.t, m.stream.Fill(m.dst, poison, 2*moves*part))
		require.NoError(w.t, m.stream.Fill(m.src+1<<20, 0, moves*part)) // for packets
		require.NoError(w.t, m.stream.Sync())
	}
	for r, m := range w.ranks {
		peer := w.ranks[1-r]
		blocks, threads := 1+w.rand.IntN(6), 32
		if how != 1 && w.rand.IntN(8) == 0 { // these need not all run at once: they do not wait between signals
			blocks, threads = ChannelGrid, 8
		}
		var out, in []Step
		for i := range moves {
			at := cuda.Addr(i*part + off)
			src, there, here := m.src+at, peer.dst+at, m.dst+at
			second := m.dst + cuda.Addr(moves*part) + at
			again := Step{What: StepCopy, Dst: uint64(second), Src: uint64(here), Bytes: uint64(n)}
			move := Step{What: StepCopy, Dst: uint64(there), Src: uint64(src), Bytes: uint64(n)}
			switch how {
			case 0: // put
				out = append(out, move, Step{What: StepSignal})
				in = append(in, Step{What: StepWait}, again)
			case 1: // get
				move.Dst, move.Src = uint64(here), uint64(peer.src+at)
				out = append(out, Step{What: StepRelaxedSignal}, Step{What: StepSignal})
				in = append(in, Step{What: StepWait}, Step{What: StepWait}, move, Step{What: StepSignal}, Step{What: StepWait})
			case 2:
				box := cuda.Addr(1<<20 + i*part)
				out = append(out, Step{What: StepPutPackets | wide<<32, Dst: uint64(peer.src + box), Src: uint64(src),
					Bytes: uint64(n / 2)})
				in = append(in, Step{What: StepGetPackets | wide<<32, Dst: uint64(here), Src: uint64(m.src + box),
					Bytes: uint64(n / 2)})
			}
		}
		w.queue(m.stream, r, blocks, threads, SideOut, out)
		if how == 1 {
			w.queue(m.stream, r, blocks, threads, SideBoth, in)
		} else { // the two sides at the same time
			w.queue(beside[r], r, blocks, threads, SideIn, in)
		}
	}
	w.sync()
	for _, s := range beside {
		require.NoError(w.t, s.Sync())
	}
	if how == 2 {
		n /= 2
	}
	for r, m := range w.ranks {
		got := make([]byte, 2*moves*part)
		require.NoError(w.t, m.stream.Download(got, m.dst))
		want := bytes.Repeat([]byte{poison}, len(got))
		for i := range moves {
			at := i*part + off
			copy(want[at:at+n], sent[1-r][at:])
			if how == 0 {
				copy(want[moves*part+at:][:n], sent[1-r][at:])
			}
		}
		require.True(w.t, bytes.Equal(want, got), "rank %d: %d moves of %d bytes from %d on, kind %d", r, moves, n, off, how)
	}
	return uint32([]int{moves, 3 * moves, 0}[how]), uint32([]int{0, 0, moves}[how])
}

// queue queues steps as a few kernels, some of them with other grids.
func (w *world) queue(s *cuda.Stream, r, blocks, threads, side int, steps []Step) {
	for len(steps) > 0 {
		n := min(len(steps), MaxSteps)
		w.channel(s, r, blocks, threads, side, steps[:n]...)
		steps, blocks = steps[n:], 1+w.rand.IntN(blocks)
	}
}
