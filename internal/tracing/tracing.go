// Package tracing marks what ranks do, where UBCOLL_TRACE asks for it: by regions in traces of runtime/trace, and by
// labels in profiles of runtime/pprof. All of it is local.
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

// wanted reports whether UBCOLL_TRACE asks for marks. Open refuses a value that is neither.
func wanted() bool {
	on, err := env.Trace.Get()
	return err == nil && on == "1"
}

// Label labels this goroutine, and those that it starts, as rank's, and returns ctx with the label: for a goroutine that
// is rank's until it ends.
func Label(ctx context.Context, rank int) context.Context {
	if !wanted() {
		return ctx
	}
	ctx = pprof.WithLabels(ctx, pprof.Labels(rankLabel, strconv.Itoa(rank)))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// Lend is Label until the function that it returns is called: then the goroutine has ctx's labels again.
func Lend(ctx context.Context, rank int) (back func()) {
	if !wanted() {
		return func() {}
	}
	Label(ctx, rank)
	return func() { pprof.SetGoroutineLabels(ctx) }
}

// Tracer marks one rank's operations on a communicator.
type Tracer struct {
	who      string
	labels   pprof.LabelSet
	labelled context.Context // has these alone
}

// New makes the Tracer of a communicator, comm, or returns nil where nobody asks for one: then operations are not marked.
func New(rank int, comm string) *Tracer {
	if !wanted() {
		return nil
	}
	t := &Tracer{who: fmt.Sprintf("rank %d, %s", rank, comm), labels: pprof.Labels(rankLabel, strconv.Itoa(rank), commLabel, comm)}
	t.labelled = pprof.WithLabels(context.Background(), t.labels)
	return t
}

// Span is an operation that this goroutine performs.
type Span struct {
	ctx    context.Context
	region *trace.Region
}

// Begin begins op, which the same goroutine ends; a nil Tracer marks nothing. Beside what runtime/trace allocates while a
// trace is taken, it allocates only if ctx has labels of the program's own, which stay.
func (t *Tracer) Begin(ctx context.Context, op string) Span {
	if t == nil {
		return Span{}
	}
	return t.begin(ctx, op)
}

func (t *Tracer) begin(ctx context.Context, op string) Span {
	if ctx == nil { // which the operation refuses
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

// End ends the operation. The goroutine has the labels of the operation's context again.
func (s Span) End() {
	if s.ctx != nil {
		s.region.End()
		pprof.SetGoroutineLabels(s.ctx)
	}
}
