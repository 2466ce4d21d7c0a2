//go:build cgo

package net

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
)

// transfer grants n bytes at each of some places of b, puts them within puts, and checks that all come.
func (p *pair) transfer(t *testing.T, n, places int, puts func(put func())) {
	t.Helper()
	var from, to [][]byte
	seq := p.lb.Word(0).Load() + 1
	for i := range places {
		from, to = append(from, bytes.Repeat([]byte{byte(i + 1), byte(seq), 5}, n/3+1)[:n]), append(to, make([]byte, n))
		p.lb.Grant(i, seq, at(to[i]), n)
	}
	testkit.Eventually(t, func() bool {
		p.lb.Poll()
		p.la.Poll()
		for i := range places {
			if p.la.Granted(i).Load() != seq {
				return false
			}
		}
		return true
	})
	puts(func() {
		for i := range places {
			p.la.Put(i, seq, at(from[i]), n)
		}
	})
	for i := range places {
		p.lb.until(t, i, seq)
		require.Equal(t, from[i], to[i])
	}
}

// atOnce puts.
func atOnce(put func()) { put() }

// unnoticed puts while nothing is received on the data connections of a, so that nobody notices that work has been done.
func (p *pair) unnoticed(put func()) {
	for i := range p.ab.data {
		next := put
		put = func() { p.ab.data[i].Stop(func(frame.Header) bool { next(); return false }) }
	}
	put()
}

// TestTwoNICs: long puts are split between the NICs of a host, rail i to rail i; what is short takes the first.
func TestTwoNICs(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": "2"}, func(t *testing.T) {
		p := pairOf(t, 4, withThese(t, transport.Config{}, mr.Config{QueuePairs: 2}), withThese(t, transport.Config{}, mr.Config{QueuePairs: 2}))
		require.Equal(t, "verbs double0:1, double1:1", p.la.Name())
		require.Equal(t, 4, p.la.Connections())
		require.Equal(t, []int{0, 2}, p.ab.homes, "both of the first NIC")
		sent := func() (each []uint64) {
			for i := range p.ab.data {
				each = append(each, p.ab.data[i].traffic().SentBytes)
			}
			return each
		}
		const n = 1 << 20
		before := sent()
		p.transfer(t, n, 4, p.unnoticed) // the double does work at once
		after := sent()
		for i := range after {
			require.EqualValues(t, n, after[i]-before[i], "one put took each queue pair: connection %d", i)
		}
		p.transfer(t, 100, 4, atOnce)
		short := sent()
		require.Equal(t, []bool{true, false, true, false},
			[]bool{short[0] > after[0], short[1] > after[1], short[2] > after[2], short[3] > after[3]}, "what is short: %v, %v", after, short)
		p.close(t)
	})
}

// TestNICLost: if one of several NICs is lost, the wire ends, at both ends by its name.
func TestNICLost(t *testing.T) {
	for name, k := range map[string]struct{ knob, value, why string }{
		"port down":  {"PORT", "double1=down", "double1:1"},
		"no way":     {"STATUS", "WRITE_WITH_IMM:2:RETRY_EXC_ERR", "retries exceeded"},
		"first down": {"PORT", "double0=down", "double0:1"},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": "2"}, func(t *testing.T) {
				p := pairOf(t, 2, nics(t), nics(t))
				p.cutBy(t, k.knob, k.value, k.why)
			})
		})
	}
}

// TestFewerNICs: NICs that one side alone has carry nothing, which is said; by the index of each side's, whatever its name.
func TestFewerNICs(t *testing.T) {
	for list, name := range map[string]string{"=double0": "verbs double0:1", "=double1": "verbs double1:1"} {
		t.Run(list, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": "2"}, func(t *testing.T) {
				which, err := ib.ParseSelection(list)
				require.NoError(t, err)
				log, said := testkit.Logs(slog.LevelInfo)
				p := pairOf(t, 2, withNICs(t, transport.Config{Log: log}), withThese(t, transport.Config{}, mr.Config{Select: which}))
				require.Equal(t, "verbs double0:1", p.la.Name())
				require.Equal(t, name, p.lb.Name())
				p.transfer(t, 1<<20, 2, atOnce)
				require.Contains(t, said.String(), "fewer connections over devices")
				require.Contains(t, said.String(), "it offers 1")
				p.close(t)
			})
		})
	}
}

// TestNICsFail: a NIC that does not work is left out, which is said with its error; writes go in messages where it is the first.
func TestNICsFail(t *testing.T) {
	for name, k := range map[string]struct { // which of the four, two of each side, is a matter of chance
		knobs verbstest.Knobs
		why   string
	}{
		"no queue":       {verbstest.Knobs{"FAIL": "create_srq:2:ENOMEM"}, "ibv_create_srq"},
		"no queue pair":  {verbstest.Knobs{"FAIL": "create_qp:2:ENOMEM"}, "ibv_create_qp"},
		"a ping is lost": {verbstest.Knobs{"STATUS": "SEND:1:NEVER"}, "no answer to a ping"},
		"not connected":  {verbstest.Knobs{"FAIL": "modify_qp:5:EINVAL"}, "ibv_modify_qp"},
	} {
		t.Run(name, func(t *testing.T) {
			k.knobs["SILENT"], k.knobs["DEVICES"] = "1", "2"
			verbstest.Over(t, k.knobs, func(t *testing.T) {
				log, said := testkit.Logs(slog.LevelInfo)
				p := pairOf(t, 2, withNICs(t, transport.Config{Log: log}), withNICs(t, transport.Config{Log: log}))
				require.Contains(t, []string{"verbs double0:1", "verbs double1:1"}, p.la.Name())
				require.Equal(t, p.la.Name(), p.lb.Name())
				p.transfer(t, 1<<20, 2, atOnce)
				require.Contains(t, said.String(), "fewer connections over devices")
				require.Contains(t, said.String(), k.why)
				d, _, err := p.ab.newOneSided(0)
				if p.la.Name() == "verbs double0:1" {
					require.NoError(t, err)
					p.ab.drop(d)
				} else {
					require.ErrorIs(t, err, fault.ErrNotSupported)
				}
				p.close(t)
			})
		})
	}
}
