package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// tunedHosts measures all ways of moving data between the hosts of c several times, and fits what they cost. network says
// where. Only rank 0's result is right. At the end it restores the communicator's table. Collective.
func (j *tuneJob) tunedHosts(ctx context.Context, c *ubcoll.Comm, progress io.Writer) (network string, m schedule.Model, err error) {
	t, start := (*inside.Comm)(c).View().Team(), time.Now()
	h := t.Hosts
	l := h.Layout()
	before := *t.Tuning()
	defer t.Tune(before)
	m = *before.Between(l.RDMA)
	cfg := j.host
	cfg.StepFactor, cfg.Loop, cfg.MaxTime = 4, true, 100*time.Millisecond // slow networks
	cfg.MinBytes = 1 << 10
	var points []schedule.Point
	var took [][]float64 // of each point, in nanoseconds
	for round := range j.rounds {
		for _, op := range collectives {
			for _, way := range model.Ways(l, model.Op{Kind: op.kind, Size: 1}) {
				fmt.Fprintf(progress, "tune: round %d of %d: between hosts: %s, %v, %v\n", round+1, j.rounds, op.name, way,
					time.Since(start).Round(time.Second))
				table := before
				table.Between(l.RDMA).Only = way
				t.Tune(table)
				cfg.Op = op.name
				rep, err := measure.Run(ctx, c, cfg, measure.Program{Version: version()}, io.Discard, nil)
				if err != nil {
					return "", m, err
				}
				for _, row := range rep.Results {
					o := model.Op{Kind: op.kind, Count: row.Count, Size: dtype.Float32.Size()}
					terms := model.Terms(l, &m, o, model.Chosen(l, table.Between(l.RDMA), "", o))
					i := slices.IndexFunc(points, func(p schedule.Point) bool { return p.Terms == terms })
					if i < 0 {
						i = len(points)
						points, took = append(points, schedule.Point{Terms: terms}), append(took, nil)
					}
					took[i] = append(took[i], row.Out.Time*1e3)
				}
			}
		}
	}
	for i := range points { // the least would be what a network does with luck alone
		slices.Sort(took[i])
		points[i].Ns = took[i][len(took[i])/2]
	}
	return fmt.Sprintf("%s, %s, %s", plural.Count(h.Size(), "host"), plural.Count(c.Size(), "rank"), link(h.Link().Name)), m.Fit(points), nil
}

// link is a link's name without the interface, whose name may differ between hosts.
func link(name string) string {
	name, _, _ = strings.Cut(name, " ")
	return name
}
