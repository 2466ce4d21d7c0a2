package hosts

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/register"
)

// fabric implements team.Fabric.
type fabric struct {
	s      *Stage
	group  transport.Fabric // nil: this rank does not lead
	window unsafe.Pointer
	step   int
}

// UseFabric has the hosts use a group of a CollNet plugin. window is where this rank finds its memory; group is nil on ranks that do
// not lead. It comes before the communicator's first operation.
func (s *Stage) UseFabric(name string, does team.CollNet, group transport.Fabric, window unsafe.Pointer) {
	s.layout.CollNet, s.link.CollNet = does, name
	s.fabric = &fabric{s: s, group: group, window: window, step: does.Step}
}

// DropFabric undoes UseFabric: some host could not.
func (s *Stage) DropFabric() {
	s.layout.CollNet, s.link.CollNet, s.fabric = team.CollNet{}, "", nil
}

// WithoutFabric notes why the hosts do not use the plugin that was asked for.
func (s *Stage) WithoutFabric(why string) { s.link.NoCollNet = why }

// Fabric implements team.Hosts.
func (s *Stage) Fabric() team.Fabric { return s.fabric }

// Window implements team.Fabric.
func (f *fabric) Window() unsafe.Pointer { return f.window }

// Has implements team.Fabric.
func (f *fabric) Has(c *register.Claim) error {
	h, err := c.Handle(register.COLLNET)
	if err != nil {
		return err
	}
	return f.group.Usable(h)
}

// Begin implements team.Fabric.
func (f *fabric) Begin(ctx context.Context, o *team.Offload) {
	f.group.Begin(context.WithoutCancel(ctx), transport.Offload{Kind: kinds[o.Kind], Type: o.Type, Op: o.Red.Op(),
		Src: memoryOf(o.Src, o.SrcClaim), Dst: memoryOf(o.Dst, o.DstClaim), Block: o.Block, From: o.From, To: o.To, Step: f.step})
}

var kinds = map[team.OpKind]transport.OffloadKind{team.KindAllReduce: transport.OffloadAllReduce,
	team.KindAllGather: transport.OffloadAllGather, team.KindReduceScatter: transport.OffloadReduceScatter}

func memoryOf(p unsafe.Pointer, c *register.Claim) transport.OffloadMemory {
	m := transport.OffloadMemory{At: p}
	if c != nil {
		m.Handle, _ = c.Handle(register.COLLNET) // see Has
	}
	return m
}

const stepCollNet = "collnet"

// Finish implements team.Fabric. A fabric cannot tell whom it waits for. If it fails, the group ends at once, so that it does not
// use the memory any more.
func (f *fabric) Finish(ctx context.Context) error {
	s := f.s
	w := team.WaitState{Ctx: ctx, Peer: s.Team.Rank(), Step: stepCollNet, Behind: true} // deadlines are this function's
	idle := blockAfter
	if s.Team.Crowded {
		idle = blockAfterShort
	}
	start, limit, told := time.Now(), time.Duration(s.Team.Timeout.Load()), false
	limit -= min(limit/8, time.Second) // the team waits for this rank: it must not be the one that is named
	for looks := 0; ; looks++ {
		over, err := f.group.Over()
		if over && err == nil {
			s.Team.EndWait(&w)
			return nil
		}
		if over {
			return f.end(s.Team.Errorf(stepCollNet, -1, err))
		}
		if looks%looksPerPoll != 0 {
			continue
		}
		for _, p := range s.partners() {
			if left := p.left.Load(); left != 0 && left-1 >= s.seq {
				continue // it has its results
			}
			if err := s.lost(p, func() bool { return false }, stepCollNet); err != nil {
				return f.end(nil)
			}
		}
		if e := s.Team.Check(&w); e != nil {
			return f.end(e)
		}
		s.Network.node.Progress()
		waited := time.Since(start)
		if !told && int64(waited) > s.Team.ReportAfter.Load() {
			told = true
			s.Network.Log.Warn("ubcoll: still waiting for a CollNet plugin", "plugin", f.group.Name(), "rank", s.Team.Name(s.Team.Rank()),
				"for", waited.Round(time.Second), "timeout", limit)
		}
		switch {
		case ctx.Err() != nil:
			return f.end(s.Team.Errorf(stepCollNet, -1, reason.Ended(ctx)))
		case waited > limit:
			return f.end(s.Team.Errorf(stepCollNet, -1, fmt.Errorf("the CollNet plugin %q has not done what all hosts have begun within %v: %w",
				f.group.Name(), limit, fault.ErrTimeout)))
		case waited > idle:
			s.Network.node.Wait(shortestBlock)
		}
	}
}

// end breaks the communicator, by e unless that has happened, and then ends the group.
func (f *fabric) end(e *fault.Error) error {
	err := error(f.s.Team.Broken())
	if e != nil {
		err = f.s.fail(e)
	}
	f.close()
	return err
}

func (f *fabric) close() {
	if f == nil || f.group == nil {
		return
	}
	if err := f.group.Close(); err != nil {
		f.s.Network.Log.Warn("ubcoll: a communicator's CollNet group could not be closed", "plugin", f.group.Name(), "error", err)
	}
	f.group = nil
}
