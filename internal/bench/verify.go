package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/plural"
)

// Verification says what to verify. All ranks pass the same one.
type Verification struct {
	Device   string // Auto, Host, CUDA
	MinBytes int    // of the larger buffer of a call, from 1
	MaxBytes int
	Types    []dtype.Type // nil = all
	Ops      []string     // of Verifiable; none = all that run on the device
	Seed     uint64       // of the data, and of all random choices
}

// Validate reports everything that is wrong with v in a job of any size.
func (v *Verification) Validate() error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, ubcoll.ErrArgument)...))
		}
	}
	bad(!slices.Contains(devices, v.Device), "%s", nearest.Unknown("device", v.Device, devices))
	bad(v.MinBytes < 1 || v.MaxBytes < v.MinBytes, "sizes from %d to %d bytes (-b, -e): want 1 at least, and the larger one last",
		v.MinBytes, v.MaxBytes)
	for _, t := range v.Types {
		bad(t.Size() > v.MinBytes, "%d bytes (-b) have no %v (-d), which takes %d", v.MinBytes, t, t.Size())
	}
	for _, name := range v.Ops {
		bad(!slices.Contains(Verifiable(), name), "%q cannot be verified (one of %s)%s", name, strings.Join(Verifiable(), ", "),
			nearest.Hint(name, Verifiable()))
	}
	return errors.Join(errs...)
}

// sizes returns the smallest size, the largest, and all of verified between them, in ascending order.
func (v *Verification) sizes() []int {
	all := []int{v.MinBytes, v.MaxBytes}
	for _, n := range verified {
		if n > v.MinBytes && n < v.MaxBytes {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// types returns the element types to verify.
func (v *Verification) types() []dtype.Type {
	if v.Types == nil {
		return dtype.All()
	}
	return v.Types
}

// mostPrinted is the largest number of calls with wrong elements that are printed. The last line has the number of all.
const mostPrinted = 20

// Verify runs every operation with every element type and every reduction, in and out of place, with numbers of
// elements that divide unevenly. It checks every element of every result, that the bytes after the result are
// untouched, and that sources are unchanged. The seed determines the root, which buffers are registered (sometimes
// different ones on different ranks), and whether a call blocks, is queued, or is replayed from a graph. Collective:
// all ranks of c call it with the same v, in a job whose Options.Register is Explicit. Rank 0 writes to out what is
// wrong, and a last line with totals. The error wraps ErrFailed if any element is wrong.
func Verify(ctx context.Context, c *ubcoll.Comm, v Verification, out io.Writer) (err error) {
	if err := v.Validate(); err != nil {
		return err
	}
	if c.Rank() != 0 {
		out = io.Discard
	}
	dev, err := Place(ctx, c, v.Device, true)
	if err != nil {
		return err
	}
	r := &verifier{c: c, v: &v, out: out, start: time.Now(), dice: rand.New(rand.NewPCG(v.Seed, 0)),
		paths: map[string]int{}}
	for i := range operations {
		o := &operations[i]
		asked := slices.Contains(v.Ops, o.name) || len(v.Ops) == 0 && (o.device || dev.IsHost())
		if asked && slices.Contains(Verifiable(), o.name) {
			r.ops = append(r.ops, o)
		}
	}
	if err := CheckMemory(ctx, c, fmt.Sprintf("buffers of %d bytes (-e)", v.MaxBytes), product(len(r.mem), v.MaxBytes)); err != nil {
		return err
	}
	if r.stream, err = ubcoll.NewStream(dev); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stream.Close()) }()
	for i := range r.mem {
		if r.mem[i], err = newMemory(c, dev, i/2, v.MaxBytes+4096); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.mem[i].close()) }()
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(r.paths)) {
		fmt.Fprintf(out, "# %11s: %s\n", plural.Count(r.paths[path], "call"), path)
	}
	on := kindOf(dev)
	if nvls() {
		on += ", NVLS on"
	}
	_, err = fmt.Fprintf(out, "verify: %s on %s: %s of %s on %s, %d to %d bytes, seed "+
		"%d, %.1f s: %s with wrong elements: %s\n", plural.Count(c.Size(), "rank"), on, plural.Count(r.calls, "call"),
		plural.Count(len(r.ops), "operation"), plural.Count(len(v.types()), "type"), v.MinBytes, v.MaxBytes, v.Seed,
		time.Since(r.start).Seconds(), plural.Count(r.failed, "call"), verdict(r.failed == 0))
	if r.failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d calls had wrong elements: %w", r.failed, r.calls, ErrFailed))
	}
	return err
}

func kindOf(d ubcoll.Device) string {
	if d.IsHost() {
		return "host memory"
	}
	return "CUDA devices"
}

type verifier struct {
	c      *ubcoll.Comm
	v      *Verification
	out    io.Writer
	ops    []*operation
	stream *ubcoll.Stream
	mem    [4]*memory // two that are not registered, two that are
	start  time.Time
	dice   *rand.Rand // draws the same numbers on all ranks

	calls, failed int
	paths         map[string]int // how many calls took each path, as rank 0 saw it
}

// verified are the sizes to verify, in bytes. They lead to a single packet, to the algorithms for small, middle and
// large sizes, and to several rounds of staging. From the second size on, calls have a few elements more, so that the
// number divides unevenly. Sizes that the user gives are used as they are.
var verified = []int{8, 256, 10 << 10, 300 << 10, 2 << 20, 5 << 20, longest}

// longest is the size from which on calls take long. Only sums are verified there, and, unless the user names types,
// only one type of each element size.
const longest = 40 << 20

func (v *verifier) wants(bytes int, t dtype.Type, red ubcoll.Op) bool {
	few := []dtype.Type{dtype.Int8, dtype.BFloat16, dtype.Float32, dtype.Float64}
	return bytes >= t.Size() && (bytes < longest || red == ubcoll.Sum && (v.v.Types != nil || slices.Contains(few, t)))
}

func (v *verifier) run(ctx context.Context) error {
	for _, o := range v.ops {
		fmt.Fprintf(v.out, "# %s, after %s and %.1f s\n", o.name, plural.Count(v.calls, "call"), time.Since(v.start).Seconds())
		reductions := []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg}
		if !o.reduces {
			reductions = reductions[:1]
		}
		for _, t := range v.v.types() {
			for _, red := range reductions {
				if !o.takes(t, red) {
					continue
				}
				for _, bytes := range v.v.sizes() {
					if !v.wants(bytes, t, red) {
						continue
					}
					count := bytes / t.Size()
					if bytes > 8 && slices.Contains(verified, bytes) {
						count += []int{1, 3, 7, 13}[v.dice.IntN(4)]
					}
					for _, inPlace := range []bool{false, true} {
						if inPlace && o.outOfPlace {
							continue
						}
						if err := v.call(ctx, o, t, red, count, inPlace); err != nil {
							return err
						}
					}
				}
			}
		}
	}
	return nil
}

// call makes and checks one call.
func (v *verifier) call(ctx context.Context, o *operation, t dtype.Type, red ubcoll.Op, count int, inPlace bool) error {
	v.calls++
	root, how, kinds, differ := v.dice.IntN(v.c.Size()), v.dice.IntN(3), v.dice.IntN(4), v.dice.IntN(5) == 0
	if !o.rooted {
		root = -1
	}
	if differ {
		kinds += v.c.Rank()
	}
	a, b := v.mem[kinds%2*2], v.mem[kinds/2%2*2+1]
	cfg := &Config{Aggregate: 1}
	s := o.shape(placeOf(v.c, root), count)
	k := newTask(v.c, cfg, o, s, t, red, max(root, 0), a, b, inPlace)
	if how > 0 && (o.trips == 0 || a.onDevice()) {
		k.stream = v.stream
		k.capture = how == 2 && (a.onDevice() || !differ && kinds == 3) // graphs take no Go slices
	}
	what := func() string {
		return fmt.Sprintf("%s of %d %v, %v, root %d, in place %v, queued %v, graph %v, registered %v and "+
			"%v", o.name, count, t, red, root, inPlace, k.stream != nil, k.capture, a.reg != nil, b.reg != nil)
	}
	n, err := k.check(ctx, v.v.Seed<<32+uint64(v.calls))
	if err != nil {
		return fmt.Errorf("%s: %w", what(), err)
	}
	op := v.c.LastOp()
	v.paths[path(op)]++
	wrong := make([]uint64, v.c.Size())
	wrong[v.c.Rank()] = uint64(n)
	if err := coll.AllReduce(ctx, v.c, ubcoll.Of(wrong), ubcoll.Of(wrong), ubcoll.Sum); err != nil {
		return err
	}
	if !slices.ContainsFunc(wrong, func(n uint64) bool { return n > 0 }) {
		return nil
	}
	if v.failed++; v.failed <= mostPrinted {
		_, err = fmt.Fprintf(v.out, "verify: %s: wrong elements of ranks 0 to %d: %s (%s)\n", what(), v.c.Size()-1,
			strings.Trim(fmt.Sprint(wrong), "[]"), op.String())
	}
	return err
}

// path describes how a call ran: "two-shot, source direct, destination staged".
func path(op ubcoll.OpInfo) string {
	s := strings.TrimSpace(op.Algorithm)
	for _, b := range []struct {
		name string
		info ubcoll.BufferInfo
	}{{"source", op.Src}, {"destination", op.Dst}} {
		switch {
		case b.info.Direct:
			s += ", " + b.name + " direct"
		case b.info.Used:
			s += ", " + b.name + " staged"
		}
	}
	return s
}
