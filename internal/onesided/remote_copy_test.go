package onesided

import (
	"bytes"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// mortalPeer has memory that is live for a number of looks.
type mortalPeer struct {
	team.PeerMemory
	looks int
}

func (p *mortalPeer) Live(mem.Location) bool { p.looks--; return p.looks >= 0 }

// TestCopyLooks checks that a copy ends with the piece during which the peer has taken its memory back.
func TestCopyLooks(t *testing.T) {
	const n = 3*copyPiece + 5
	for looks := range 6 {
		for _, put := range []bool{false, true} {
			local, remote := make([]byte, n), make([]byte, n)
			src, dst := remote, local
			if put {
				src, dst = local, remote
			}
			for i := range src {
				src[i] = 1
			}
			m := &Remote{c: &engine.Comm{}, ptr: unsafe.Pointer(&remote[0]),
				Import: engine.Import{Memory: &mortalPeer{looks: looks}, Export: engine.Export{Bytes: n, Access: engine.DefaultAccess}}}
			var copies atomic.Uint64
			err := m.copy(&copies, 0, unsafe.Pointer(&local[0]), n, put)
			if looks == 5 { // one before the copy, and one after each piece
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, fault.ErrStale)
			}
			require.Equal(t, min(looks*copyPiece, n), bytes.Count(dst, []byte{1}), "%d looks, put %v", looks, put)
			require.Zero(t, copies.Load())
		}
	}
}
