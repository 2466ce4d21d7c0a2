package engine

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
)

// NewNode makes a rank's end of the network.
type NewNode = func(c transport.Config) (transport.Node, error)

// Interfaces returns a function that reports whether an address is this host's, on an interface that nodes use.
type Interfaces = func() (func(netip.Addr) bool, error)

// listen makes the domain's network side, once, and returns this rank's row: what the other ranks need to reach it. The
// first rank of a host lays the table of all ranks' rows.
func (c *Comm) listen(r *roster.Roster, mine *card) (row []byte, err error) {
	d := c.dom
	if r.First() && mine.Rows == (mem.Location{}) {
		a, err := d.Heap.Alloc(r.TableBytes()) // lives as long as the domain
		if err != nil {
			return nil, fmt.Errorf("the table of all ranks: %w", err)
		}
		mine.Rows = a.At
		r.Lay(unsafe.Slice((*byte)(a.Ptr), r.TableBytes()))
	}
	if d.network == nil {
		d.network, err = hosts.Listen(hosts.JobConfig{Rank: c.rank, Size: c.size, Secret: r.Secret, Timeout: c.opts.NetTimeout,
			Connections: c.team.Tuning().Hosts.Connections, Log: d.log,
			RDMA: transport.RDMA{NICs: d.nics, OFI: d.ofi, Find: d.Cache.Peek,
				Required: cmp.Or(ofi.Required(c.opts.Net), mr.Required(c.opts.Net))},
			Memory: d.landing, Turns: d.device != nil && d.device.Turns(),
			RowOf: r.Row, NewNode: c.providers.Network})
		if err != nil {
			return nil, err
		}
	}
	return d.network.Row(), nil
}

// landing is hosts.JobConfig's Memory. What RDMA devices or libfabric's domains cannot have is memory all the same: they reach it another way.
func (d *Domain) landing(n int) []byte {
	if d.nics == nil && d.ofi == nil {
		return make([]byte, n)
	}
	a, err := d.Heap.Alloc(n)
	if err != nil {
		return make([]byte, n)
	}
	if _, err = d.Cache.Register(Memory(a), a.Base(), n); err != nil {
		d.log.Debug("ubcoll: memory in which data from other hosts land is not registered", "error", err)
	}
	return unsafe.Slice((*byte)(a.Ptr), n)
}

// Key is a secret of a purpose, which all ranks of a job of several hosts have; nil on one host.
func (c *Comm) Key(purpose string) []byte {
	if c.dom.network == nil {
		return nil
	}
	m := hmac.New(sha256.New, c.dom.network.Secret)
	m.Write([]byte(purpose))
	return m.Sum(nil)
}

// layRows maps the table that this host's first rank has laid.
func (c *Comm) layRows(r *roster.Roster, at mem.Location) error {
	if r.First() {
		return nil
	}
	p, err := c.team.Peers[0].Mem.Resolve(at, r.TableBytes())
	if err != nil {
		return reason.About(c.team.Name(0), fmt.Errorf("map the table of all ranks: %w", err))
	}
	r.Lay(unsafe.Slice((*byte)(p), r.TableBytes()))
	return nil
}

// connectTimeout is how long leaders wait for each other's connections, which all are made at the same time.
const connectTimeout = 30 * time.Second

// openStage connects this rank's side of communicator id with the other hosts. on has the ranks of each host, and mine
// is this host's index in it. Collective over the hosts' first ranks; all ranks of each host must have mapped each
// other, and have the rows of all.
func (c *Comm) openStage(ctx context.Context, id uint64, on [][]int, mine int) (err error) {
	ctx, cancel := clock.WithTimeout(ctx, connectTimeout, fmt.Errorf("not connected within %v: %w", connectTimeout,
		fault.ErrTimeout))
	defer cancel()
	c.stage, err = hosts.Open(ctx, hosts.Config{ID: id, Team: &c.team, Hosts: on, Mine: mine,
		Name:    func(h int) string { return c.Hostname(on[h][0]) },
		Network: c.dom.network, World: c.InJob, Break: c.breakBy})
	if err == nil {
		c.team.Hosts = c.stage
		c.stage.Begin()
		err = c.span(id)
	}
	return err
}

// disconnectHosts ends a broken communicator's connections to other hosts, after telling them: the process may end next.
func (c *Comm) disconnectHosts() {
	c.telling.Lock()
	//lint:ignore SA2001 Whoever holds it is still telling them.
	c.telling.Unlock()
	c.stage.Sever()
}

// InJob is a rank's number in the job.
func (c *Comm) InJob(rank int) int {
	if c.world == nil {
		return rank
	}
	return int(c.world[rank])
}

// OfJob is InJob's inverse; -1 for ranks that the communicator does not have.
func (c *Comm) OfJob(rank int) int {
	if c.world == nil {
		return rank
	}
	return slices.Index(c.world, int32(rank))
}

// breakBy breaks the communicator with why's error, unless that is nil or the communicator is closing. Any goroutine.
func (c *Comm) breakBy(why func() *fault.Error) {
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return
	}
	if e := why(); e != nil {
		c.FailOpen(e)
	}
}

// several connects the ranks of several hosts. If any rank fails, all return its error.
func (c *Comm) several(ctx context.Context, r *roster.Roster) error {
	watched, stop := r.Watch(ctx)
	err := c.openStage(watched, r.Comm, r.Hosts, r.Mine)
	stop()
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Peer >= 0 {
		err = reason.About(e.Peer, e.Err)
	}
	_, err = roster.Exchange(ctx, r, struct{}{}, err) // confirms that all have connected
	return err
}
