//go:build linux && cgo && (amd64 || arm64)

package collnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
	"github.com/ubcoll/ubcoll/internal/verify"
)

var ops = [...]cpu.Op{Sum: cpu.Sum, Prod: cpu.Prod, Max: cpu.Max, Min: cpu.Min}

// TestCollectives runs all collectives of all types and operations that the plugin declares, of both versions of the interface, in
// calls of a few bytes and in long ones.
func TestCollectives(t *testing.T) {
	switchtest.Start(t)
	seed, stuck := testkit.Seed(t), Stuck()
	for _, version := range []string{"10", "11"} {
		p := load(t, version)
		require.Equal(t, version, fmt.Sprint(p.Version))
		for _, n := range []int{1, 2, 4} {
			for _, most := range []int{64, p.Devices[0].Bytes} {
				t.Run(fmt.Sprintf("version %s/%d members/calls of %d", version, n, most), func(t *testing.T) {
					p := *p
					p.Devices = []Device{p.Devices[0]}
					p.Devices[0].Bytes = most
					for i, err := range members(t, &p, n, func(ctx context.Context, g *Group) error { return all(ctx, g, seed) }) {
						require.NoError(t, err, "member %d", i)
					}
				})
			}
		}
	}
	require.Equal(t, stuck, Stuck())
}

func all(ctx context.Context, g *Group, seed uint64) error {
	const most = 1000 // elements of 8 bytes
	src, _, err1 := memory(ctx, g, 8*most*g.Ranks)
	dst, _, err2 := memory(ctx, g, 8*most*g.Ranks)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	reduces, err := g.p.Reductions(ctx)
	if err != nil {
		return err
	}
	for _, typ := range dtype.All() {
		for op, of := range ops {
			op := Op(op)
			_, has := types[typ]
			if ok := reduces.Has(typ, op); ok != has {
				return fmt.Errorf("%v of %v: %v", of, typ, ok)
			}
			if !has {
				continue
			}
			d := verify.Data{Type: typ, Op: of, Ranks: g.Ranks, Seed: seed}
			for _, n := range []int{1, 7, most} {
				if err := one(ctx, g, d, op, dst, src, n); err != nil {
					return fmt.Errorf("%d of %v, %v: %w", n, typ, of, err)
				}
			}
		}
	}
	return errors.Join(g.Deregister(ctx, src.Handle), g.Deregister(ctx, dst.Handle), g.Close(ctx))
}

// one runs each collective once.
func one(ctx context.Context, g *Group, d verify.Data, op Op, dst, src Memory, n int) error {
	wrong := func(what string, wrong int, at verify.Mismatch) error {
		if wrong == 0 {
			return nil
		}
		return fmt.Errorf("%s: %d wrong, the first: %v", what, wrong, at)
	}
	d.Fill(src.At, n, g.Rank)
	err := g.AllReduce(ctx, dst, src, n, g.Device.Bytes, d.Type, op)
	if err == nil {
		n, at := d.Check(dst.At, 0, n)
		err = wrong("all-reduce", n, at)
	}
	if err == nil {
		err = gather(ctx, g, dst, src, n*d.Type.Size())
	}
	for r := 0; r < g.Ranks && err == nil; r++ {
		n, at := d.CheckInput(unsafe.Add(dst.At, r*n*d.Type.Size()), 0, n, r)
		err = wrong("all-gather", n, at)
	}
	if err != nil {
		return err
	}
	d.Fill(src.At, n*g.Ranks, g.Rank)
	for _, w := range parts(g, n*d.Type.Size(), d.Type.Size()) {
		own := max(w.From-g.Rank*n*d.Type.Size(), 0)
		if err := g.ReduceScatter(ctx, Memory{dst.add(min(own, n*d.Type.Size())), dst.Handle}, Memory{src.add(w.From), src.Handle}, n*d.Type.Size(), w, d.Type, op); err != nil {
			return err
		}
	}
	k, at := d.Check(dst.At, g.Rank*n, n)
	return wrong("reduce-scatter", k, at)
}

// gather gathers n bytes of each member in two windows.
func gather(ctx context.Context, g *Group, dst, src Memory, n int) (err error) {
	for _, w := range parts(g, n, 1) {
		own := min(max(w.From-g.Rank*n, 0), n)
		err = errors.Join(err, g.AllGather(ctx, Memory{dst.add(w.From), dst.Handle}, Memory{src.add(own), src.Handle}, n, w))
	}
	return err
}

// parts are two windows that end where elements do, in the middle of a member's block.
func parts(g *Group, n, size int) []Window {
	all := n * g.Ranks
	cut := (all / size * 5 / 8) * size
	return []Window{{0, cut, g.Device.Bytes}, {cut, all, g.Device.Bytes}}
}

// TestLoad: what cannot be loaded says why.
func TestLoad(t *testing.T) {
	switchtest.Start(t)
	text := filepath.Join(t.TempDir(), "text.so")
	require.NoError(t, os.WriteFile(text, []byte("no library"), 0o600))
	other := switchtest.Build(t, "other.so", "switch.c", "-fPIC", "-shared")
	for _, k := range []struct{ name, path, fault, want string }{
		{"no such file", "/nowhere/plugin.so", "", `no CollNet plugin "/nowhere/plugin.so": `},
		{"no such name", "nowhere", "", "libnccl-net-nowhere.so"},
		{"no library", text, "", "no CollNet plugin"},
		{"another library", other, "", "is no CollNet plugin: it has no ncclCollNetPlugin_v10 or _v11"},
		{"too old", plugin(t, "9"), "", "is a CollNet plugin of version 9, want 10 or 11"},
		{"too new", plugin(t, "12"), "", "is a CollNet plugin of version 12, want 10 or 11"},
		{"init", plugin(t, "11"), "init=fail", `init of the CollNet plugin "switch": an internal error (3)`},
		{"devices", plugin(t, "11"), "devices=fail", "devices of the"},
		{"no devices", plugin(t, "10"), "devices=lie", "has no devices (0)"},
		{"properties", plugin(t, "11"), "properties=fail", "getProperties of the"},
		{"no memory of the host", plugin(t, "10"), "properties=lie", "says ptrSupport is 0"},
		{"short calls", plugin(t, "11"), "properties=short", "says maxCollBytes is 1"},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Setenv("COLLNET_SWITCH_FAULT", k.fault)
			_, err := Load(t.Context(), k.path, 1, slog.Default())
			require.ErrorContains(t, err, k.want)
			var failed *Error
			require.True(t, errors.Is(err, hw.ErrNotSupported) != errors.As(err, &failed), err)
		})
	}
}

// TestLog: what a plugin says goes to the logger.
func TestLog(t *testing.T) {
	switchtest.Start(t)
	var lines strings.Builder
	log := slog.New(slog.NewTextHandler(&lines, nil))
	p, err := Load(t.Context(), plugin(t, "11"), 1, log)
	require.NoError(t, err)
	require.Contains(t, lines.String(), "the switch is at 127.0.0.1:")
	require.Contains(t, lines.String(), "plugin=switch")
	t.Setenv("COLLNET_SWITCH_FAULT", "listen=fail")
	_, err = p.Listen(t.Context(), 0)
	require.ErrorContains(t, err, "listen of the CollNet plugin")
	require.Contains(t, lines.String(), "listen fails, as it was told to")
}

// TestSignals: handlers that a plugin installs over Go's are taken away, and the log says so.
func TestSignals(t *testing.T) {
	switchtest.Start(t)
	t.Setenv("COLLNET_SWITCH_FAULT", "init=signals")
	log, lines := testkit.Logs(slog.LevelWarn)
	_, err := Load(t.Context(), plugin(t, "11"), 1, log)
	require.NoError(t, err)
	require.Regexp(t, "signal handlers of a CollNet plugin.* handlers=[1-9]", lines.String())
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	defer signal.Stop(got)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	select {
	case <-got:
	case <-time.After(testkit.Limit):
		t.Fatal("Go's handler does not run")
	}
	require.Panics(t, func() { var p *int; *p = 1 }, "a fault is Go's, too")
}

// TestFaults lets each call fail, on all members or one: that member has a named error, and none hangs.
func TestFaults(t *testing.T) {
	was := grace
	grace = 100 * time.Millisecond
	t.Cleanup(func() { grace = was })
	switchtest.Start(t)
	run := func(ctx context.Context, g *Group, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		m, b, err := memory(ctx, g, 4096)
		if err != nil {
			return errors.Join(err, g.Close(t.Context()))
		}
		b[0] = 1
		for range 3 {
			if err = g.AllReduce(ctx, m, m, len(b), len(b), dtype.Uint8, Max); err != nil {
				break
			}
		}
		again := g.AllReduce(ctx, m, m, len(b), len(b), dtype.Uint8, Max)
		if err != nil && again == nil {
			return fmt.Errorf("a call after %w", err)
		}
		ending, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return errors.Join(err, g.Deregister(ending, m.Handle), g.Close(ending))
	}
	for _, k := range []struct {
		fault, want string
		is          error
		stuck       bool
	}{
		{"connect=fail", "connect of the CollNet plugin", nil, false},
		{"regMr=fail", "regMr of the", nil, false},
		{"iallreduce=fail", "iallreduce of the", nil, false},
		{"iallreduce=fail@3", "iallreduce of the", nil, false},
		{"iallreduce=null", "", context.DeadlineExceeded, false},
		{"test=fail", "test of the", nil, false},
		{"test=never", "", context.DeadlineExceeded, false},
		{"test=short", "says that 4095 of 4096 bytes have come", fault.ErrAborted, false},
		{"deregMr=fail", "deregMr of the", nil, false},
		{"closeColl=fail", "closeColl of the", nil, false},
		{"iallreduce=hang", "does not return, and its thread is given up", context.DeadlineExceeded, true},
		{"test=hang@2", "does not return, and its thread is given up", context.DeadlineExceeded, true},
		{"closeColl=hang", "closeColl of the CollNet plugin \"switch\" does not return", context.DeadlineExceeded, true},
	} {
		t.Run(k.fault, func(t *testing.T) {
			p := load(t, "11")
			t.Setenv("COLLNET_SWITCH_FAULT", k.fault)
			limit := testkit.Limit
			if k.is == context.DeadlineExceeded {
				limit = time.Second
			}
			before, begin := Stuck(), time.Now()
			for _, err := range members(t, p, 2, func(ctx context.Context, g *Group) error { return run(ctx, g, limit) }) {
				if err == nil { // of the member that was not struck
					continue
				}
				require.ErrorContains(t, err, k.want)
				if k.is != nil {
					require.ErrorIs(t, err, k.is)
				}
			}
			require.Less(t, time.Since(begin), testkit.Limit)
			require.Equal(t, k.stuck, Stuck() > before)
		})
	}
}

// TestSwitchDies: a switch that is killed under a call is a named error.
func TestSwitchDies(t *testing.T) {
	sw, stuck := switchtest.Start(t), Stuck()
	p := load(t, "10")
	for _, err := range members(t, p, 2, func(ctx context.Context, g *Group) error {
		m, b, err := memory(ctx, g, 4096)
		if err != nil {
			return err
		}
		for i := 0; err == nil; i++ {
			if i == 100 && g.Rank == 0 {
				sw.Process.Kill()
			}
			err = g.AllReduce(ctx, m, m, len(b), len(b), dtype.Uint8, Max)
		}
		return errors.Join(err, g.Deregister(ctx, m.Handle), g.Close(ctx))
	}) {
		var failed *Error
		require.True(t, errors.As(err, &failed) && failed.Remote(), err)
	}
	require.Equal(t, stuck, Stuck())
}

// TestABI compares the structures with what NCCL's headers have.
func TestABI(t *testing.T) {
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	program := "#include \"abi.h\"\n"
	for expr, v := range map[string]int{"sizeof(cn_props)": 112, "CN_PROPS_V10": 104, "offsetof(cn_props, max_comms)": 48,
		"offsetof(cn_props, pointers)": 24, "offsetof(cn_props, latency)": 44, "offsetof(cn_props, v)": 64, "offsetof(cn_props, max_coll)": 96,
		"sizeof(cn_v10)": 144, "sizeof(cn_v11)": 152, "sizeof(cn_part)": 24, "offsetof(cn_v10, connect)": 40,
		"offsetof(cn_v10, all_reduce)": 80, "offsetof(cn_v10, all_gather)": 88, "offsetof(cn_v10, reduce_scatter)": 96,
		"offsetof(cn_v10, flush)": 104, "offsetof(cn_v10, test)": 112, "offsetof(cn_v10, close)": 120, "offsetof(cn_v11, test)": 112,
		"offsetof(cn_v10, close_listen)": 128, "offsetof(cn_v11, reduce_support)": 48, "offsetof(cn_v11, finalize)": 144} {
		program += fmt.Sprintf("_Static_assert((%s) == %d, %q);\n", expr, v, expr)
	}
	file := filepath.Join(t.TempDir(), "abi.c")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-I", ".", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
