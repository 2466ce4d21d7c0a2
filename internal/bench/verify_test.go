package bench

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/conform"
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
	testkit.Long(t) // TestVerifyOnDevices and the conformance suites have the same code for the race detector
	v := Verification{Device: Host, MinBytes: 8, MaxBytes: 16 << 10, Seed: testkit.Seed(t) >> 32}
	out, err := verifyOn(t, 3, v)
	require.NoError(t, err, out)
	require.Regexp(t, `(?m)^#  +\d+ calls: two-shot, source direct, destination direct$`, out)
	require.Regexp(t, `(?m)^verify: 3 ranks on host memory: \d{3,} calls of 14 operations on 13 types, 8 to 16384 bytes, `+
		`seed \d+, \S+ s: 0 calls with wrong elements: OK\n$`, out)
}

// TestVerifyHosts: between hosts all collectives and messages are verified.
func TestVerifyHosts(t *testing.T) {
	v := Verification{Device: Auto, MinBytes: 8, MaxBytes: 300 << 10, Types: []dtype.Type{dtype.Float32}, Seed: testkit.Seed(t) >> 32}
	if testkit.Daily() {
		v.MaxBytes = 20 << 10
	}
	var out bytes.Buffer
	o := ubcoll.Options{Timeout: testkit.Limit, Register: register.Explicit}
	require.NoError(t, conform.Cyclic(2, 1, 1).Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
		return Verify(ctx, c, v, &out)
	}), &out)
	require.Regexp(t, `(?m)^verify: 4 ranks on host memory: \d{3,} calls of 14 operations on 1 type, .*: 0 calls with wrong elements: OK\n$`, out.String())
	require.Contains(t, out.String(), " between hosts, source ")
}

// A wrong result fails the verification, which says of which call it was.
func TestVerifyNotices(t *testing.T) {
	o := operationOf("all_reduce")
	good := o.run
	defer func() { o.run = good }()
	o.run = func(ctx context.Context, c *ubcoll.Comm, a *args) error {
		return good(ctx, c, &args{dst: a.dst, src: a.src, op: ubcoll.Max})
	}
	for name, v := range map[string]Verification{
		"of many calls": {MaxBytes: 1 << 10},
		"of few":        {MaxBytes: 8, Types: []dtype.Type{dtype.Int8}},
	} {
		t.Run(name, func(t *testing.T) {
			v.Device, v.MinBytes, v.Ops, v.Seed = Host, 8, []string{"all_reduce"}, 1
			out, err := verifyOn(t, 2, v)
			require.ErrorIs(t, err, ErrFailed)
			require.Contains(t, out, "verify: all_reduce of 8 int8, sum")
			require.NotContains(t, out, ", max, ", "that one is right")
			require.Contains(t, out, "FAILED\n")
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Verification)
		want   error
		says   string
	}{
		{"no size", func(v *Verification) { v.MinBytes = 0 }, ubcoll.ErrArgument, "sizes from 0 to 1024 bytes (-b, -e)"},
		{"sizes that go down", func(v *Verification) { v.MinBytes = 1025 }, ubcoll.ErrArgument, "sizes from 1025 to 1024 bytes (-b, -e)"},
		{"no element", func(v *Verification) { v.MinBytes, v.Types = 4, []dtype.Type{dtype.Float64} }, ubcoll.ErrArgument,
			"4 bytes (-b) have no float64 (-d), which takes 8"},
		{"operation", func(v *Verification) { v.Ops = []string{"all_reduced"} }, ubcoll.ErrArgument,
			`did you mean all_reduce?`},
		{"what has no result", func(v *Verification) { v.Ops = []string{"channel"} }, ubcoll.ErrArgument, `"channel" cannot be verified`},
		{"unknown device", func(v *Verification) { v.Device = "gpu" }, ubcoll.ErrArgument, "did you mean cuda?"},
		{"no device", func(v *Verification) { v.Device = CUDA }, fault.ErrNotSupported, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Verification{Device: Host, MinBytes: 8, MaxBytes: 1 << 10}
			require.NoError(t, v.Validate())
			c.change(&v)
			_, err := verifyOn(t, 2, v)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestVerifiedSizes(t *testing.T) {
	for _, c := range []struct {
		name      string
		low, high int
		want      []int
	}{
		{"default", 8, 40 << 20, verified},
		{"up to one between", 8, 1000, []int{8, 256, 1000}},
		{"one", 3000, 3000, []int{3000}},
		{"beyond", 39 << 20, 64 << 20, []int{39 << 20, 40 << 20, 64 << 20}},
	} {
		v := Verification{MinBytes: c.low, MaxBytes: c.high}
		require.Equal(t, c.want, v.sizes(), c.name)
	}
	for _, c := range []struct {
		name  string
		bytes int
		t     dtype.Type
		red   ubcoll.Op
		named bool // the type
		want  bool
	}{
		{"small", 8, dtype.Int16, ubcoll.Prod, false, true},
		{"less than an element", 4, dtype.Float64, ubcoll.Sum, false, false},
		{"long", longest, dtype.Float32, ubcoll.Sum, false, true},
		{"long, no sum", longest, dtype.Float32, ubcoll.Max, true, false},
		{"long, another type", longest, dtype.Uint32, ubcoll.Sum, false, false},
		{"long, the type that was named", longest, dtype.Uint32, ubcoll.Sum, true, true},
	} {
		r := verifier{v: &Verification{}}
		if c.named {
			r.v.Types = []dtype.Type{c.t}
		}
		require.Equal(t, c.want, r.wants(c.bytes, c.t, c.red), c.name)
	}
}

// Sizes and types that were asked for are made, exactly, and no others.
func TestVerifyChosen(t *testing.T) {
	for i := range operations {
		if operations[i].name != "all_reduce" {
			continue
		}
		good := operations[i].run
		defer func() { operations[i].run = good }()
		operations[i].run = func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			if a.src.Type() != dtype.Int16 && a.src.Type() != dtype.Float64 || a.src.Len()*a.src.Type().Size() != 3000 {
				return fmt.Errorf("%d of %v were not asked for", a.src.Len(), a.src.Type())
			}
			return good(ctx, c, a)
		}
	}
	out, err := verifyOn(t, 2, Verification{Device: Host, MinBytes: 3000, MaxBytes: 3000, Ops: []string{"all_reduce"},
		Types: []dtype.Type{dtype.Int16, dtype.Float64}})
	require.NoError(t, err)
	require.Contains(t, out, ": 20 calls of 1 operation on 2 types, 3000 to 3000 bytes, ")
}
