package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// kernel is one way to perform an operation on devices.
type kernel struct {
	name       string // as LastOp names it
	upTo, from string // names of the table's sizes up to which, and from which, it is used; "" = there is none
	least      int    // it is measured from this size on
	most       int    // and up to this size; 0 = any
}

// question asks at which sizes the kernels of an operation cross over. The kernels are in the order in which they take
// over as sizes grow.
type question struct {
	op      string
	kernels []kernel
	fixed   map[string]int // the table has these sizes while the kernels are measured
	after   string         // the name of a size of the table: the question is only about larger ones; "" = none
	until   string         // likewise: the question is only about sizes up to this one
	// bytes converts the size of the larger of a rank's two buffers to what the table counts.
	bytes func(size int) int
}

// questions returns the questions for n ranks. lines says whether their links carry lines.
func questions(n int, lines bool) []question {
	const (
		small = 1 << 20   // rows of packets hold less
		bulk  = 64 << 10  // smaller sizes do not take kernels that wait for a barrier
		most  = 128 << 20 // lines become slower than other kernels long before this
	)
	oneShot, linesUpTo := "one_shot_many", "lines_many"
	switch {
	case n <= 2:
		oneShot, linesUpTo = "one_shot_pair", "lines_pair"
	case n <= 4:
		oneShot = "one_shot_few"
	}
	whole := func(size int) int { return size }
	packets := kernel{name: "two-shot packets", upTo: "two_shot_packets", most: small}
	byLines := kernel{name: "lines", upTo: linesUpTo, most: most}
	pulled := kernel{name: "two-shot", least: bulk}

	reduce := []kernel{{name: "one-shot packets", upTo: oneShot, most: small}}
	if n > 2 || !lines { // with lines, two ranks need one step only
		reduce = append(reduce, packets)
	}
	move := []kernel{{name: "push packets", upTo: "move_packets", most: small}}
	if lines {
		reduce = append(reduce, byLines)
		move = append(move, kernel{name: "push lines", upTo: "move_lines", most: most})
	}
	reduce = append(reduce, pulled, kernel{name: "two-shot, pushed", from: "push_from", least: bulk},
		kernel{name: "two-shot, pushed", from: "push_wide_from", least: bulk})
	if n > 2 {
		reduce = append(reduce, kernel{name: "ring", from: "ring_from", least: bulk})
	}
	all := []question{{op: "all_reduce", kernels: reduce, bytes: whole}}
	scatter := question{op: "reduce_scatter", bytes: whole,
		kernels: []kernel{pulled, {name: "two-shot, pushed", from: "push_scatter_from", least: bulk}}}
	if lines {
		scatter.after = linesUpTo
	}
	all = append(all, scatter)
	if lines && n <= 2 {
		all = append(all, question{op: "reduce_scatter", kernels: []kernel{packets, {name: "lines", most: small}},
			fixed: map[string]int{linesUpTo: never}, until: linesUpTo, bytes: whole})
	}
	all = append(all, question{op: "all_gather", kernels: append(move, kernel{name: "push", least: bulk}),
		bytes: func(size int) int { return size / n }})
	if n > 2 {
		all = append(all, question{op: "broadcast", after: "move_lines",
			kernels: []kernel{{name: "push", upTo: "pass_on_beyond", least: bulk}, {name: "passed on", least: bulk}},
			bytes:   func(size int) int { return size * (n - 2) }})
	}
	return all
}

// forced returns t, changed so that q's i-th kernel is used wherever it can run.
func (q *question) forced(t tuning.GPU, i int) tuning.GPU {
	t.OneShotPair, t.OneShotFew, t.OneShotMany, t.TwoShotPackets = 0, 0, 0, 0
	t.LinesPair, t.LinesMany, t.MoveLines, t.MovePackets, t.PassOnBeyond = 0, 0, 0, 0, 0
	t.PushFrom, t.PushScatterFrom, t.RingFrom, t.NVLSFrom = never, never, never, never
	sizes := t.Sizes()
	for name, n := range q.fixed {
		*sizes[name] = n
	}
	for j, k := range q.kernels {
		if k.upTo != "" && j < i {
			*sizes[k.upTo] = 0
		} else if k.upTo != "" {
			*sizes[k.upTo] = never
		}
		if k.from != "" && j <= i {
			*sizes[k.from] = 0
		} else if k.from != "" {
			*sizes[k.from] = never
		}
	}
	return t
}

// tunedDevices measures the kernels and returns the table's sizes that it found. Only rank 0's are right. Collective.
func (j *tuneJob) tunedDevices(ctx context.Context, c *ubcoll.Comm, progress io.Writer) (map[string]int, error) {
	if c.Size() < 2 {
		return nil, fmt.Errorf("tune: devices want 2 ranks or more: %w", ubcoll.ErrArgument)
	}
	t := (*inside.Comm)(c).View().Team().Tuning().GPU
	lines := t.LinesMany > 0
	if c.Size() == 2 {
		lines = t.LinesPair > 0
	}
	found, all := map[string]int{}, questions(c.Size(), lines)
	if !lines { // then these sizes are not the usual ones, for any number of ranks
		for _, name := range []string{"lines_pair", "lines_many", "move_lines", "one_shot_pair", "two_shot_packets", "move_packets"} {
			found[name] = *t.Sizes()[name]
		}
	}
	best, err := j.asked(ctx, c, all, progress)
	for i := range all {
		all[i].answer(&t, best[i], found)
	}
	return found, err
}

// asked measures the kernels of all questions several times and returns the best time of each. At the end it restores
// the communicator's table. Collective.
func (j *tuneJob) asked(ctx context.Context, c *ubcoll.Comm, all []question, progress io.Writer) ([]times, error) {
	team, start := (*inside.Comm)(c).View().Team(), time.Now()
	table := *team.Tuning()
	defer team.Tune(table)
	best := make([]times, len(all))
	for round := range j.rounds {
		for i := range all {
			q := &all[i]
			for at, k := range q.kernels {
				cfg := j.devices
				cfg.Op, cfg.MinBytes = q.op, max(cfg.MinBytes, k.least)
				if k.most > 0 {
					cfg.MaxBytes = min(cfg.MaxBytes, k.most)
				}
				if cfg.MinBytes > cfg.MaxBytes {
					continue
				}
				fmt.Fprintf(progress, "tune: round %d of %d: devices: %s, %s, %v\n", round+1, j.rounds, q.op, k.name,
					time.Since(start).Round(time.Second))
				forced := table
				forced.GPU = q.forced(table.GPU, at)
				team.Tune(forced)
				rep, err := measure.Run(ctx, c, cfg, measure.Program{Version: version()}, io.Discard, nil)
				if err != nil {
					return best, err
				}
				for _, row := range rep.Results {
					if row.Out.Algorithm == k.name { // otherwise the kernel cannot run this size
						best[i].add(row.Size, at, len(q.kernels), row.Out.Time)
					}
				}
			}
		}
	}
	return best, nil
}

// times has the best time of each kernel, by size. A time that was not measured is infinite.
type times map[int][]float64

func (t *times) add(size, kernel, kernels int, us float64) {
	if *t == nil {
		*t = times{}
	}
	if (*t)[size] == nil {
		(*t)[size] = slices.Repeat([]float64{math.Inf(1)}, kernels)
	}
	(*t)[size][kernel] = min((*t)[size][kernel], us)
}

// answer sets the sizes that q is about, in t and in found, by the times. If a kernel is best up to the largest size
// that was measured, t's size stays, unless it is smaller.
func (q *question) answer(t *tuning.GPU, best times, found map[string]int) {
	known := t.Sizes()
	var sizes []int
	var us [][]float64
	for _, size := range slices.Sorted(maps.Keys(best)) {
		if q.after != "" && size <= *known[q.after] || q.until != "" && size > *known[q.until] {
			continue
		}
		sizes, us = append(sizes, q.bytes(size)), append(us, best[size])
	}
	if len(sizes) == 0 {
		return
	}
	ends := crossovers(us)
	set := func(name string, end, beyond int) {
		n := 1 // not 0, which means for lines that the links carry none
		if end > 0 {
			n = sizes[end-1] + beyond
		}
		if end == len(sizes) {
			n = max(n, *known[name])
		}
		*known[name], found[name] = n, n
	}
	for i, k := range q.kernels {
		if k.upTo != "" {
			set(k.upTo, ends[i], 0)
		}
		if k.from != "" {
			set(k.from, ends[i-1], 1)
		}
	}
}

// crossovers divides the sizes among the algorithms, which take over from each other as sizes grow. us has the time of
// each algorithm for each size, sizes in ascending order. ends[i] is how many sizes the first i+1 algorithms have
// together. crossovers compares each division with taking the fastest algorithm at every size, and chooses the one that
// loses least, in factors. So one bad time changes little, and where two algorithms cross several times, the cheapest
// crossing wins. Among equal divisions, it prefers earlier algorithms.
func crossovers(us [][]float64) (ends []int) {
	ends = make([]int, len(us[0]))
	loss := make([]float64, len(ends)) // the loss so far, if this algorithm has the last size
	before := make([][]int, len(us))   // the algorithm that has the size before, in that case
	for s, all := range us {
		before[s] = make([]int, len(ends))
		next := make([]float64, len(ends))
		for i := range next {
			at := 0
			for j := range i + 1 {
				if loss[j] < loss[at] {
					at = j
				}
			}
			before[s][i], next[i] = at, loss[at]+lost(all[i], slices.Min(all))
		}
		loss = next
	}
	at := slices.Index(loss, slices.Min(loss))
	for s := len(us) - 1; s >= 0; s-- {
		for i := at; i < len(ends) && ends[i] == 0; i++ {
			ends[i] = s + 1
		}
		at = before[s][at]
	}
	return ends
}

// lost returns the logarithm of the factor by which us, a call's time, exceeds the quickest time. It is very large if
// us is infinite: there is no such call.
func lost(us, quickest float64) float64 {
	const none, clock = 1e6, 1e-3
	if math.IsInf(us, 1) {
		return none
	}
	return math.Log(max(us, clock) / max(quickest, clock))
}
