package ubcoll_test

import (
	"context"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

// Errors about mistyped words suggest the right one.
func TestOptionsHints(t *testing.T) {
	err := ubcoll.Options{Algorithm: "two-shots"}.Validate()
	require.ErrorIs(t, err, ubcoll.ErrArgument)
	require.ErrorContains(t, err, `unknown algorithm "two-shots" (one of ring, one-shot, two-shot, push, doubling, halving, chain, tree, scatter, pairwise, collnet): did you mean two-shot?`)
}

// Options are read from TOML, and written, as words.
func TestOptionsText(t *testing.T) {
	var o ubcoll.Options
	_, err := toml.Decode("Timeout = \"90s\"\nRegister = \"explicit\"\nPin = \"required\"\nAlgorithm = \"one-shot\"\nDevices = \"required\"\nNetTimeout = \"9s\"\nNet = \"verbs\"\n", &o)
	require.NoError(t, err)
	require.Equal(t, ubcoll.Options{Timeout: 90e9, NetTimeout: 9e9, Net: ubcoll.NetVerbs, Register: ubcoll.RegisterExplicit, Pin: ubcoll.PinRequired,
		Algorithm: ubcoll.AlgorithmOneShot, Devices: ubcoll.DevicesRequired}, o)
	text, err := toml.Marshal(o)
	require.NoError(t, err)
	require.Equal(t, "Timeout = \"1m30s\"\nRegister = \"explicit\"\nPin = \"required\"\nAlgorithm = \"one-shot\"\nDevices = \"required\"\nNetTimeout = \"9s\"\nNet = \"verbs\"\n",
		string(text))
}

// All algorithms except AlgorithmAuto have names.
func TestAlgorithms(t *testing.T) {
	require.Equal(t, []ubcoll.Algorithm{ubcoll.AlgorithmRing, ubcoll.AlgorithmOneShot, ubcoll.AlgorithmTwoShot,
		ubcoll.AlgorithmPush, ubcoll.AlgorithmDoubling, ubcoll.AlgorithmHalving, ubcoll.AlgorithmChain, ubcoll.AlgorithmTree,
		ubcoll.AlgorithmScatter, ubcoll.AlgorithmPairwise, ubcoll.AlgorithmCollNet}, ubcoll.Algorithms())
	ubcoll.Algorithms()[0] = "changed"
	for _, a := range append(ubcoll.Algorithms(), ubcoll.AlgorithmAuto) {
		require.NoError(t, ubcoll.Options{Algorithm: a}.Validate())
	}
}

// All networks except NetAuto have names.
func TestNets(t *testing.T) {
	require.Equal(t, []ubcoll.Net{ubcoll.NetTCP, ubcoll.NetVerbs, ubcoll.NetOFI}, ubcoll.Nets())
	ubcoll.Nets()[0] = "changed"
	for _, n := range append(ubcoll.Nets(), ubcoll.NetAuto, "ofi:tcp", "ofi:tcp;ofi_rxm") {
		require.NoError(t, ubcoll.Options{Net: n}.Validate())
	}
	for net, want := range map[ubcoll.Net]string{
		"verb":  `unknown network "verb" (one of tcp, verbs, ofi): did you mean verbs?`,
		"ofi:":  `unknown network "ofi:" (one of tcp, verbs, ofi): did you mean ofi?`,
		"ofi: ": `unknown network "ofi: "`,
		"OFI":   `unknown network "OFI" (one of tcp, verbs, ofi): did you mean ofi?`,
		"tcp:x": `unknown network "tcp:x"`,
	} {
		err := ubcoll.Options{Net: net}.Validate()
		require.ErrorIs(t, err, ubcoll.ErrArgument)
		require.ErrorContains(t, err, want)
	}
}

// A rank without a color gets no communicator.
func TestNoColor(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		color := ubcoll.NoColor
		if c.Rank() == 1 {
			color = 0
		}
		d, err := c.Split(ctx, color, 0)
		if err != nil {
			return err
		}
		require.Equal(t, c.Rank() == 0, d == nil)
		if d != nil {
			return d.Close()
		}
		return nil
	})
	require.NoError(t, err)
}
