package ubcoll_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

func TestParseOp(t *testing.T) {
	for _, op := range []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg, ubcoll.PreMulSum(0.5),
		ubcoll.PreMulSum(-3), ubcoll.PreMulSum(1e300)} {
		t.Run(op.String(), func(t *testing.T) {
			got, err := ubcoll.ParseOp(op.String())
			require.NoError(t, err)
			require.Equal(t, op, got)
		})
	}
	for _, s := range []string{"", "SUM", "none", "xor", "premulsum", "premulsum(", "premulsum()", "premulsum(2", "premulsum(x)"} {
		t.Run("not "+s, func(t *testing.T) {
			_, err := ubcoll.ParseOp(s)
			require.ErrorIs(t, err, ubcoll.ErrArgument)
		})
	}
	_, err := ubcoll.ParseOp("mean")
	require.ErrorContains(t, err, "did you mean avg?")
}
