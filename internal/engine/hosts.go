package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/net"
)

// connectTimeout is how long leaders wait for each other's connections, which all make at the same time.
const connectTimeout = 30 * time.Second

// openStage makes this rank's side of what the hosts of communicator id do together. Collective over the leaders.
func (c *Comm) openStage(ctx context.Context, id uint64, on [][]int, mine int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fault.ErrTimeout)
	defer cancel()
	names := make([]string, len(on))
	for h, ranks := range on {
		names[h] = c.Hostname(ranks[0])
	}
	s, err := hosts.Open(ctx, hosts.Config{ID: id, Team: &c.team, Hosts: on, Mine: mine, Names: names, Node: c.dom.Net,
		World: c.inJob, Row: c.dom.row, RunPart: c.runPart})
	if err != nil {
		return err
	}
	c.stage, c.team.Hosts = s, s
	c.dom.stages.add(id, c)
	return nil
}

// inJob is the number that a rank has in the job.
func (c *Comm) inJob(rank int) int {
	if c.world == nil {
		return rank
	}
	return c.world[rank]
}

// runPart runs w among the team as a part of the running operation, on which all ranks have agreed.
func (c *Comm) runPart(ctx context.Context, w *team.Work) error {
	t := &c.team
	whole := t.Work
	c.outer = team.Outer{Kind: whole.Kind, Seq: t.Number()}
	t.Outer, t.Work = &c.outer, *w
	t.Seq++
	t.Parts++
	err := c.agreeOnPart(ctx, &t.Work)
	t.Work.Release()
	*w = t.Work
	t.Outer, t.Work = nil, whole
	if err != nil {
		return c.failed(err)
	}
	return nil
}

func (c *Comm) agreeOnPart(ctx context.Context, w *team.Work) (bad error) {
	t, path := &c.team, w.Path
	if path.Acquire != nil {
		bad = path.Acquire(t, w)
	}
	if path.Offer != nil && bad == nil {
		path.Offer(t, w)
	}
	t.Publish(w, bad)
	if err := t.Agree(ctx, w, bad); err != nil {
		return err
	}
	if path.Run == nil {
		return nil
	}
	return path.Run(ctx, t, w)
}

// stages are a domain's communicators that span hosts, to which what the network tells is for.
type stages struct {
	mu  sync.Mutex
	all map[uint64]*Comm
}

func (s *stages) add(id uint64, c *Comm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*Comm{}
	}
	s.all[id] = c
}

func (s *stages) remove(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

func (s *stages) list() (all []*Comm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		all = append(all, c)
	}
	return all
}

func (s *stages) find(id uint64) *Comm {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// heard takes what another leader tells.
func (d *Domain) heard(from int, m net.Message) {
	if c := d.stages.find(m.Comm); c != nil {
		c.breakBy(func() *fault.Error { return c.stage.Heard(from, m) })
	}
}

// down takes the end of a wire.
func (d *Domain) down(peer int, down *net.Down) {
	for _, c := range d.stages.list() {
		c.breakBy(func() *fault.Error { return c.stage.Down(peer, down) })
	}
}

// tick looks at the teams of this host, for the other hosts.
func (d *Domain) tick() {
	for _, c := range d.stages.list() {
		if c.broken.Load() == nil {
			c.breakBy(c.stage.Watch)
		}
	}
}

// breakBy breaks the communicator if why says so, unless it is closing.
func (c *Comm) breakBy(why func() *fault.Error) {
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return
	}
	if e := why(); e != nil {
		c.FailOpen(e)
	}
}

// closeStage gives up this rank's side of what the hosts do together.
func (c *Comm) closeStage() {
	if c.stage != nil {
		c.dom.stages.remove(c.stage.ID)
		c.stage.Close()
	}
}

// closeNet ends the domain's network.
func (d *Domain) closeNet() error {
	if d.Net == nil {
		return nil
	}
	if err := d.Net.Close(netCloseTimeout); err != nil {
		return errors.Join(errors.New("the network"), err)
	}
	return nil
}

// netCloseTimeout is how long the end of a domain waits until its peers have taken what is on its way.
const netCloseTimeout = 5 * time.Second
