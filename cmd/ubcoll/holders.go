package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
)

// devicesOf is what a process tells the others of its job, which find out which rank has which device.
type devicesOf struct {
	Host  string          `json:"host"`
	Ranks int             `json:"ranks"`
	GPUs  json.RawMessage `json:"gpus"`
}

// holders returns which ranks of the job have each device that this process sees, or why those of its host have none.
// It makes no communicator. Collective over m's job.
func holders(m meeting) (ranks [][]int, err error) {
	threads, mine := env.Threads, 0
	if m.job == nil && !threads.IsSet() { // nobody speaks of ranks
		return nil, nil
	}
	if m.job != nil {
		threads, mine = env.RanksPerProcess, m.job.Rank()
	}
	n, _ := threads.Get()            // a malformed variable is what Open reports,
	id, _, _ := roster.HostOf(m.job) // and so is a host without identity
	visible, _ := gpu.Accelerators.Visible(team.DevicesAuto)
	text, err := json.Marshal(devicesOf{id, max(n, 1), visible})
	if err != nil {
		return nil, err
	}
	all := [][]byte{text}
	if m.job != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if all, err = m.job.AllGather(ctx, text); err != nil {
			return nil, err
		}
	}
	return holdersOf(all, mine)
}

// holdersOf is holders, of what all processes have told. mine is this process.
func holdersOf(all [][]byte, mine int) (ranks [][]int, err error) {
	of := make([]devicesOf, len(all))
	for p, text := range all {
		if err := json.Unmarshal(text, &of[p]); err != nil {
			return nil, fmt.Errorf("what process %d told of its devices: %w", p, err)
		}
	}
	var local []json.RawMessage // by the ranks of this host,
	var names []int             // which have these numbers
	first, rank := 0, 0
	for p := range of {
		if p == mine {
			first = len(local)
		}
		for range of[p].Ranks {
			if of[p].Host == of[mine].Host {
				local, names = append(local, of[p].GPUs), append(names, rank)
			}
			rank++
		}
	}
	return gpu.Holders(local, first, func(r int) int { return names[r] })
}

// ofRanks says which ranks have a device.
func ofRanks(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "; no rank's"
	case 1:
		return fmt.Sprintf("; rank %d's", ranks[0])
	}
	return fmt.Sprintf("; shared by ranks %s", ranges(ranks))
}
