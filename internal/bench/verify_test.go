package bench

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

func verifyOn(t *testing.T, n int, v Verification) (string, error) {
	var out bytes.Buffer
	o := ubcoll.Options{Timeout: testkit.Limit, Register: register.Explicit}
	err := ubcoll.Local(t.Context(), n, o, func(ctx context.Context, c *ubcoll.Comm) error {
		return Verify(ctx, c, v, &out)
	})
	return out.String(), err
}

func TestVerify(t *testing.T) {
	v := Verification{Device: Host, MaxBytes: 16 << 10, Seed: testkit.Seed(t) >> 32}
	out, err := verifyOn(t, 3, v)
	require.NoError(t, err, out)
	require.Regexp(t, `(?m)^#  +\d+ calls: two-shot, source direct, destination direct$`, out)
	require.Regexp(t, `(?m)^verify: 3 ranks on host memory: \d{3,} calls of 14 operations on 13 types, up to 16384 bytes, `+
		`seed \d+, \S+ s: 0 calls with wrong elements: OK\n$`, out)
}

// A wrong result fails the verification, which says of which call it was.
func TestVerifyNotices(t *testing.T) {
	o := operationOf("all_reduce")
	good := o.run
	defer func() { o.run = good }()
	o.run = func(ctx context.Context, c *ubcoll.Comm, a *args) error {
		return good(ctx, c, &args{dst: a.dst, src: a.src, op: ubcoll.Max})
	}
	out, err := verifyOn(t, 2, Verification{Device: Host, MaxBytes: 1 << 10, Ops: []string{"all_reduce"}, Seed: 1})
	require.ErrorIs(t, err, ErrFailed)
	require.Contains(t, out, "verify: all_reduce of 8 int8, sum")
	require.NotContains(t, out, ", max, ", "that one is right")
	require.Contains(t, out, "FAILED\n")
}

func TestVerifyRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		v    Verification
		want error
	}{
		{"size", Verification{Device: Host, MaxBytes: 1000}, ubcoll.ErrArgument},
		{"operation", Verification{Device: Host, MaxBytes: 1 << 10, Ops: []string{"channel"}}, ubcoll.ErrArgument},
		{"device", Verification{Device: CUDA, MaxBytes: 1 << 10}, fault.ErrNotSupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := verifyOn(t, 2, c.v)
			require.ErrorIs(t, err, c.want)
		})
	}
}
