package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/nvml"
	"github.com/ubcoll/ubcoll/internal/doctor"
	"github.com/ubcoll/ubcoll/internal/roster"
)

// nvlink returns what doctor.SharedFabrics says of m's job, the same on all ranks; nothing if that cannot be found out.
// Collective over m's job.
func nvlink(m meeting) []string {
	if m.job == nil {
		return nil
	}
	var mine doctor.OnHost
	mine.ID, mine.Name, _ = roster.HostOf(m.job) // a host without identity is what Open reports
	host, _ := os.Hostname()
	mine.Name = cmp.Or(mine.Name, host, mine.ID)
	if cuda.Have().Err == nil {
		gpus, _ := cuda.Devices() // info and doctor report it
		for _, d := range gpus {
			if f, ok := nvml.FabricOf(d.PCI); ok {
				mine.Fabrics = append(mine.Fabrics, f.String())
			}
		}
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	told, err := m.job.AllGather(ctx, text)
	if err != nil { // so has the gathering of the answers, which reports it
		return nil
	}
	all := make([]doctor.OnHost, len(told))
	for p, text := range told {
		if json.Unmarshal(text, &all[p]) != nil {
			return nil
		}
	}
	return doctor.SharedFabrics(all)
}
