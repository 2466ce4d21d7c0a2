package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/logs"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tracing"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

const defaultTimeout = 10 * time.Minute

// card tells where a rank's memory is.
type card struct {
	IPC    json.RawMessage `json:"ipc"`
	Domain uint64          `json:"domain"`
	Area   mem.Location    `json:"area"`
	Device DeviceCard      `json:"device"`
	Rows   mem.Location    `json:"rows,omitzero"` // set by a host's first rank if there are several hosts: see roster.Lay
}

// Providers are constructors from packages above this one.
type Providers struct {
	IPC          NewIPC
	Network      NewNode
	Interfaces   Interfaces
	Accelerators Accelerators
	Attachments  []NewAttachment
}

// Open makes a communicator of all ranks of b. Collective. bad says what is wrong with o; all ranks return it.
func Open(ctx context.Context, b bootstrap.Bootstrap, o Options, bad error, providers Providers) (*Comm, error) {
	rank, start := b.Rank(), time.Now()
	log := logs.Or(o.Logger)
	logs.WarnUnknown(log)
	defer tracing.Lend(ctx, rank)() // goroutines that start here are this rank's
	name, _ := os.Hostname()
	fail := func(step string, about int, err error) *fault.Error {
		return &fault.Error{Op: "open", Rank: rank, Peer: about, Host: name, Step: step, Err: err}
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = clock.WithTimeout(ctx, o.Timeout, fmt.Errorf("not all ranks were there within %v "+
			"(Options.Timeout, %s): %w", o.Timeout, env.Timeout.Name, fault.ErrTimeout))
		defer cancel()
	}
	table, agreed, terr := tuning.Load()
	gpus, why := providers.Accelerators.Visible(o.Devices)
	agree, err := o.settings(agreed)
	r, err := roster.Gather(ctx, b, agree, gpus, errors.Join(bad, terr, err, badFaults(b), o.lacks(rank, why)))
	if err != nil {
		return nil, fail("hello", reason.Blamed(err, -1), err)
	}
	j := joining{r: r, log: log, opts: o, providers: providers, tuning: table}
	again := true
	for again && err == nil {
		again, err = j.join(ctx)
	}
	if err == nil && len(r.Hosts) > 1 {
		err = j.c.several(ctx, r)
	}
	if err == nil {
		err = j.c.joinGroups(ctx)
	}
	if err != nil {
		name = r.Hostnames()[rank]
		e := fail("attach", reason.Blamed(err, -1), r.Explain(err))
		j.c.discard(e)
		return nil, e
	}
	r.Done()
	j.c.dom.survivor, _ = b.(bootstrap.Survivor)
	j.c.dumps()
	j.c.dom.armFaults()
	j.c.logOpen("open", start)
	j.c.logSharing()
	return j.c, nil
}

// settings returns what must be the same on all ranks; agreed is the tuning table's hash.
func (o *Options) settings(agreed string) (all []roster.Setting, err error) {
	add := func(what string, v any) { all = append(all, roster.Setting{What: what, Value: fmt.Sprint(v)}) }
	if err = env.Validate(); err == nil { // otherwise err includes that error
		err = cpu.LevelError()
	}
	vars, _ := env.JobWide()
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		add("environment variable "+k, strconv.Quote(vars[k]))
	}
	add("Options.Timeout", o.Timeout)
	add("Options.NetTimeout", o.NetTimeout)
	add("Options.Register", o.Register)
	add("Options.Pin", o.Pin)
	add("Options.Algorithm", o.Algorithm)
	add("Options.Net", strconv.Quote(o.Net))
	add("Options.Devices", o.Devices)
	add("the tuning table's hash", agreed)
	return all, err
}

// joining is the state of a rank that joins the communicator of Open.
type joining struct {
	r         *roster.Roster
	log       *slog.Logger
	opts      Options
	providers Providers
	tuning    tuning.Table

	c    *Comm // nil until create; made for the ranks that r has on this host
	mine card  // c's card
	met  bool  // the ranks of this host have mapped each other
	why  string
}

// join lets the ranks of each host map each other, and tells all ranks the result. If ranks of a host could not, each
// of them is now a host of its own, again is true, and all ranks must call join again.
func (j *joining) join(ctx context.Context) (again bool, err error) {
	var row []byte
	if j.c == nil {
		err = j.create(ctx)
	}
	if err == nil && len(j.r.Hosts) > 1 {
		j.c.dom.hosts = j.r.Hostnames() // the names change when hosts are split up
		j.c.team.NameHosts(j.c.dom.hosts)
		row, err = j.c.listen(j.r, &j.mine)
	}
	cards, err := roster.ExchangeRows(ctx, j.r, j.mine, row, err)
	if err != nil {
		return false, err
	}
	var apart *roster.Apart
	if !j.met {
		apart, err = j.meet(ctx, cards)
	}
	if err == nil && apart == nil && len(j.r.Hosts) > 1 {
		err = j.c.layRows(j.r, cards[0].Rows)
	}
	// After ExchangeVerdict all ranks know that the ranks of each host have mapped each other: the rest needs nothing of Open.
	host := j.r.LocalRanks()
	whys, parted, err := roster.ExchangeVerdict(ctx, j.r, j.why, err, apart)
	if err != nil {
		return false, err
	}
	for _, a := range parted {
		if slices.Contains(host, a.Rank) {
			j.part(host, a)
		}
	}
	if len(parted) > 0 {
		return true, nil
	}
	return false, j.c.agreeOnDevice(whys)
}

// create makes this rank's domain and its area.
func (j *joining) create(ctx context.Context) error {
	r, here := j.r, j.r.LocalRanks()
	c := &Comm{rank: r.Rank(), size: r.Size(), opts: j.opts, providers: j.providers}
	j.c = c
	members, gpus, allHere := make([]team.Member, len(here)), make([]json.RawMessage, len(here)), true
	for i, h := range r.Hellos {
		members[i], gpus[i] = h.Member, h.GPUs
		allHere = allHere && h.Process == r.Hellos[0].Process
	}
	c.team.Gather(c, team.Ranks{Rank: c.rank, Size: c.size, Local: here}, members,
		team.Config{Timeout: j.opts.Timeout, Algorithm: j.opts.Algorithm, Tuning: j.tuning})
	d, err := newDomain(r, j.log, &j.opts, race.Enabled && allHere, c.providers.Accelerators.PCI(gpus, c.team.Rank()), &c.providers)
	if err != nil {
		return err
	}
	d.hold()
	c.dom = d
	c.attach()
	if err := c.newArea(r.Comm); err != nil {
		return err
	}
	c.chooseDevice(gpus)
	j.mine = card{Domain: d.Heap.Domain, Area: c.team.Area.At, Device: c.deviceCard(ctx)}
	if err := c.opts.lacks(c.rank, j.mine.Device.Why); err != nil {
		return err
	}
	j.mine.IPC, err = d.card()
	return err
}

// meet maps the areas of this host's ranks, and connects to their devices. apart says why they are not on one host
// after all: the system does not let this rank reach another's memory.
func (j *joining) meet(ctx context.Context, cards []card) (apart *roster.Apart, err error) {
	j.met = true
	c := j.c
	devices := make([]DeviceCard, len(cards))
	for r := range cards {
		devices[r] = cards[r].Device
		p, name := &c.team.Peers[r], c.team.Name(r)
		p.Domain = cards[r].Domain
		if name == c.rank {
			continue
		}
		if p.Mem, err = c.dom.attach(ctx, cards[r].IPC); err != nil {
			err = reason.About(name, fmt.Errorf("reach rank %d: %w", name, err))
			if errors.Is(err, fault.ErrNotSupported) {
				return &roster.Apart{About: name, Why: err.Error()}, nil
			}
			return nil, err
		}
		if err := c.meet(j.r.Comm, r, cards[r].Area); err != nil {
			return nil, reason.About(name, err)
		}
	}
	j.why = c.meetDevices(ctx, devices)
	return nil, c.opts.lacks(c.rank, j.why)
}

// part gives up the communicator of ranks that seemed to be on host, each of which is now a host of its own.
func (j *joining) part(host []int, a roster.Apart) {
	if j.c.rank == host[0] {
		j.log.Warn("ubcoll: ranks that seem to be on one host cannot reach each other's memory, and are as on several",
			"ranks", host, "rank", a.Rank, "error", a.Why)
	}
	j.c.discard(&fault.Error{Op: "open", Rank: j.c.rank, Peer: a.About, Err: fault.ErrNotSupported})
	j.c, j.met, j.why = nil, false, ""
}

// discard gives up a communicator that could not be made because of e.
func (c *Comm) discard(e *fault.Error) {
	if c != nil && c.dom != nil {
		c.ignoreNetwork()
		c.leave(e)
		c.release()
	}
}

func (c *Comm) newArea(comm uint64) error {
	if err := c.team.MakeArea(c.dom.Heap, comm, c.attachedBytes()); err != nil {
		return err
	}
	c.lay(c.team.Rank())
	return nil
}

// meet maps rank r's control area, whose location is at.
func (c *Comm) meet(comm uint64, r int, at mem.Location) error {
	if err := c.team.MapArea(comm, r, at); err != nil {
		return err
	}
	c.lay(r)
	return nil
}
