package gpuend

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// TestTouches checks which memory steps use: in this rank's memory of 100 bytes, and in the peer's of 200.
func TestTouches(t *testing.T) {
	e := &memories{peer: 1, bytes: [2]int{100, 200}}
	for _, k := range []struct {
		step Step
		want touch
		text string // in the error
	}{
		{Step{Kind: StepPut, Dst: 150, Src: 50, N: 50}, touch{reads: [2]span{{50, 50}, {}}, writes: [2]span{{}, {150, 50}}}, ""},
		{Step{Kind: StepPut, Dst: 151, N: 50}, touch{}, "bytes [151,+50) are outside of rank 1's memory, which has 200"},
		{Step{Kind: StepPut, Src: 51, N: 50}, touch{}, "bytes [51,+50) are outside of the registration, which has 100"},
		{Step{Kind: StepPut, Src: -1, N: 1}, touch{}, "outside of the registration"},
		{Step{Kind: StepPut, N: -1}, touch{}, "outside of the registration"},
		{Step{Kind: StepGet, Dst: 50, Src: 150, N: 50}, touch{reads: [2]span{{}, {150, 50}}, writes: [2]span{{50, 50}, {}}}, ""},
		{Step{Kind: StepGet, Dst: 51, N: 50}, touch{}, "outside of the registration"},
		{Step{Kind: StepPutPackets, Dst: 8, Src: 1, N: 9, Width: 8},
			touch{reads: [2]span{{1, 9}, {}}, writes: [2]span{{}, {8, 24}}}, ""},
		{Step{Kind: StepPutPackets, N: 101, Width: 16}, touch{}, "outside of the registration"},
		{Step{Kind: StepPutPackets, Dst: 4, N: 8, Width: 8}, touch{}, "packets at 0x4, which is no multiple of 8"},
		{Step{Kind: StepPutPackets, N: 8, Width: 4}, touch{}, "packets of 4 bytes"},
		{Step{Kind: StepPutPackets, N: 1<<46 + 1, Width: 8}, touch{}, "bytes as packets"},
		{Step{Kind: StepGetPackets, Dst: 0, Src: 16, N: 16, Width: 16},
			touch{reads: [2]span{{16, 32}, {}}, writes: [2]span{{0, 16}, {}}}, ""},
		{Step{Kind: StepGetPackets, Dst: 0, Src: 8, N: 16, Width: 8}, touch{},
			"packets [8,+32) overlap their destination [0,+16)"},
		{Step{Kind: StepSignal}, touch{}, ""},
		{Step{Kind: StepWait}, touch{}, ""},
	} {
		t.Run(fmt.Sprintf("%v %d %d %d", k.step.Kind, k.step.Dst, k.step.Src, k.step.N), func(t *testing.T) {
			got, err := e.touches(&k.step)
			if k.text != "" {
				require.ErrorIs(t, err, fault.ErrArgument)
				require.ErrorContains(t, err, k.text)
				return
			}
			require.NoError(t, err)
			require.Equal(t, k.want, got)
		})
	}
}

// TestAllowed checks what steps need of the peer's memory: with all rights but that one they are refused.
func TestAllowed(t *testing.T) {
	const all = engine.LocalWrite | engine.RemoteWrite | engine.RemoteRead | engine.RemoteAtomic
	for kind, need := range map[StepKind]engine.Access{StepPut: engine.RemoteWrite, StepPutPackets: engine.RemoteWrite,
		StepSignal: 0, StepRelaxedSignal: 0, StepWait: 0, StepFlush: 0} {
		t.Run(kind.String(), func(t *testing.T) {
			allowed := func(a engine.Access) error {
				e := &memories{Memory: Memory{Remote: &engine.Import{Export: engine.Export{Access: a}}}}
				return e.allowed(&Step{Kind: kind})
			}
			require.NoError(t, allowed(need))
			if need != 0 {
				require.ErrorIs(t, allowed(all&^need), fault.ErrArgument)
			}
		})
	}
}

// TestTouchMeets checks which steps may not be in one kernel: those of which one writes what the other one uses.
func TestTouchMeets(t *testing.T) {
	e := &memories{peer: 1, bytes: [2]int{1000, 1000}}
	touches := func(s Step) *touch {
		x, err := e.touches(&s)
		require.NoError(t, err)
		return &x
	}
	put := touches(Step{Kind: StepPut, Dst: 100, Src: 0, N: 10}) // reads [0,10), writes the peer's [100,110)
	for _, k := range []struct {
		step Step
		want bool
	}{
		{Step{Kind: StepPut, Dst: 110, Src: 0, N: 10}, false}, // both read
		{Step{Kind: StepPut, Dst: 109, Src: 500, N: 10}, true},
		{Step{Kind: StepPut, Dst: 90, Src: 500, N: 10}, false},
		{Step{Kind: StepGet, Dst: 9, Src: 500, N: 10}, true},
		{Step{Kind: StepGet, Dst: 10, Src: 500, N: 10}, false},
		{Step{Kind: StepGet, Dst: 500, Src: 105, N: 10}, true},
		{Step{Kind: StepGet, Dst: 100, Src: 0, N: 10}, false}, // the same offsets in the other memory
		{Step{Kind: StepSignal}, false},
	} {
		other := touches(k.step)
		require.Equal(t, k.want, put.meets(other), "%+v", k.step)
		require.Equal(t, k.want, other.meets(put), "%+v", k.step)
	}
}

func TestSideOf(t *testing.T) {
	for _, k := range []struct {
		kinds []StepKind
		want  int
	}{
		{[]StepKind{StepPut, StepGet, StepSignal, StepRelaxedSignal, StepPutPackets, StepFlush}, kernels.SideOut},
		{[]StepKind{StepWait, StepGetPackets}, kernels.SideIn},
		{[]StepKind{StepPut, StepWait}, kernels.SideBoth},
		{[]StepKind{StepGetPackets, StepSignal, StepWait}, kernels.SideBoth},
	} {
		var steps []Step
		for _, kind := range k.kinds {
			steps = append(steps, Step{Kind: kind})
		}
		require.Equal(t, k.want, sideOf(steps), "%v", k.kinds)
	}
}

func TestBlocks(t *testing.T) {
	for _, k := range []struct {
		step       Step
		most, want int
	}{
		{Step{Kind: StepSignal}, 100, 1},
		{Step{Kind: StepPut, N: copyBlock}, 100, 1},
		{Step{Kind: StepPut, N: copyBlock + 1}, 100, 2},
		{Step{Kind: StepPut, N: 1 << 20}, 100, channelBlocks},
		{Step{Kind: StepPut, N: 1 << 30}, 100, 100},
		{Step{Kind: StepPutPackets, N: packetBlock + 1, Width: 8}, 100, 2},
		{Step{Kind: StepPutPackets, N: 1 << 20, Width: 8}, 100, channelBlocks},
		{Step{Kind: StepGetPackets, N: 1 << 20, Width: 16}, 10, 10},
	} {
		require.Equal(t, k.want, k.step.blocks(k.most), "%+v", k.step)
	}
}
