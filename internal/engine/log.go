package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/tracing"
)

// logOpen logs, at level Info, what a communicator that Open, Split or Dup has made found here.
func (c *Comm) logOpen(by string, start time.Time) {
	log := c.Log()
	c.debug = log.Enabled(context.Background(), slog.LevelDebug)
	c.Tracer = tracing.New(c.dom.rank, fmt.Sprintf("%s of %d", by, c.size), c.dom.beforeOperations())
	if !log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	device := "host memory"
	if d, err := c.GPU(); err == nil {
		device = d.String()
	} else {
		device += ": " + err.Error()
	}
	args := []any{"by", by, "rank", c.rank, "size", c.size, "host", c.Hostname(c.rank),
		"pid", os.Getpid(), "device", device, "register", c.opts.Register, "pin", c.opts.Pin, "algorithm", c.opts.Algorithm,
		"timeout", c.opts.Timeout, "tuning", c.team.Tuning().Machine, "instructions", cpu.Level(), "groups", c.team.Groups(),
		"more_ranks_than_processors", c.team.Crowded, "took", time.Since(start).Round(time.Microsecond)}
	if c.stage != nil {
		costs := "measured"
		if c.team.Tuning().Assumed(c.stage.Layout().RDMA) {
			costs = "default"
		}
		args = append(args, "costs_between_hosts", costs, "memory", hosts.MemoryText(c.stage.Size(), c.size))
	}
	log.Info("ubcoll: communicator opened", args...)
}

// logSharing logs, at level Info, on the first of the ranks that share a device, that they do.
func (c *Comm) logSharing() {
	d := c.dom.device
	if c.gpuWhy != nil || len(d.Ranks()) < 2 || d.Ranks()[0] != c.rank {
		return
	}
	c.Log().Info("ubcoll: ranks share a device", "device", d.Device(), "ranks", d.Ranks())
	if d.Turns() {
		c.Log().Info("ubcoll: processes take turns on a device, milliseconds for each step of an operation, since NVIDIA's MPS does "+
			"not run", "device", d.Device())
	}
}

// logClose logs, at level Info, what a closing communicator has done.
func (c *Comm) logClose() {
	log := c.Log()
	if !log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	s := c.Stats()
	log.Info("ubcoll: communicator closed", "rank", c.rank, "size", c.size, "operations", s.Operations, "bytes", s.Bytes,
		"staged", s.Staged, "registered", s.Cache.Regions, "cache_hits", s.Cache.Hits, "cache_misses", s.Cache.Misses)
}

// logBroken logs, at level Info, why a communicator broke; the call that found it returns that too.
func (c *Comm) logBroken(e *fault.Error) {
	c.Log().Info("ubcoll: communicator broken", "rank", c.rank, "size", c.size, "error", e)
}

// logOperation logs, at level Debug, how the last operation went.
func (c *Comm) logOperation() {
	c.infoM.Lock()
	o := c.last
	c.infoM.Unlock()
	c.Log().Debug("ubcoll: operation", "rank", c.rank, "went", o.Text(o.Op()))
}
