package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Split makes a communicator of the ranks that give the same color, ordered by key and then by rank in c; nil for a
// rank with a negative color. Collective over c. The new communicator shares the domain: memory, registrations and the
// peers' mapped memory. o are its options, the same on all ranks: c's, except in comparing measurements.
func (c *Comm) Split(ctx context.Context, color, key int, o Options) (*Comm, error) {
	return c.split(ctx, team.KindSplit, color, key, o)
}

// Dup makes a communicator of the same ranks. Collective over c.
func (c *Comm) Dup(ctx context.Context) (*Comm, error) {
	return c.split(ctx, team.KindDup, 0, c.rank, c.opts)
}

type member struct{ color, key, rank int }

// split makes the communicator, with several operations in one turn.
func (c *Comm) split(ctx context.Context, kind team.OpKind, color, key int, o Options) (*Comm, error) {
	s := splitting{parent: c, op: kind.String(), me: member{color, key, c.rank}, opts: o}
	return s.run(ctx, s.steps(ctx, kind))
}

// steps are the operations: tell colors and keys; tell where the control areas are; confirm that all ranks have mapped
// all areas of their host; and, with several hosts, confirm that all have connected. Connecting comes last, so that a
// rank that connects does not wait for one that never does.
func (s *splitting) steps(ctx context.Context, kind team.OpKind) []*Gathering {
	all := []*Gathering{
		{Kind: kind, Before: s.choose, Check: s.assign},
		{Kind: kind, Before: func() ([]byte, error) { return s.create(ctx) }, Check: s.place, HostOnly: true},
		{Kind: kind, Before: s.meet, After: s.agreeOnDevices, HostOnly: true}}
	if s.parent.SpansHosts() {
		all = append(all, &Gathering{Kind: kind, Before: func() ([]byte, error) { return nil, s.connect(ctx) }, HostOnly: true})
	}
	return all
}

func (s *splitting) run(ctx context.Context, steps []*Gathering) (*Comm, error) {
	start := time.Now()
	err := s.parent.Gather(ctx, steps...)
	if err == nil && s.child != nil {
		err = s.child.joinGroups(Context(ctx))
	}
	if err != nil && s.child != nil {
		return nil, WithCleanup(err, s.undo(err))
	}
	if s.child != nil {
		s.child.dumps()
		s.child.logOpen(s.op, start)
	}
	return s.child, err
}

// joinGroups makes the groups of devices and of hosts whose hardware does collectives by itself.
func (c *Comm) joinGroups(ctx context.Context) error {
	err := c.joinMulticast(ctx)
	if err == nil {
		err = c.joinFabric(ctx)
	}
	return err
}

// undo gives up what there is of the child, because of err.
func (s *splitting) undo(err error) error {
	s.child.ignoreNetwork()
	s.child.leave(s.reason(err))
	return s.child.abandon()
}

type splitting struct {
	parent      *Comm
	op          string
	me          member
	opts        Options // of the child
	id          uint64
	group, here []member // the child's ranks, and those of them on this host, its team
	child       *Comm
	devices     []DeviceCard // by here
}

// choose returns this rank's color and key.
func (s *splitting) choose() ([]byte, error) {
	return binary.Append(nil, binary.LittleEndian, []int64{int64(s.me.color), int64(s.me.key)})
}

// assign finds this rank's group.
func (s *splitting) assign(all [][]byte) (int, error) {
	for r, b := range all {
		var w [2]int64
		if _, err := binary.Decode(b, binary.LittleEndian, &w); err != nil {
			return r, fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		if m := (member{int(w[0]), int(w[1]), r}); m.color == s.me.color && m.color >= 0 {
			s.group = append(s.group, m)
		}
	}
	slices.SortFunc(s.group, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank))
	})
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(
		binary.LittleEndian.AppendUint64(nil, s.parent.team.ID()), s.parent.team.Number()), uint64(s.me.color)))
	s.id = binary.LittleEndian.Uint64(sum[:])
	return -1, nil
}

// create makes this rank's side and returns its record, which says where the control area is.
func (s *splitting) create(ctx context.Context) ([]byte, error) {
	if len(s.group) == 0 {
		return nil, nil
	}
	p := s.parent
	c := &Comm{rank: slices.Index(s.group, s.me), size: len(s.group), opts: s.opts, dom: p.dom, providers: p.providers,
		world: make([]int32, len(s.group))}
	in, ranks := team.Ranks{Rank: c.rank, Size: c.size}, []int(nil) // the child's team, and its ranks in the parent's
	for r, m := range s.group {
		if local := p.team.Index(m.rank); local >= 0 {
			in.Local, ranks, s.here = append(in.Local, r), append(ranks, local), append(s.here, m)
		}
		c.world[r] = int32(p.InJob(m.rank))
	}
	c.team.Part(c, in, &p.team, ranks, s.opts.Algorithm)
	c.attach()
	if err := c.newArea(s.id); err != nil {
		return nil, err
	}
	p.dom.hold()
	s.child = c
	if c.gpuWhy = p.gpuWhy; p.device != nil {
		c.device = p.device.Part(c, ranks)
	}
	k := c.deviceCard(ctx)
	if err := c.opts.lacks(p.rank, k.Why); err != nil {
		return nil, err
	}
	k.Why = k.Why[:min(len(k.Why), team.TextBytes)]
	record, err := binary.Append(nil, binary.LittleEndian, c.team.Area.At)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(k)
	return append(record, b...), err
}

// place reads the locations of the areas of the child's team.
func (s *splitting) place(all [][]byte) (int, error) {
	if s.child == nil {
		return -1, nil
	}
	for i, m := range s.here {
		var at mem.Location
		var k DeviceCard
		n, err := binary.Decode(all[m.rank], binary.LittleEndian, &at)
		if err == nil {
			err = json.Unmarshal(all[m.rank][n:], &k)
		}
		if err != nil {
			return m.rank, fmt.Errorf("record of rank %d: %w: %w", m.rank, err, fault.ErrMismatch)
		}
		s.child.team.Peers[i].At = at
		s.devices = append(s.devices, k)
	}
	return -1, nil
}

// meet maps the areas of the others.
func (s *splitting) meet() ([]byte, error) {
	if s.child == nil {
		return nil, nil
	}
	for i := range s.here {
		if i == s.child.team.Rank() {
			continue
		}
		if err := s.child.meet(s.id, i, s.child.team.Peers[i].At); err != nil {
			return nil, reason.About(s.here[i].rank, err)
		}
	}
	ctx, cancel := clock.WithTimeout(context.Background(), s.child.opts.Timeout, nil)
	defer cancel()
	why := s.child.meetDevices(ctx, s.devices)
	return []byte(why[:min(len(why), team.TextBytes)]), s.child.opts.lacks(s.parent.rank, why)
}

// connect connects the child's hosts, until ctx ends or the parent breaks.
func (s *splitting) connect(ctx context.Context) error {
	if s.child == nil || !s.child.SpansHosts() {
		return nil
	}
	ctx, stop := s.parent.whileHealthy(ctx)
	defer stop()
	return s.open(ctx)
}

// open connects the child's hosts, until ctx ends.
func (s *splitting) open(ctx context.Context) error {
	var on [][]int
	number := map[int]int{} // maps the parent's hosts to the child's
	for r, m := range s.group {
		h := s.parent.stage.Of(m.rank)
		i, ok := number[h]
		if !ok {
			i = len(on)
			number[h], on = i, append(on, nil)
		}
		on[i] = append(on[i], r)
	}
	err := s.child.openStage(ctx, s.id, on, number[s.parent.stage.Host()])
	if e, ok := errors.AsType[*fault.Error](err); ok { // why the parent broke
		if e.Peer >= 0 {
			return reason.About(e.Peer, e.Err)
		}
		return e
	}
	if r := reason.Blamed(err, -1); r >= 0 {
		err = reason.About(s.group[r].rank, err)
	}
	return err
}

// agreeOnDevices learns whether the ranks of this host use their devices.
func (s *splitting) agreeOnDevices(all [][]byte) {
	if s.child == nil {
		return
	}
	var whys []string
	for _, m := range s.here {
		whys = append(whys, string(all[m.rank]))
	}
	s.child.agreeOnDevice(whys) // an error could only come from dropping an unused device
}

// leave publishes in this rank's area that it takes no part in the communicator, and why. Peers may have come further
// in making it than this rank, and would otherwise wait.
func (c *Comm) leave(e *fault.Error) {
	if c.team.Me == nil {
		return
	}
	c.team.PublishLost(e)
	c.team.Leave()
}

// reason is why this rank could not finish the split; its Peer is a rank of the new communicator.
func (s *splitting) reason(err error) *fault.Error {
	r := &fault.Error{Op: s.op, Rank: s.child.rank, Peer: -1, Host: s.child.Hostname(s.child.rank),
		Err: err}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		r.Peer = slices.IndexFunc(s.group, func(m member) bool { return m.rank == e.Peer })
	}
	return r
}

// ignoreNetwork is for a communicator that could not be made: frames of other hosts that still arrive for it are dropped.
func (c *Comm) ignoreNetwork() {
	c.ending.Lock()
	c.closing.Store(true)
	c.ending.Unlock()
	c.stage.Close()
	c.leaveMembership()
	c.Polls.Drain()
}

// abandon frees what there is of a communicator that could not be made. Its area is freed once the others have closed
// theirs, because peers that came further read what leave has published.
func (c *Comm) abandon() error {
	errs := []error{c.dropDevice()}
	for _, a := range c.attached {
		errs = append(errs, a.Close())
	}
	var lift func()
	if l := c.lift.Load(); l != nil {
		lift = *l
	}
	return errors.Join(append(errs, c.dom.drop(append(c.shared, c.team.Area), c.team.Readers(), lift))...)
}
