package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/logs"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
	"github.com/ubcoll/ubcoll/register"
)

// wireVersion changes whenever ranks built before and after a change could not work together.
const wireVersion = 6

const defaultTimeout = 10 * time.Minute

// hello is the first thing ranks tell each other: all that must be equal, and where each one runs.
type hello struct {
	Version int               `json:"version"`
	Race    bool              `json:"race"`
	Options Options           `json:"options"`
	Env     map[string]string `json:"env"` // the variables that internal/env marks job-wide
	Tuning  string            `json:"tuning"`
	team.Member
	HostID string          `json:"host_id"`
	GPUs   json.RawMessage `json:"gpus"`
	Secret string          `json:"secret"` // rank 0's is the job's
	Comm   uint64          `json:"comm"`   // rank 0's identifies the communicator
}

// card says where a rank's memory is.
type card struct {
	IPC    json.RawMessage `json:"ipc"`
	Domain uint64          `json:"domain"`
	Area   mem.Location    `json:"area"`
	Device DeviceCard      `json:"device"`
}

// envelope carries what a rank tells, or why it cannot go on.
type envelope struct {
	Err   string          `json:"err,omitempty"`
	Code  int             `json:"code,omitempty"`  // of the sentinel in Err
	About int             `json:"about,omitempty"` // 1 + the rank that Err is about; 0: the one that tells it
	Body  json.RawMessage `json:"body,omitempty"`
}

// Rooms are the constructors of what a communicator has from packages above this one.
type Rooms struct {
	IPC          NewIPC
	Accelerators Accelerators
	Attachments  []NewAttachment
}

// Open makes a communicator of all ranks of b. Collective. bad says what is wrong with o; it
// is reported by all ranks.
func Open(ctx context.Context, b bootstrap.Bootstrap, o Options, bad error, rooms Rooms) (*Comm, error) {
	rank, start := b.Rank(), time.Now()
	log := logs.Or(o.Logger)
	warnUnknown(log)
	fail := func(step string, about int, err error) *fault.Error {
		name, _ := os.Hostname()
		return &fault.Error{Op: "open", Rank: rank, Peer: about, Host: name, Step: step, Err: err}
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not all ranks were there within %v "+
			"(Options.Timeout, %s): %w", o.Timeout, env.Timeout.Name, fault.ErrTimeout))
		defer cancel()
	}
	table, terr := tuning.Load()
	gpus, why := rooms.Accelerators.Visible(o.Devices == team.DevicesOff)
	mine, err := newHello(o, table, gpus)
	hellos, err := exchange(ctx, b, mine, errors.Join(bad, terr, err, o.lacks(rank, why)))
	if err != nil {
		return nil, fail("hello", reason.Blamed(err, -1), err)
	}
	if about, err := compare(hellos); err != nil {
		return nil, fail("hello", about, err)
	}

	members := make([]team.Member, len(hellos))
	for r := range hellos {
		members[r] = hellos[r].Member
	}
	c := &Comm{rank: rank, size: b.Size(), opts: o, rooms: rooms}
	c.team.Gather(c, team.AllOf(rank, b.Size()), members, team.Config{Timeout: o.Timeout, Algorithm: o.Algorithm, Tuning: table})
	secret, _ := hex.DecodeString(hellos[0].Secret)
	own, err := c.create(log, hellos, secret)
	cards, err := exchange(ctx, b, own, err)
	if err == nil {
		why, failed := c.meetAll(ctx, hellos[0].Comm, cards)
		// After this everybody has mapped everybody: nothing of Open is needed for what follows.
		var whys []string
		if whys, err = exchange(ctx, b, why, failed); err == nil {
			err = c.settleDevice(whys)
		}
	}
	if err != nil {
		e := fail("attach", reason.Blamed(err, -1), err)
		if c.dom != nil {
			c.leave(e)
			c.release()
		}
		return nil, e
	}
	c.logOpen("open", start)
	return c, nil
}

// exchange gathers v from all ranks. own is why this rank has none: it takes part all the same, since the others wait
// for it, and everybody returns the error of the first rank that has one.
func exchange[T any](ctx context.Context, b bootstrap.Bootstrap, v T, own error) ([]T, error) {
	var e envelope
	if own == nil {
		e.Body, own = json.Marshal(v)
	}
	if own != nil {
		e = envelope{Err: own.Error(), Code: reason.Code(own), About: reason.Blamed(own, -1) + 1}
	}
	raw, _ := json.Marshal(e) // strings and what has been marshalled: it cannot fail
	all, err := b.AllGather(ctx, raw)
	if err != nil {
		return nil, errors.Join(own, notExchanged(ctx, err))
	}
	if own != nil {
		return nil, own
	}
	vs := make([]T, len(all))
	for r := range all {
		var e envelope
		if err := json.Unmarshal(all[r], &e); err != nil {
			return nil, reason.About(r, fmt.Errorf("what rank %d sent: %w", r, err))
		}
		if e.Err != "" {
			about := e.About - 1
			if about < 0 || about >= len(all) {
				about = r
			}
			return nil, reason.About(about, fmt.Errorf("rank %d: %w", r, reason.Told(e.Err, reason.OfCode(e.Code))))
		}
		if err := json.Unmarshal(e.Body, &vs[r]); err != nil {
			return nil, reason.About(r, fmt.Errorf("what rank %d sent: %w", r, err))
		}
	}
	return vs, nil
}

// notExchanged is why the bootstrap could not exchange, about the rank that it names. A bootstrap may know of ctx's end
// without its cause.
func notExchanged(ctx context.Context, err error) error {
	e, ok := errors.AsType[*fault.Error](err)
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), fault.ErrTimeout) {
		err = reason.Told(fmt.Sprintf("%v: %v", err, context.Cause(ctx)), fault.ErrTimeout)
	}
	if ok && e.Peer >= 0 {
		err = reason.About(e.Peer, err)
	}
	return err
}

func newHello(o Options, table tuning.Table, gpus json.RawMessage) (hello, error) {
	var random [24]byte
	_, e0 := rand.Read(random[:])
	e4 := env.Validate()
	jobWide, _ := env.JobWide()
	if e4 == nil { // else that has it too
		e4 = cpu.LevelError()
	}
	h := hello{Version: wireVersion, Race: race.Enabled, Options: o, Env: jobWide, Tuning: table.Hash(),
		GPUs: gpus, Secret: hex.EncodeToString(random[:16]), Comm: *(*uint64)(unsafe.Pointer(&random[16]))}
	var e1, e2 error
	h.Member, e1 = team.Here()
	h.HostID, e2 = hostID()
	return h, errors.Join(e0, e1, e2, e4)
}

// hostID is this host, as UBCOLL_HOSTID says or as the system does.
func hostID() (string, error) {
	if id, _ := env.HostID.Get(); id != "" {
		return id, nil
	}
	return shm.HostID()
}

// maxRanks is what signatures have room for, less one: staging memory has a line for each rank and one for the result.
const maxRanks = 1<<12 - 1

// compare checks what must be equal on all ranks. The verdict is a pure function of the hellos.
func compare(hs []hello) (about int, err error) {
	a := &hs[0]
	if len(hs) > maxRanks {
		return -1, fmt.Errorf("%d ranks, more than %d: %w", len(hs), maxRanks, fault.ErrLimit)
	}
	for r := range hs {
		h := &hs[r]
		differ := func(what string, x, y any) (int, error) {
			return r, fmt.Errorf("%s is %v on rank 0 and %v on rank %d: %w", what, x, y, r, fault.ErrMismatch)
		}
		switch {
		case h.Version != a.Version:
			return differ("the library's wire version", a.Version, h.Version)
		case h.Race != a.Race:
			return differ("the race detector", a.Race, h.Race)
		}
		for _, k := range slices.Sorted(mapKeys(a.Env, h.Env)) {
			if a.Env[k] != h.Env[k] {
				return differ("environment variable "+k, quote(a.Env, k), quote(h.Env, k))
			}
		}
		switch {
		case h.Options.Timeout != a.Options.Timeout:
			return differ("Options.Timeout", a.Options.Timeout, h.Options.Timeout)
		case h.Options.Register != a.Options.Register:
			return differ("Options.Register", a.Options.Register, h.Options.Register)
		case h.Options.Algorithm != a.Options.Algorithm:
			return differ("Options.Algorithm", a.Options.Algorithm, h.Options.Algorithm)
		case h.Options.Devices != a.Options.Devices:
			return differ("Options.Devices", a.Options.Devices, h.Options.Devices)
		}
		if h.Tuning != a.Tuning {
			return differ("the tuning table's hash", a.Tuning, h.Tuning)
		}
		if h.HostID != a.HostID {
			return r, fmt.Errorf("rank 0 is on host %s and rank %d on host %s: ranks on several hosts: %w",
				a.Hostname, r, h.Hostname, fault.ErrNotSupported)
		}
	}
	return -1, nil
}

func mapKeys(ms ...map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		seen := map[string]bool{}
		for _, m := range ms {
			for k := range m {
				if !seen[k] && !yield(k) {
					return
				}
				seen[k] = true
			}
		}
	}
}

func quote(m map[string]string, k string) string {
	if v, ok := m[k]; ok {
		return fmt.Sprintf("%q", v)
	}
	return "unset"
}

// create makes this rank's domain and its area.
func (c *Comm) create(log *slog.Logger, hs []hello, secret []byte) (card, error) {
	allHere := true
	for r := range c.team.Peers {
		allHere = allHere && c.team.Peers[r].Proc == c.team.Peers[c.rank].Proc
	}
	limits, err := cacheLimits()
	if err != nil {
		return card{}, err
	}
	d, err := newDomain(c.rank, log, race.Enabled && allHere, secret, c.rooms.IPC, limits)
	if err != nil {
		return card{}, err
	}
	d.hold()
	c.dom = d
	c.attach()
	if err := c.newArea(hs[0].Comm); err != nil {
		return card{}, err
	}
	c.chooseDevice(hs)
	k := card{Domain: d.Heap.Domain, Area: c.team.Area.At, Device: c.deviceCard()}
	if err := c.opts.lacks(c.rank, k.Device.Why); err != nil {
		return card{}, err
	}
	k.IPC, err = d.card()
	return k, err
}

// cacheLimits are the limits of the registration cache.
func cacheLimits() (register.Config, error) {
	regions, err1 := env.MaxRegions.Get()
	pinned, err2 := env.MaxPinned.Get()
	return register.Config{MaxRegions: regions, MaxBytes: int64(pinned)}, errors.Join(err1, err2)
}

func (c *Comm) newArea(comm uint64) error {
	if err := c.team.MakeArea(c.dom.Heap, comm, c.attachedBytes()); err != nil {
		return err
	}
	c.lay(c.team.Rank())
	return nil
}

// meetAll maps the peers' areas. It returns why the devices cannot be used, or "".
func (c *Comm) meetAll(ctx context.Context, comm uint64, cards []card) (noDevice string, err error) {
	devices := make([]DeviceCard, len(cards))
	for r := range cards {
		devices[r] = cards[r].Device
		p := &c.team.Peers[r]
		p.Domain = cards[r].Domain
		if r == c.rank {
			continue
		}
		if p.Mem, err = c.dom.attach(ctx, cards[r].IPC); err != nil {
			return "", reason.About(r, fmt.Errorf("reach rank %d: %w", r, err))
		}
		if err := c.meet(comm, r, cards[r].Area); err != nil {
			return "", reason.About(r, err)
		}
	}
	why := c.meetDevices(ctx, devices)
	return why, c.opts.lacks(c.rank, why)
}

// meet maps the control area that rank r has at at.
func (c *Comm) meet(comm uint64, r int, at mem.Location) error {
	if err := c.team.MapArea(comm, r, at); err != nil {
		return err
	}
	c.lay(r)
	return nil
}
