//go:build cgo

package coll_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// TestAcrossCosts: whose costs choose the way is agreed when a communicator is opened: RDMA's if all ranks have devices, and
// also where their data then cannot go by RDMA. Options.Net says what may carry them.
func TestAcrossCosts(t *testing.T) {
	for name, k := range map[string]struct {
		devices, fail, net string
		rdma               bool
		wire               string // its beginning; "" if Open fails
	}{
		"devices":                          {"1", "", "", true, "verbs double0:1"},
		"devices of which none is of use":  {"1", "create_qp:*:ENOMEM", "", true, "tcp lo instead of verbs"},
		"no device":                        {"0", "", "", false, "tcp lo"},
		"TCP is asked for":                 {"1", "", "tcp", false, "tcp lo"},
		"RDMA is asked for":                {"1", "", "verbs", true, "verbs double0:1"},
		"RDMA is asked for, and of no use": {"1", "create_qp:*:ENOMEM", "verbs", true, ""},
		"RDMA is asked for, and not there": {"0", "", "verbs", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": k.devices, "FAIL": k.fail}, func(t *testing.T) {
				t.Setenv("UBCOLL_CUDA", "off")
				t.Setenv("UBCOLL_IB", "auto")
				t.Setenv("UBCOLL_REQUIRE", "")
				t.Setenv("UBCOLL_NET", "lo")
				var mu sync.Mutex
				got := map[string]int{}
				errs := onHostsWith(t, "aab", inside.Providers.Network, engine.Options{Net: k.net}, func(c *ubcoll.Comm) error {
					team := (*inside.Comm)(c).View().Team()
					mu.Lock()
					defer mu.Unlock()
					require.Equal(t, k.rdma, team.Costs() == &team.Tuning().RDMA)
					require.Equal(t, !k.rdma, team.Costs() == &team.Tuning().Hosts.Model)
					if team.Hosts.Link().Leader {
						got[team.Hosts.Link().Name]++
					}
					return nil
				})
				if k.wire == "" {
					is := ubcoll.ErrNotSupported
					if k.fail != "" {
						is = ubcoll.ErrLimit // it is memory that lacks
					}
					for _, err := range errs {
						require.ErrorIs(t, err, is)
					}
					require.ErrorContains(t, errors.Join(errs...), "Options.Net is verbs")
					return
				}
				requireAll(t, errs)
				require.Equal(t, map[string]int{k.wire: 2}, got)
			})
		})
	}
}
