//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// reported is what a provider reports of a refused operation; nil: nothing.
var reported = map[string]error{
	"tcp;ofi_rxm":   syscall.ECANCELED, // the peer has given up the connection, without a reason
	"sockets":       fault.ErrStale,
	"verbs;ofi_rxm": fault.ErrStale,
}

// TestRefused writes and reads where that is not allowed. No byte changes, and what the provider reports is typed. The endpoints
// are new in each case: with some providers, a refusal ends the connection of the two.
func TestRefused(t *testing.T) {
	testkit.SkipRace(t)
	const n = 4096
	each(t, func(t *testing.T, i *ofi.Info) {
		for _, c := range []struct {
			name   string
			access ofi.Access
			wrong  func(w *ofi.Work, to *ofi.MR)
		}{
			{"wrong key", ofi.Read | ofi.Write | ofi.Peers, func(w *ofi.Work, _ *ofi.MR) { w.Key ^= 0x1234 }},
			{"beyond the end", ofi.Read | ofi.Write | ofi.Peers, func(w *ofi.Work, to *ofi.MR) { w.Remote = to.Remote(n - 8) }},
			{"far beyond the end", ofi.Read | ofi.Write | ofi.Peers, func(w *ofi.Work, to *ofi.MR) { w.Remote = to.Remote(1 << 40) }},
			{"around the end of all addresses", ofi.Read | ofi.Write | ofi.Peers, func(w *ofi.Work, to *ofi.MR) { w.Remote = ^uint64(0) - 63 }},
			{"registration closed", ofi.Read | ofi.Write | ofi.Peers, func(_ *ofi.Work, to *ofi.MR) { require.NoError(t, to.Close()) }},
			{"no access", ofi.Read | ofi.Write, func(*ofi.Work, *ofi.MR) {}}, // but the other operation's
		} {
			for _, op := range []ofi.Op{ofi.OpWrite, ofi.OpRead} {
				t.Run(c.name+", "+op.String(), func(t *testing.T) {
					a, b, toB, _ := pair(t, i)
					src, from := a.registered(t, n)
					ok := memory(t, 3*n)
					dst := ok[n : 2*n]
					access := c.access
					if access&ofi.Peers == 0 {
						access |= map[ofi.Op]ofi.Access{ofi.OpWrite: ofi.RemoteRead, ofi.OpRead: ofi.RemoteWrite}[op]
					}
					to := b.register(t, dst, access)
					_, met := b.registered(t, n)
					_, err := a.do(b, work(ofi.OpWrite, toB, from, 0, met, 0, 8))
					require.NoError(t, err)
					pattern(src, 1)
					w := work(op, toB, from, 0, to, 0, 64)
					if op == ofi.OpWrite {
						w.Flags = ofi.Delivered
					}
					c.wrong(&w, to)
					require.NoError(t, a.post(b, w))
					begin := time.Now()
					var done *ofi.Completion
					patience := limit
					if reported[i.Provider] == nil {
						patience = 50 * time.Millisecond
					}
					for done == nil && time.Since(begin) < patience {
						require.NoError(t, errors.Join(a.progress(), b.progress()))
						if x, ok := a.done[w.ID]; ok {
							done = &x
						}
					}
					require.Equal(t, -1, firstSet(ok), "bytes were written")
					want := make([]byte, n)
					pattern(want, 1)
					require.True(t, bytes.Equal(want, src), "bytes were read")
					if done == nil {
						require.NoError(t, reported[i.Provider], "nothing is reported")
						return
					}
					err = a.Failure(done)
					t.Log(err)
					require.ErrorIs(t, err, reported[i.Provider])
					var x *ofi.CompletionError
					require.ErrorAs(t, err, &x)
					require.Equal(t, w.ID, x.ID)
					require.Equal(t, op, x.Op)
				})
			}
		}
	})
}
