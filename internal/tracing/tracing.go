// Package tracing marks what ranks do, if UBCOLL_TRACE asks for it: with regions in traces of runtime/trace, and with
// labels in profiles of runtime/pprof. It also tells whoever counts a rank's operations (internal/faults) of each, so that
// operations look at one pointer for both. Everything in it is local.
package tracing

import (
	"context"
	"fmt"
	"runtime/pprof"
	"runtime/trace"
	"strconv"

	"github.com/ubcoll/ubcoll/internal/env"
)

// The labels in profiles.
const (
	rankLabel = "rank" // in the job
	commLabel = "comm" // how the communicator was made, and how many ranks it has: "split of 2"
)

// wanted reports whether UBCOLL_TRACE asks for marks. An invalid value counts as no; Open refuses it.
func wanted() bool {
	on, err := env.Trace.Get()
	return err == nil && on == "1"
}

// Label labels this goroutine, and all that it starts, with rank, and returns ctx with the label. It is for a goroutine
// that works for rank until it ends.
func Label(ctx context.Context, rank int) context.Context {
	if !wanted() {
		return ctx
	}
	ctx = pprof.WithLabels(ctx, pprof.Labels(rankLabel, strconv.Itoa(rank)))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// Lend labels this goroutine with rank until back is called, which gives the goroutine ctx's labels again.
func Lend(ctx context.Context, rank int) (back func()) {
	if !wanted() {
		return func() {}
	}
	Label(ctx, rank)
	return func() { pprof.SetGoroutineLabels(ctx) }
}

// Tracer marks one rank's operations on a communicator, and tells of them.
type Tracer struct {
	before func() // called before each operation; or nil
	marks  bool

	who      string
	labels   pprof.LabelSet
	labelled context.Context // has these labels and no others
}

// New returns a Tracer of rank's operations on communicator comm, which calls before, unless that is nil, before each of
// them. Without it, and unless UBCOLL_TRACE asks for marks, New returns nil, and operations are neither marked nor told of.
func New(rank int, comm string, before func()) *Tracer {
	if !wanted() {
		if before == nil {
			return nil
		}
		return &Tracer{before: before}
	}
	t := &Tracer{before: before, marks: true, who: fmt.Sprintf("rank %d, %s", rank, comm), labels: pprof.Labels(rankLabel, strconv.Itoa(rank), commLabel, comm)}
	t.labelled = pprof.WithLabels(context.Background(), t.labels)
	return t
}

// Span is an operation that this goroutine performs.
type Span struct {
	ctx    context.Context
	region *trace.Region
}

// Counts reports whether the Tracer tells somebody of operations.
func (t *Tracer) Counts() bool { return t != nil && t.before != nil }

// Count tells of an operation, which may begin once it returns.
func (t *Tracer) Count() {
	if t != nil && t.before != nil {
		t.before()
	}
}

// Begin tells of op, an operation, as Count does, and marks its beginning, as Mark does.
func (t *Tracer) Begin(ctx context.Context, op string) Span {
	if t == nil {
		return Span{}
	}
	return t.tell(ctx, op)
}

func (t *Tracer) tell(ctx context.Context, op string) Span {
	t.Count()
	return t.begin(ctx, op)
}

// Mark marks the beginning of op, which may be a part of an operation. The same goroutine calls End. A nil Tracer marks
// nothing. Mark allocates only if ctx has labels of the program's own, which it keeps; runtime/trace allocates while a trace
// is taken.
func (t *Tracer) Mark(ctx context.Context, op string) Span {
	if t == nil {
		return Span{}
	}
	return t.begin(ctx, op)
}

func (t *Tracer) begin(ctx context.Context, op string) Span {
	if !t.marks {
		return Span{}
	}
	if ctx == nil { // the operation will refuse it
		ctx = context.Background()
	}
	labelled, others := t.labelled, false
	pprof.ForLabels(ctx, func(key, _ string) bool {
		others = key != rankLabel && key != commLabel
		return !others
	})
	if others {
		labelled = pprof.WithLabels(ctx, t.labels)
	}
	pprof.SetGoroutineLabels(labelled)
	s := Span{ctx, trace.StartRegion(ctx, op)}
	trace.Log(ctx, "ubcoll", t.who)
	return s
}

// End marks the end of the operation and gives the goroutine the labels of the operation's context again.
func (s Span) End() {
	if s.ctx != nil {
		s.region.End()
		pprof.SetGoroutineLabels(s.ctx)
	}
}
