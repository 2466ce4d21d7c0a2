// Package roster finds out who is in a job that opens a communicator: it compares what all ranks must agree on, finds
// the ranks of each host, and makes the exchanges by which the ranks proceed together or fail together.
package roster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Roster says which ranks are on which host. It is the same on all ranks, except for fields about this rank or host.
// While exchanges are made, one goroutine owns it; afterwards it is only read.
type Roster struct {
	Hosts  [][]int // each host's ranks in order; hosts in the order of their first ranks
	Mine   int     // index of this rank's host
	Hellos []Hello // from the ranks of this host, in order
	Secret []byte  // the job's secret, known to its ranks alone
	Comm   uint64  // the number of the communicator
	Apart  *Apart  // the first reason why ranks that seemed to be on one host were split up, or nil

	b     bootstrap.Bootstrap
	pairs bool // the bootstraps of all ranks are Exchangers
	rank  int
	ids   []hash   // by rank: the identity of its host
	host  []int    // by rank: the index of its host
	named []string // by rank: its host's own name
	names []string // by rank: the same, but different for different hosts
	table []byte   // all ranks' rows: see Lay
}

// Hello is what a rank tells the other ranks of its host about itself.
type Hello struct {
	team.Member
	GPUs json.RawMessage `json:"gpus"`
}

// Apart says that ranks that seemed to be on one host cannot map each other's memory.
type Apart struct {
	Rank  int    `json:"rank"`  // the rank that found it
	About int    `json:"about"` // the rank whose memory it cannot map
	Why   string `json:"why"`
}

// inlineDetailRanks is the largest number of ranks in jobs where hellos carry the details that only ranks of one host need. In
// larger jobs the details take an exchange of their own.
const inlineDetailRanks = 256

// Gather finds out who is in the job. agree has this rank's settings, which must be the same on all ranks; gpus is what
// it tells about its devices. Collective. own is why this rank cannot go on; all ranks then fail.
func Gather(ctx context.Context, b bootstrap.Bootstrap, agree []Setting, gpus json.RawMessage, own error) (*Roster, error) {
	if b.Size() > team.MaxRanks { // all ranks come to the same result
		return nil, fmt.Errorf("%d ranks, more than %d: %w", b.Size(), team.MaxRanks, fault.ErrLimit)
	}
	mine := Hello{GPUs: gpus}
	h, err := newHead(b, agree, &mine)
	own = errors.Join(own, err)
	heads, bodies, err := gatherHeads(ctx, b, h, mine, own)
	if err != nil {
		return nil, err
	}
	if err := compareAll(ctx, b, heads, agree); err != nil {
		return nil, err
	}
	r := &Roster{b: b, rank: b.Rank(), Secret: jobSecret(b, heads), Comm: heads[0].comm}
	for i := range heads {
		r.ids = append(r.ids, heads[i].host)
		r.named = append(r.named, heads[i].hostname())
	}
	r.group()
	r.pairs = !slices.ContainsFunc(heads, func(h head) bool { return !h.pairs })
	if bodies == nil {
		r.Hellos, err = Exchange(ctx, r, mine, nil)
		return r, err
	}
	r.Hellos, err = decode[Hello](r.LocalRanks(), pick(bodies, r.LocalRanks()))
	return r, err
}

// newHead makes this rank's head, and completes m.
func newHead(b bootstrap.Bootstrap, agree []Setting, m *Hello) (h head, err error) {
	h = head{version: Version, race: race.Enabled, agree: hashOf(agree)}
	_, h.pairs = b.(bootstrap.Exchanger)
	h.keyed = len(keyOf(b)) > 0
	var e1 error
	if b.Rank() == 0 {
		e1 = h.draw()
	}
	gpus := m.GPUs
	var e2 error
	m.Member, e2 = team.ThisProcess()
	m.GPUs = gpus
	id, name, e3 := HostOf(b)
	if name != "" {
		m.Hostname = name
	}
	h.host = hashOf(id)
	copy(h.name[:], m.Hostname)
	return h, errors.Join(e1, e2, e3)
}

// draw draws what rank 0 decides for all.
func (h *head) draw() error {
	var random [24]byte
	_, err := rand.Read(random[:])
	copy(h.secret[:], random[:])
	h.comm = order.Uint64(random[16:])
	return err
}

// HostOf returns the identity of this rank's host, from the bootstrap, UBCOLL_HOSTID or the system, and the host's name
// if it is not the system's. b may be nil.
func HostOf(b bootstrap.Bootstrap) (id, name string, err error) {
	if h, ok := b.(bootstrap.Hoster); ok {
		if name := h.Host(); name != "" {
			return name, name, nil
		}
	}
	if id, _ := env.HostID.Get(); id != "" {
		return id, "", nil
	}
	id, err = shm.HostID()
	return id, "", err
}

// group puts ranks whose hosts have the same identity on one host.
func (r *Roster) group() {
	r.Hosts, r.host = nil, make([]int, len(r.ids))
	seen := map[hash]int{}
	for rank, id := range r.ids {
		h, ok := seen[id]
		if !ok {
			h = len(r.Hosts)
			seen[id] = h
			r.Hosts = append(r.Hosts, nil)
		}
		r.Hosts[h] = append(r.Hosts[h], rank)
		r.host[rank] = h
	}
	r.Mine = r.host[r.rank]
	r.names = distinct(r.named, r.host)
}

// distinct returns the names of the ranks' hosts. named has each host's own name, by rank. Of several hosts with one
// name the first keeps it, the second is name/2, the third name/3, unless another host has that name.
func distinct(named []string, host []int) []string {
	type key struct {
		host int
		name string
	}
	names, given, taken, next := make([]string, len(named)), map[key]string{}, map[string]bool{}, map[string]int{}
	for rank, name := range named {
		if !taken[name] { // the first host with this name keeps it
			taken[name], given[key{host[rank], name}] = true, name
		}
	}
	for rank, name := range named {
		k := key{host[rank], name}
		for given[k] == "" && name != "" {
			next[name]++
			if s := fmt.Sprintf("%s/%d", name, next[name]+1); !taken[s] {
				taken[s], given[k] = true, s
			}
		}
		names[rank] = given[k]
	}
	return names
}

// HostID is the identity of this rank's host, as a number that differs from other hosts'.
func (r *Roster) HostID() uint64 { return order.Uint64(r.ids[r.rank][:]) }

// Done releases the bootstrap: no more exchanges follow.
func (r *Roster) Done() { r.b = nil }

// Rank is this rank, in the job.
func (r *Roster) Rank() int { return r.rank }

// Size is the number of ranks of the job.
func (r *Roster) Size() int { return len(r.host) }

// LocalRanks returns the ranks of this host, in order.
func (r *Roster) LocalRanks() []int { return r.Hosts[r.Mine] }

// First reports whether this rank is the first of its host.
func (r *Roster) First() bool { return r.LocalRanks()[0] == r.rank }

// Host is the index of a rank's host.
func (r *Roster) Host(rank int) int { return r.host[rank] }

// Hostnames returns the names of the ranks' hosts, by rank; different hosts have different names. The caller only reads
// them.
func (r *Roster) Hostnames() []string { return r.names }

// ExchangeVerdict is Exchange with a verdict: apart says why this rank cannot map the memory of another rank of its host, or is
// nil. If any rank has such a reason, each rank of its host becomes a host of its own, alike on all ranks of the job: r
// changes accordingly, parted has one reason for each of those hosts, and nothing has been gathered.
func ExchangeVerdict[T any](ctx context.Context, r *Roster, v T, own error, apart *Apart) (vs []T, parted []Apart, err error) {
	bodies, news, err := r.exchange(ctx, v, own, nil, apart)
	if err != nil {
		return nil, nil, err
	}
	if len(news.Apart) == 0 {
		vs, err = decode[T](r.LocalRanks(), bodies)
		return vs, nil, err
	}
	r.part(news.Apart)
	return nil, news.Apart, nil
}

// part makes each rank of the hosts that apart is about a host of its own.
func (r *Roster) part(apart []Apart) {
	gone := map[int]bool{}
	for i := range apart {
		gone[r.host[apart[i].Rank]] = true
	}
	if r.Apart == nil {
		r.Apart = &apart[0]
	}
	here := r.LocalRanks()
	for rank, h := range r.host {
		if gone[h] {
			r.ids[rank] = hashOf(fmt.Sprintf("%x, rank %d", r.ids[rank], rank))
		}
	}
	r.group()
	if n := len(r.LocalRanks()); n != len(here) {
		for i, rank := range here {
			if rank == r.rank {
				r.Hellos = r.Hellos[i : i+1]
			}
		}
		r.table = nil
	}
}

// Explain returns err, which kept the ranks of several hosts from coming together. If ranks that seemed to be on one
// host were split up, it adds why.
func (r *Roster) Explain(err error) error {
	if r.Apart == nil {
		return err
	}
	return fmt.Errorf("%w (ranks that seemed to be on one host are as on several: rank %d: %s)", err, r.Apart.Rank, r.Apart.Why)
}
