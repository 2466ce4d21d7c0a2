//go:build invariants

package gpumail

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The lanes of a kernel lie one after the other, each with all its messages.
func TestLanesAreDense(t *testing.T) {
	for _, k := range []struct {
		name  string
		spoil func(p *kernels.MailParams)
		says  string
	}{
		{"a hole between messages", func(p *kernels.MailParams) { p.Lane[1].First++ }, "lane 1 has 2 messages from 2, and not 2 from 1"},
		{"a message too few", func(p *kernels.MailParams) { p.Lane[1].Messages-- }, "lane 1 has 1 messages from 1, and not 2 from 1"},
		{"blocks of two lanes", func(p *kernels.MailParams) { p.Lane[1].Block-- }, "which is not"},
		{"another lane", func(p *kernels.MailParams) { p.Lane[0].Receives = 1 }, "row 0 is the lane of rank 0, receiving: 1"},
		{"a lane too few", func(p *kernels.MailParams) { p.Lanes-- }, "the next one is lane 2"},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newPartition(4)
			p.set([]Message{message(0, false, 5, 0), message(0, true, 5, 0), message(0, true, 5, 0), message(1, false, 5, 0)})
			grid := uint32(0)
			for i, n := range []uint32{1, 2, 1} {
				p.params.Lane[i] = kernels.Lane{Peer: uint32(i / 2), Receives: uint32(i % 2), First: uint32(i), Messages: n,
					Block: grid, Blocks: 3}
				grid += 3
			}
			p.params.Lane[2].First = 3
			p.params.Lanes = 3
			p.checkLaid(&p.lanes, int(grid))
			k.spoil(&p.params)
			testkit.Violation(t, k.says, func() { p.checkLaid(&p.lanes, int(grid)) })
		})
	}
}

func TestMarksAreCounted(t *testing.T) {
	m := newMessages(2, &gpu.Device{Room: gpu.RoomOf(132, 2)})
	k := &mark{users: 1}
	m.drop(k)
	require.Equal(t, []*mark{k}, m.free)
	testkit.Violation(t, "a mark has -1 uses", func() { m.drop(k) })
}
