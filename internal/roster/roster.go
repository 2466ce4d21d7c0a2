// Package roster is who is in a job that opens a communicator: what all ranks have to agree on, which of them are on
// which host, and the exchanges by which they get further together or fail together.
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

// Roster is who is where. All ranks have the same, but for what is said to be of one host or rank. It is one goroutine's
// while exchanges are made, and afterwards only read.
type Roster struct {
	Hosts  [][]int // each host's ranks in order; hosts in the order of their first ranks
	Mine   int     // this rank's host
	Hellos []Hello // of the ranks of this host, in order
	Secret []byte  // the job's: known to all ranks and nobody else
	Comm   uint64  // the number of the communicator
	Apart  *Apart  // why ranks of what seemed to be one host are hosts of their own, if some are: the first reason

	b     bootstrap.Bootstrap
	pairs bool // it exchanges between two ranks, on all ranks
	rank  int
	ids   []hash   // of the ranks' hosts
	host  []int    // by rank
	named []string // how the ranks' hosts call themselves
	names []string // the same, and no two hosts have one name
	table []byte   // of all ranks' rows: see Lay
}

// Hello is what a rank tells the others of its host of itself.
type Hello struct {
	team.Member
	GPUs json.RawMessage `json:"gpus"`
}

// Apart says that ranks that seemed to be on one host cannot map each other's memory.
type Apart struct {
	Rank  int    `json:"rank"`  // that found it
	About int    `json:"about"` // whose memory it cannot map
	Why   string `json:"why"`
}

// riding is how many ranks a job has at most whose hellos have the details with them, of which only ranks of one host
// need know. In larger ones those take an exchange of their own.
const riding = 256

// Gather finds out who is in the job: agree is what this rank's settings are, which must be the same on all ranks, gpus
// what it tells of its devices. Collective; own is why this rank cannot go on: all ranks fail then.
func Gather(ctx context.Context, b bootstrap.Bootstrap, agree []Setting, gpus json.RawMessage, own error) (*Roster, error) {
	if b.Size() > team.MaxRanks { // which all know alike
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
	r.Hellos, err = decode[Hello](r.Here(), pick(bodies, r.Here()))
	return r, err
}

// newHead is this rank's; m is completed.
func newHead(b bootstrap.Bootstrap, agree []Setting, m *Hello) (h head, err error) {
	h = head{version: Version, race: race.Enabled, agree: hashOf(agree)}
	_, h.pairs = b.(bootstrap.Exchanger)
	h.keyed = len(keyOf(b)) > 0
	var random [24]byte
	_, e1 := rand.Read(random[:])
	copy(h.secret[:], random[:])
	h.comm = order.Uint64(random[16:])
	gpus := m.GPUs
	var e2 error
	m.Member, e2 = team.Here()
	m.GPUs = gpus
	id, name, e3 := hostOf(b)
	if name != "" {
		m.Hostname = name
	}
	h.host = hashOf(id)
	copy(h.name[:], m.Hostname)
	return h, errors.Join(e1, e2, e3)
}

// hostOf is the identity of this rank's host, and its name if that is another one than the system's: as the bootstrap
// says, or UBCOLL_HOSTID, or the system.
func hostOf(b bootstrap.Bootstrap) (id, name string, err error) {
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

// group makes ranks whose hosts have the same identity a host.
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

// distinct is the names of the ranks' hosts, where each rank's own says how its host calls itself: of hosts of the same
// name the first one keeps it, and the second is name/2, the third name/3, unless there is a host that is called so.
func distinct(named []string, host []int) []string {
	type key struct {
		host int
		name string
	}
	names, given, taken, next := make([]string, len(named)), map[key]string{}, map[string]bool{}, map[string]int{}
	for rank, name := range named {
		if !taken[name] { // by the first host that is called so
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

// HostID is the identity of this rank's host, as a number that other hosts do not have.
func (r *Roster) HostID() uint64 { return order.Uint64(r.ids[r.rank][:]) }

// Done lets go of the bootstrap: there are no more exchanges.
func (r *Roster) Done() { r.b = nil }

// Rank is this rank, in the job.
func (r *Roster) Rank() int { return r.rank }

// Size is the number of ranks of the job.
func (r *Roster) Size() int { return len(r.host) }

// Here is the ranks of this host, in order.
func (r *Roster) Here() []int { return r.Hosts[r.Mine] }

// First reports whether this rank is the first of its host.
func (r *Roster) First() bool { return r.Here()[0] == r.rank }

// Host is the host of a rank.
func (r *Roster) Host(rank int) int { return r.host[rank] }

// Hostnames are the names of the ranks' hosts, by rank; no two hosts have the same one. The caller only reads them.
func (r *Roster) Hostnames() []string { return r.names }

// Settle is Exchange, for ranks of one host that could not map each other's memory: apart is why, or nil. Each rank of
// such a host is a host of its own then, for all ranks of the job alike: parted has one reason for each of those hosts,
// and r is as it has become. Nothing has been gathered then.
func Settle[T any](ctx context.Context, r *Roster, v T, own error, apart *Apart) (vs []T, parted []Apart, err error) {
	bodies, news, err := r.exchange(ctx, v, own, nil, apart)
	if err != nil {
		return nil, nil, err
	}
	if len(news.Apart) == 0 {
		vs, err = decode[T](r.Here(), bodies)
		return vs, nil, err
	}
	r.part(news.Apart)
	return nil, news.Apart, nil
}

// part makes the ranks of each host that one of apart is about hosts of their own.
func (r *Roster) part(apart []Apart) {
	gone := map[int]bool{}
	for i := range apart {
		gone[r.host[apart[i].Rank]] = true
	}
	if r.Apart == nil {
		r.Apart = &apart[0]
	}
	here := r.Here()
	for rank, h := range r.host {
		if gone[h] {
			r.ids[rank] = hashOf(fmt.Sprintf("%x, rank %d", r.ids[rank], rank))
		}
	}
	r.group()
	if n := len(r.Here()); n != len(here) {
		for i, rank := range here {
			if rank == r.rank {
				r.Hellos = r.Hellos[i : i+1]
			}
		}
		r.table = nil
	}
}

// Explain is err, for which the ranks of several hosts do not come together, and why there are several if that was found
// late.
func (r *Roster) Explain(err error) error {
	if r.Apart == nil {
		return err
	}
	return fmt.Errorf("%w (ranks that seemed to be on one host are as on several: rank %d: %s)", err, r.Apart.Rank, r.Apart.Why)
}
