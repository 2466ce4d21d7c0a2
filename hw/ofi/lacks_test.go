package ofi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
)

// TestLacks has providers that ask for what this package does not do: no machine for tests has them.
func TestLacks(t *testing.T) {
	const good = Messages | Remote | RMA
	for name, c := range map[string]struct {
		d    Description
		want string
	}{
		"all it takes":         {Description{Caps: good, rdm: true, asks: servedModes, MRMode: served | MRDevices}, ""},
		"no RMA":               {Description{Caps: Messages | Remote, rdm: true}, ""},
		"raw keys":             {Description{Caps: good, rdm: true, MRMode: MRLocal | 1<<3 | 1<<8}, "asks of registrations: MR_RAW|MR_RMA_EVENT"},
		"later modes":          {Description{Caps: good, rdm: true, MRMode: 1 << 20}, "asks of registrations: 0x100000"},
		"receives for data":    {Description{Caps: good, rdm: true, asks: 1<<56 | 1<<59}, "asks of its user: RX_CQ_DATA"},
		"prefixes":             {Description{Caps: good, rdm: true, asks: 1 << 58}, "asks of its user: MSG_PREFIX"},
		"datagrams":            {Description{Caps: Messages | Remote}, "has no reliable datagrams (FI_EP_RDM)"},
		"RMA alone, this host": {Description{Caps: RMA, rdm: true}, "has no messages (FI_MSG), reaches processes of this host only"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.d.lacks()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, hw.ErrNotSupported)
			require.EqualError(t, err, c.want+": not supported")
		})
	}
}

func TestNames(t *testing.T) {
	d := Description{Provider: "verbs;ofi_rxm", Domain: "mlx5_0"}
	for name, want := range map[string]bool{"": true, "verbs": true, "VERBS": true, "verbs;ofi_rxm": true, "verbs;ofi_rxd": false, "ofi_rxm": false, "verb": false} {
		require.Equal(t, want, d.Matches(name), name)
	}
	require.Equal(t, "verbs;ofi_rxm mlx5_0", d.String())
	require.Equal(t, "MR_LOCAL|MR_PROV_KEY", (MRLocal | MRKey).String())
	require.Equal(t, "none", MRMode(0).String())
	require.Equal(t, "READ|REMOTE_WRITE", (Read | RemoteWrite).String())
	require.Equal(t, "none", Access(0).String())
	require.Equal(t, "compare and swap", OpCompareSwap.String())
	require.Equal(t, "operation 77", Op(77).String())
	require.Equal(t, "key 0x1f", Key(31).String())
}
