// Package mr is the backend NET of the registration cache. It registers memory with RDMA devices of this host, its NICs,
// so that peers on other hosts can reach it, and it hands out the keys.
//
// The cache registers whole allocations: a [Region] has one memory region (MR) on each NIC, over the whole allocation
// and for what operations need: this process's work requests, and peers' writes. Its keys are for operations under way;
// nobody who gets them may keep them. A handle or window that is exported has a Region of its own over exactly its bytes ([Backend.Exact]), so
// closing it ends that access and no other.
//
// NICs reuse keys: sooner or later a new registration at the same address gets the rkey of one that has ended. The NIC
// sees no error when a peer then puts data there by the old key. So each Region has a generation, which no later Region
// of its backend has. A [Token] carries the generation beside the keys, and [Backend.Valid] recognizes a stale token
// even if the NIC accepts its keys.
//
// Everything here is local, not collective, and safe for concurrent use. No lock is held while a NIC registers or
// deregisters, which takes as long as pinning the memory.
package mr

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/register"
)

// Config says which NICs a backend uses, and how they register.
type Config struct {
	Select verbs.Selection // chooses among devices with active ports
	// Relaxed lets NICs write in another order than the data came ([verbs.RelaxedOrdering]). Users that learn of data
	// by a completion do not notice; users that poll memory do.
	Relaxed bool
	// Path is how packets travel, but for the port; zero: the default. QueuePairs is how many queue pairs carry the data of
	// two ranks on each NIC; 0: one.
	Path       verbs.Path
	QueuePairs int
	// GDR is "off" if memory of the rank's device is never registered, "on" if it is also where NICs are far from it. GPU is the
	// device's PCI address, or "".
	GDR, GPU string
	// Keep, if not nil, is called for memory that a NIC has failed to deregister, before Deregister or Close returns
	// the error. Such memory must not be used for anything else: a peer may still write it.
	Keep func(m register.Memory)
	Log  *slog.Logger // or nil; told once that memory could not be registered
}

// NIC is an RDMA device that a backend has open. It belongs to the backend.
type NIC struct {
	Device *verbs.Device
	PD     *verbs.PD // for everything that this backend registers there
	Ports  []int     // the ports that are selected and active

	access verbs.Access // with which whole allocations are registered
}

// Backend implements [register.Backend].
type Backend struct {
	config Config
	nics   []NIC
	told   sync.Once

	mu       sync.RWMutex // guards the fields below
	gpu      GPU          // or nil
	closed   bool
	making   int                // registrations under way
	last     uint64             // generation
	live     map[uint64]*Region // by generation
	stubborn []*verbs.MR        // that a NIC failed to deregister
}

// MostNICs is how many NICs a backend has at most.
const MostNICs = 4

// Open opens the NICs that are nearest to the rank's GPU, if that is known, and of those the ones nearest to this process's
// processors, in the order of their names: all that are equally near, up to MostNICs. It may block. fault.ErrNotSupported says why
// there is none: this host has no RDMA, or no port is both selected and active. If one of those devices cannot be opened, that is
// an error.
func Open(config Config) (*Backend, error) {
	names, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	b := &Backend{config: config, live: map[uint64]*Region{}}
	var idle []string
	far := map[string][]int{}
	for _, name := range names {
		far[name] = []int{int(closeness(name, config.GPU)), distance(name)}
	}
	order := func(x, y string) int { return slices.Compare(far[x], far[y]) }
	slices.SortStableFunc(names, order)
	for _, name := range names {
		if !selected(config.Select, name) {
			idle = append(idle, name+" is not selected")
			continue
		}
		if n := len(b.nics); n == MostNICs || n > 0 && order(name, b.nics[0].Device.Name()) > 0 {
			break
		}
		why, err := b.open(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("RDMA device %s, which UBCOLL_IB_HCA=^=%s would leave out: %w", name, name, err),
				b.Close())
		}
		idle = append(idle, why...)
	}
	if len(b.nics) == 0 {
		why := strings.Join(idle, ", ")
		if len(names) == 0 {
			why = "there is none"
		}
		return nil, fmt.Errorf("no RDMA device with an active port (%s): %w", why, hw.ErrNotSupported)
	}
	return b, nil
}

// distance is how far a device is from this process's processors: see cpu.Distance. One of which the system says nothing, as
// of those in software, is farther than others. Tests change it.
var distance = func(name string) int {
	b, _ := os.ReadFile(filepath.Join("/sys/class/infiniband", name, "device/numa_node"))
	if node, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		if d := cpu.Distance(node); d > 0 {
			return d
		}
	}
	return math.MaxInt
}

// selected reports whether s may select some port of a device.
func selected(s verbs.Selection, name string) bool {
	for port := 1; port <= 255; port++ {
		if s.Match(name, port) {
			return true
		}
	}
	return false
}

// open adds a device if one of its ports is selected and active. idle describes those that are selected and not active.
func (b *Backend) open(name string) (idle []string, err error) {
	d, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	n := NIC{Device: d, access: verbs.LocalWrite | verbs.RemoteWrite}
	limits := d.Limits()
	for number := 1; number <= limits.Ports; number++ {
		p, err := d.Port(number)
		switch {
		case err != nil:
			return nil, errors.Join(err, d.Close())
		case !b.config.Select.Match(name, number):
			idle = append(idle, fmt.Sprintf("%s:%d is not selected", name, number))
		case p.State != verbs.PortActive:
			idle = append(idle, fmt.Sprintf("%s:%d is %v", name, number, p.State))
		default:
			n.Ports = append(n.Ports, number)
		}
	}
	if n.Ports == nil {
		return idle, d.Close()
	}
	if n.PD, err = d.AllocPD(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if b.config.Relaxed {
		n.access |= verbs.RelaxedOrdering
	}
	b.nics = append(b.nics, n)
	return idle, nil
}

// NICs returns the backend's NICs. Keys and tokens list theirs in the same order. The caller must not change the slice.
func (b *Backend) NICs() []NIC { return b.nics }

// Wires says how packets travel, but for the port, and how many queue pairs carry the data of two ranks on each NIC.
func (b *Backend) Wires() (path verbs.Path, pairs int) {
	if path = b.config.Path; path == (verbs.Path{}) {
		path = verbs.DefaultPath()
	}
	return path, max(b.config.QueuePairs, 1)
}

// Kind implements [register.Backend].
func (b *Backend) Kind() register.BackendKind { return register.NET }

// Register implements [register.Backend]. The handle is a *Region over all of m. If this process may only read the
// memory, it is registered for reading. Either all NICs have registered it or none has: then the error names the first
// NIC that failed. fault.ErrLimit says which limit was reached, and how to raise it.
func (b *Backend) Register(m register.Memory) (any, error) {
	r, err := b.region(m, uint64(m.Base), m.Bytes, nil)
	if err != nil {
		if log := b.config.Log; log != nil && !errors.Is(err, fault.ErrNotSupported) {
			b.told.Do(func() {
				log.Warn("ubcoll: the RDMA devices cannot have registered memory, which goes other ways (of later memory only "+
					"Explain tells)", "memory", m, "error", err)
			})
		}
		return nil, err
	}
	return r, nil
}

// Deregister implements [register.Backend]. The keys are stale before the first NIC is asked. If a NIC fails to
// deregister, that is an error; Close tries again.
func (b *Backend) Deregister(_ register.Memory, handle any) error { return b.end(handle.(*Region)) }

// Exact registers exactly the n bytes at address, a part of m; access says what peers and this process's work requests
// may do there. It may block. Errors are as for Register, and fault.ErrArgument for bytes outside of m. The caller
// closes the Export before m is freed.
func (b *Backend) Exact(m register.Memory, address uintptr, n int, access verbs.Access) (*Export, error) {
	if err := access.Check(); err != nil {
		return nil, err
	}
	if n <= 0 || address < m.Base || n > m.Bytes || address-m.Base > uintptr(m.Bytes-n) {
		return nil, fmt.Errorf("export [%#x,+%d): it is not in %v, [%#x,+%d): %w", address, n, m, m.Base, m.Bytes,
			fault.ErrArgument)
	}
	r, err := b.region(m, uint64(address), n, &access)
	if err != nil {
		return nil, err
	}
	return &Export{Region: r}, nil
}

// Valid returns nil if a peer that uses t reaches the memory that t was made for. It returns fault.ErrStale if that
// registration has ended, even if a later one has the same keys. Before using a token, or reporting that an operation
// by it succeeded, let its maker check it: a completion by the NIC is no proof. Valid does not block.
func (b *Backend) Valid(t Token) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r := b.live[t.Generation]
	if r != nil && r.address == t.Address && r.bytes == t.Bytes && slices.EqualFunc(r.keys, t.Keys, isKey) {
		return nil
	}
	err := fmt.Errorf("%v has ended: %w", t, fault.ErrStale)
	for _, other := range b.live {
		for i, k := range other.keys {
			if i < len(t.Keys) && isKey(k, t.Keys[i]) {
				return fmt.Errorf("%w; its %v on %s is that of generation %d by now, %v", err, k.Remote, b.nics[i].Device.Name(),
					other.generation, other.memory)
			}
		}
	}
	return err
}

func isKey(k Key, r verbs.RKey) bool { return k.Remote == r }

// Close closes the NICs. While something is registered it does nothing but return fault.ErrInUse. It is an error if a
// NIC again fails to deregister memory; the system frees that when the process ends. A nil backend closes, too.
func (b *Backend) Close() error {
	if b == nil {
		return nil
	}
	stubborn, err := b.shut()
	if err != nil {
		return fmt.Errorf("registrations with RDMA devices: %w", err)
	}
	var errs []error
	for _, m := range stubborn {
		errs = append(errs, m.Close())
	}
	for _, n := range b.nics {
		errs = append(errs, n.PD.Close(), n.Device.Close())
	}
	return errors.Join(errs...)
}

// shut stops registering, unless something is registered.
func (b *Backend) shut() ([]*verbs.MR, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fault.ErrClosed
	}
	if n := len(b.live) + b.making; n > 0 {
		var some string
		for _, g := range slices.Sorted(maps.Keys(b.live))[:min(len(b.live), 4)] {
			some += fmt.Sprintf("; %v", b.live[g].memory)
		}
		return nil, fmt.Errorf("%d are open%s: %w", n, some, fault.ErrInUse)
	}
	b.closed = true
	return b.stubborn, nil
}
