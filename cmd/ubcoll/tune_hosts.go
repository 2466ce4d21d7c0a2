package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// tunedHosts measures all ways of moving data between the hosts of c several times, and fits what they cost. network says
// where. Only rank 0's result is right. At the end it restores the communicator's table. Collective.
func (j *tuneJob) tunedHosts(ctx context.Context, c *ubcoll.Comm, progress io.Writer) (network string, m schedule.Model, err error) {
	team, start := (*inside.Comm)(c).View().Team(), time.Now()
	h := team.Hosts
	before := *team.Tuning()
	defer team.Tune(before)
	m = before.Hosts.Model
	cfg := j.host
	cfg.StepFactor = 4
	cfg.MinBytes = 1 << 10
	for cfg.MinBytes <= h.Contribution() { // what travels with the agreement
		cfg.MinBytes *= 2
	}
	if cfg.MinBytes > cfg.MaxBytes {
		return "", m, fmt.Errorf("tune: -e %d: between these hosts up to %d bytes travel with the agreement, and only more is measured: want %d "+
			"or more: %w", cfg.MaxBytes, h.Contribution(), cfg.MinBytes, ubcoll.ErrArgument)
	}
	var points []schedule.Point
	at := map[schedule.Point]int{} // points by what was measured
	for round := range j.rounds {
		for _, op := range []struct {
			name string
			ways []schedule.Way
		}{{"all_reduce", schedule.Reducing}, {"broadcast", schedule.Sending}} {
			for _, way := range op.ways {
				fmt.Fprintf(progress, "tune: round %d of %d: between hosts: %s, %v, %v\n", round+1, j.rounds, op.name, way,
					time.Since(start).Round(time.Second))
				table := before
				table.Hosts.Only = way
				team.Tune(table)
				cfg.Op = op.name
				rep, err := measure.Run(ctx, c, cfg, measure.Program{Version: version()}, io.Discard, nil)
				if err != nil {
					return "", m, err
				}
				for _, row := range rep.Results {
					if !strings.HasPrefix(row.Out.Algorithm, way.String()+" ") {
						continue // small enough to travel with the agreement
					}
					p := schedule.Point{Way: way, Hosts: h.Size(), Bytes: row.Size / h.Lanes(), Broadcast: op.name == "broadcast"}
					i, is := at[p]
					if !is {
						i = len(points)
						at[p] = i
						points = append(points, p)
						points[i].Ns = math.Inf(1)
					}
					points[i].Ns = min(points[i].Ns, row.Out.Time*1e3)
				}
			}
		}
	}
	return fmt.Sprintf("%s, %s, %s", plural.Count(h.Size(), "host"), plural.Count(c.Size(), "rank"), link(h.Link().Name)), m.Fit(points), nil
}

// link is a link's name without the interface, whose name may differ between hosts.
func link(name string) string {
	name, _, _ = strings.Cut(name, " ")
	return name
}
