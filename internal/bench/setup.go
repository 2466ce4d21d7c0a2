package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// ownStream makes a stream that this package can capture itself, because graph.Capture does not record channels.
func (r *runner) ownStream() (end func() error, err error) {
	c, err := cuda.Primary(r.dev)
	if err != nil {
		return nil, err
	}
	if r.cu, err = c.NewStream(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if r.stream, err = ubcoll.StreamFrom(r.dev, r.cu.Handle()); err != nil {
		return nil, errors.Join(err, r.cu.Close(), c.Close())
	}
	return func() error { return errors.Join(r.stream.Close(), r.cu.Close(), c.Close()) }, nil
}

// place decides where the buffers are and how calls are timed, on all ranks alike. Collective.
func (r *runner) place(ctx context.Context) error {
	can, not := r.variants(true)
	none := len(can) == 0 && len(not) > 0
	if none && r.cfg.Device == CUDA {
		return fmt.Errorf("%s %s on devices of several hosts: %w", r.op.name, strings.Join(not, ", "), fault.ErrNotSupported)
	}
	dev, err := Place(ctx, r.c, r.cfg.Device, r.op.device && !none)
	if err != nil {
		return err
	}
	r.dev, r.cfg.Device = dev, Host
	if !dev.IsHost() {
		r.cfg.Device = CUDA
	}
	r.rep.Config.Device = r.cfg.Device
	if r.cfg.Loop || r.cfg.queued() {
		r.rep.Config.Protocol = "loop"
	}
	return r.cfg.Validate()
}

// Place returns the device for this rank's buffers. device is Host, CUDA or Auto, as in a Config. can says whether the
// operation can run on a device. Auto takes the host unless it can, and all ranks have a GPU. If a rank has no GPU, CUDA
// fails on all ranks, and Auto takes the host on all. Collective.
func Place(ctx context.Context, c *ubcoll.Comm, device string, can bool) (ubcoll.Device, error) {
	if device == Host || device == Auto && !can {
		return ubcoll.Host, nil
	}
	dev, err := c.GPU()
	without := make([]int32, c.Size())
	if err != nil {
		without[c.Rank()] = 1
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(without), ubcoll.Of(without), ubcoll.Sum); err != nil {
		return ubcoll.Host, err
	}
	switch first := slices.Index(without, 1); {
	case first < 0:
		return dev, nil
	case device == Auto:
		return ubcoll.Host, nil
	case err == nil:
		err = fmt.Errorf("rank %d has no GPU: %w", first, fault.ErrNotSupported)
	}
	return ubcoll.Host, err
}

// ranks puts a description of every rank into the report. Collective.
func (r *runner) ranks(ctx context.Context) error {
	mine := RankInfo{Rank: r.c.Rank(), PID: os.Getpid(), Hostname: r.c.Hostname(r.c.Rank()), Local: r.c.LocalRank(),
		Device: r.dev.String(), Index: r.c.LocalRank(), Name: "host memory, " + cpu.Level(), PCI: "0000:00:00.0"}
	if !r.dev.IsHost() {
		i, err := cuda.Describe(r.dev)
		if err != nil {
			return err
		}
		mine.Index, mine.Name, mine.PCI = r.dev.Index(), i.Name, i.PCI
		r.rep.Device = &DeviceBytes{Open: r.c.Stats().Memory.OwnBytes}
	}
	var err error
	r.rep.Ranks, err = Gather(ctx, r.c, mine)
	return err
}

// Gather returns what each rank passed, in the order of ranks, which may be on any number of hosts. As JSON, mine may
// have 1 KiB. Collective.
func Gather[T any](ctx context.Context, c *ubcoll.Comm, mine T) ([]T, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	const room = 1 << 10
	if len(b) > room {
		return nil, fmt.Errorf("%d bytes to say who rank %d is: %w", len(b), c.Rank(), ubcoll.ErrLimit)
	}
	text := make([]byte, room*c.Size()) // other ranks' parts stay 0, so the sum is all ranks' text
	copy(text[room*c.Rank():], b)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(text), ubcoll.Of(text), ubcoll.Sum); err != nil {
		return nil, err
	}
	all := make([]T, c.Size())
	for i := range all {
		if err := json.Unmarshal(bytes.TrimRight(text[i*room:][:room], "\x00"), &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (r *runner) buffers(ctx context.Context) (err error) {
	if r.a, err = newMemory(r.c, r.dev, r.cfg.Buffers, r.cfg.MaxBytes); err != nil {
		return err
	}
	if r.b, err = newMemory(r.c, r.dev, r.cfg.Buffers, r.cfg.MaxBytes); err != nil {
		return errors.Join(err, r.a.close())
	}
	if r.cfg.Checks == 0 && !r.dev.IsHost() {
		if err := errors.Join(r.a.fill(ctx), r.b.fill(ctx)); err != nil {
			return errors.Join(err, r.a.close(), r.b.close())
		}
	}
	var s Setup
	if r.cfg.Buffers == Registered && !r.dev.IsHost() {
		if s, err = r.firstUse(ctx); err != nil {
			return errors.Join(err, r.a.close(), r.b.close())
		}
	}
	cost := []float64{float64(r.a.allocated) / 1e3, float64(r.a.registered) / 1e3, s.FirstUse}
	if err := combine(ctx, r.c, cost, Max); err != nil {
		return errors.Join(err, r.a.close(), r.b.close())
	}
	if r.cfg.Buffers == Registered {
		r.rep.Setup = &Setup{r.cfg.MaxBytes, cost[0], cost[1], cost[2], s.Opened, 0}
	}
	return nil
}

// firstUse makes a call on both buffers after all peers have mapped them. Peers map buffers in the background, and
// calls are staged until then; but a capture waits until the buffers are mapped. Collective.
func (r *runner) firstUse(ctx context.Context) (s Setup, err error) {
	if err := coll.Barrier(ctx, r.c); err != nil { // ranks register at their own pace
		return s, err
	}
	start := time.Since(epoch)
	g, err := graph.Capture(ctx, r.c.On(r.stream), func(c *ubcoll.Comm) error {
		return coll.AllReduce(ctx, c, r.b.vec, r.a.vec, ubcoll.Max)
	})
	if err != nil {
		return s, err
	}
	if err := errors.Join(g.Launch(ctx), r.stream.Sync(ctx)); err != nil {
		return s, err
	}
	s.FirstUse = float64(time.Since(epoch)-start) / 1e3
	all, err := r.opened(ctx)
	s.Opened = all - r.mapped
	return s, errors.Join(err, g.Close())
}

// opened returns how often all ranks together have mapped memory of each other's devices. Collective.
func (r *runner) opened(ctx context.Context) (int, error) {
	n := []uint64{r.c.Stats().Opened}
	err := coll.AllReduce(ctx, r.c, ubcoll.Of(n), ubcoll.Of(n), ubcoll.Sum)
	return int(n[0]), err
}
