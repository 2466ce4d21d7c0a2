package team

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// Member is what a rank tells the others about where it runs.
type Member struct {
	Cache    int         `json:"cache"` // as of cpu.Near
	Node     int         `json:"node"`
	Process  shm.Process `json:"process"`
	Hostname string      `json:"hostname"`
	CPUs     []int       `json:"cpus"`
	Quotas   []cpu.Quota `json:"quotas"`
	Group    string      `json:"group"` // as of shm.Group
}

// ThisProcess returns this rank's Member.
func ThisProcess() (m Member, err error) {
	m = Member{CPUs: cpu.Affinity(), Quotas: cpu.Quotas(), Group: shm.Group()}
	m.Cache, m.Node = cpu.Near()
	var e1, e2 error
	m.Process, e1 = shm.Self()
	m.Hostname, e2 = os.Hostname()
	return m, errors.Join(e1, e2)
}

// Config is what a team takes from its communicator.
type Config struct {
	Timeout   time.Duration // how long a wait for peers may last
	Algorithm string        // that the options ask for, or ""
	Tuning    tuning.Table
}

// Ranks says which ranks of a communicator form a team.
type Ranks struct {
	Rank, Size int   // this rank, and the size of the communicator
	Local      []int // the team's ranks, this one included, in order
}

// NameHosts gives the team's ranks the host names that are unique in the communicator; all has those of all its ranks.
func (t *Team) NameHosts(all []string) {
	for r := range t.Peers {
		t.Peers[r].Host = all[t.Name(r)]
	}
}

// Gather makes t the team of ms, which are the ranks of in, in communicator c.
func (t *Team) Gather(c Comm, in Ranks, ms []Member, o Config) {
	t.Init(c, in)
	t.tuning, t.algorithm = o.Tuning, o.Algorithm
	t.Timeout.Store(int64(o.Timeout))
	cpus, groups := map[int]bool{}, map[string]bool{}
	for r, m := range ms {
		t.Peers[r] = Peer{Proc: m.Process, Host: m.Hostname, cache: m.Cache, node: m.Node}
		groups[m.Group] = true
		for _, n := range m.CPUs {
			cpus[n] = true
		}
	}
	t.oneP = runtime.GOMAXPROCS(0) == 1
	procs := len(cpus)
	if t.arrange(); t.inProcess {
		procs = min(procs, runtime.GOMAXPROCS(0))
	}
	t.Crowded = procs > 0 && t.size > procs || exhausted(ms)
	t.apart = len(groups) > 1
}

// Part makes t a team of the given ranks of parent. They are the ranks of in, in communicator c, which asks for
// algorithm, or "".
func (t *Team) Part(c Comm, in Ranks, parent *Team, ranks []int, algorithm string) {
	t.Init(c, in)
	t.tuning, t.algorithm = parent.tuning, algorithm
	t.oneP, t.Crowded, t.apart = parent.oneP, parent.Crowded, parent.apart
	t.Timeout.Store(parent.Timeout.Load())
	for r, was := range ranks {
		from := &parent.Peers[was]
		t.Peers[r] = Peer{Mem: from.Mem, Proc: from.Proc, Host: from.Host, Domain: from.Domain, cache: from.cache,
			node: from.node}
	}
	t.arrange()
}

// Init makes t the team of the ranks of in, which know nothing of each other yet.
func (t *Team) Init(c Comm, in Ranks) {
	size := len(in.Local)
	t.comm, t.rank, t.size, t.names, t.all = c, slices.Index(in.Local, in.Rank), size, in.Local, in.Size
	t.Peers, t.scratch = make([]Peer, size), make([]unsafe.Pointer, size)
	t.srcs, t.dsts = make([]unsafe.Pointer, size), make([]unsafe.Pointer, size)
	t.ReportAfter.Store(int64(reportAfter))
}

// exhausted reports whether some control group has more ranks than its processor quota.
func exhausted(ms []Member) bool {
	ranks := map[string]int{}
	for _, m := range ms {
		for _, q := range m.Quotas {
			if ranks[q.Group]++; float64(ranks[q.Group]) > q.CPUs {
				return true
			}
		}
	}
	return false
}

// MakeArea makes this rank's area of communicator id, with extra bytes behind its staging memory for attachments.
func (t *Team) MakeArea(h *mem.Heap, id uint64, extra int) error {
	a, err := h.Alloc(SharedBytes + extra)
	if err != nil {
		return fmt.Errorf("control segment: %w", err)
	}
	t.Area, t.Me, t.whole, t.populate = a, (*Area)(a.Ptr), SharedBytes+extra, !h.GoHeap()
	t.Me.magic, t.Me.comm, t.Me.rank, t.Me.size = areaMagic, id, uint32(t.Name(t.rank)), uint32(t.all)
	t.Me.pid = uint64(os.Getpid())
	t.Me.State.Store(StateOpen)
	t.Peers[t.rank].lay(a.Ptr)
	t.Flight.Init(t.Peers[t.rank].ring())
	return nil
}

// lay sets the addresses of the parts of a rank's shared memory.
func (p *Peer) lay(ptr unsafe.Pointer) {
	p.Area, p.eager = (*Area)(ptr), unsafe.Add(ptr, areaBytes)
	p.staging = unsafe.Add(p.eager, 2*EagerBytes)
}

// ring is the rank's ring of operations. It is computed, since each agreement reads the peers of a rank, which fill whole
// cache lines.
func (p *Peer) ring() *flight.Ring {
	return (*flight.Ring)(unsafe.Add(unsafe.Pointer(p.Area), peerBytes))
}

// MapArea maps rank r's area, whose location is at.
func (t *Team) MapArea(id uint64, r int, at mem.Location) error {
	p := &t.Peers[r]
	ptr, err := p.Mem.Resolve(at, t.whole)
	if err != nil {
		return fmt.Errorf("map the control area of rank %d: %w", t.Name(r), err)
	}
	if t.populate { // every rank touches these pages, and one rank's page faults delay all
		shm.Populate(ptr, peerBytes)
	}
	p.lay(ptr)
	p.At = at
	return p.Area.check(id, t.Name(r), t.all)
}
