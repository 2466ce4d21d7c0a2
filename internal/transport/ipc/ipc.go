// Package ipc maps the memory of other ranks on this host. Each rank's arenas are memory files. Peers open them through
// /proc/PID/fd of their owner or, where that is not allowed, receive them over a Unix socket. Ranks import an arena
// when its owner publishes it, in the background or while they wait, so that calls find it mapped. Device memory is
// exported and imported through a separate ledger; each of the driver's allocations is an extent.
package ipc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// Transport is one rank's access to its peers' memory.
type Transport struct {
	heap   *mem.Heap
	secret []byte
	server *server // nil if there can be no socket

	watch shm.Watch // watches the peers' processes

	mu     sync.Mutex
	peers  map[uint64]*peer // by domain
	closed atomic.Bool
	seen   atomic.Uint32          // the doorbell's value when Progress last ran
	done   chan struct{}          // closed when the importer has ended
	device atomic.Pointer[device] // nil if this rank uses none
}

// New makes the transport of the rank whose heap is h, with the job's secret. The caller closes it.
func New(h *mem.Heap, secret []byte) (engine.IPC, error) {
	t := &Transport{heap: h, secret: secret, peers: map[uint64]*peer{}}
	if h.GoHeap() {
		return t, nil
	}
	t.server = serve(h, secret, t.lend)
	h.OnArena(t.announce)
	t.done = make(chan struct{})
	go t.importer()
	return t, nil
}

// card is what peers need to access this rank's memory.
type card struct {
	Domain    uint64      `json:"domain"`
	Process   shm.Process `json:"process"`
	Directory shm.Ref     `json:"directory"` // zero for a Go-heap domain
	Socket    string      `json:"socket,omitempty"`

	Ledger *mem.Location `json:"ledger,omitempty"` // nil if the rank uses no device
}

// Card implements team.Transport.
func (t *Transport) Card() (json.RawMessage, error) {
	self, err := shm.Self()
	if err != nil {
		return nil, err
	}
	k := card{Domain: t.heap.Domain, Process: self, Directory: t.heap.DirectoryRef()}
	if t.server != nil {
		k.Socket = t.server.name
	}
	if d := t.device.Load(); d != nil {
		k.Ledger = &d.page.At
	}
	return json.Marshal(k)
}

// Attach implements team.Transport. Communicators of one domain share peers and their mappings.
func (t *Transport) Attach(ctx context.Context, raw json.RawMessage) (team.PeerMemory, error) {
	var k card
	if err := json.Unmarshal(raw, &k); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		return nil, fmt.Errorf("attach: %w", fault.ErrClosed)
	}
	if p := t.peers[k.Domain]; p != nil {
		return p, nil
	}
	p := &peer{t: t, card: k, ctx: ctx, number: len(t.peers)}
	p.arenas.Store(&[]arena{})
	if k.Directory == (shm.Ref{}) {
		if p.heap = mem.Find(k.Domain); p.heap == nil {
			return nil, fmt.Errorf("domain %#x is not in this process: %w", k.Domain, fault.ErrStale)
		}
		p.dir = p.heap.Directory()
	} else if err := p.open(); err != nil {
		return nil, err
	}
	if err := p.follow(); err != nil {
		return nil, errors.Join(err, p.unmap())
	}
	if d := t.device.Load(); d != nil && k.Ledger != nil {
		var err error
		if p.remote, err = d.meet(p, *k.Ledger); err != nil {
			return nil, errors.Join(err, p.unmap())
		}
	}
	t.peers[k.Domain] = p
	return p, nil
}

// announce tells the peers that this rank has a new arena.
func (t *Transport) announce() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		p.ring()
	}
}

// importer imports what peers publish while this rank does not wait. It sleeps on this rank's doorbell. It does not
// pre-fault: each rank would fill the page tables of all other ranks' arenas, on processors of ranks that run
// operations.
func (t *Transport) importer() {
	defer close(t.done)
	bell := &t.heap.Directory().Doorbell
	for !t.closed.Load() {
		v := bell.Load()
		t.Progress()
		d := t.device.Load()
		if t.seen.Load() != v || d != nil && d.looked.Load() != v { // another goroutine held a lock
			time.Sleep(time.Millisecond)
			continue
		}
		if !t.closed.Load() {
			shm.FutexWait((*uint32)(unsafe.Pointer(bell)), v, int64(time.Second))
		}
	}
}

// Progress implements team.Transport. If nothing is pending, it costs a load and a comparison.
func (t *Transport) Progress() {
	bell := &t.heap.Directory().Doorbell
	if v := bell.Load(); t.seen.Load() != v && t.mu.TryLock() {
		t.seen.Store(v)
		for _, p := range t.peers {
			p.sync()
		}
		t.mu.Unlock()
	}
	if d := t.device.Load(); d != nil {
		d.progress(bell)
	}
}

// Look implements team.Transport.
func (t *Transport) Look() { t.watch.Look() }

// Close implements team.Transport.
func (t *Transport) Close() error {
	t.closed.Store(true)
	if t.done != nil {
		bell := &t.heap.Directory().Doorbell
		bell.Add(1)
		shm.FutexWake((*uint32)(unsafe.Pointer(bell)))
		<-t.done
	}
	var errs []error
	if d := t.device.Load(); d != nil {
		errs = append(errs, d.close())
	}
	if t.server != nil {
		t.server.close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		errs = append(errs, p.unmap())
	}
	t.peers = nil
	return errors.Join(append(errs, t.watch.Close())...)
}

// Kind implements register.Backend.
func (t *Transport) Kind() register.BackendKind { return register.IPC }

// Register implements register.Backend. Peers can already access an allocation from an arena, so its handle is its
// location. The handle of device memory is its location in its extent, with the extent's number in place of the
// arena's.
func (t *Transport) Register(m register.Memory) (any, error) {
	a := t.heap.Lookup(m.Base, m.Bytes)
	switch {
	case a == nil || a.At.Generation != m.Generation:
		return nil, fmt.Errorf("[%#x,+%d) is no allocation of this rank: %w", m.Base, m.Bytes, fault.ErrStale)
	case !a.Dev.IsHost():
		e, err := t.export(a)
		if err != nil {
			return nil, err
		}
		return mem.Location{Arena: e.number, Slot: a.At.Slot, Generation: a.At.Generation,
			Offset: uint64(cuda.Addr(a.Base()) - e.memory.Base)}, nil
	case a.Origin != mem.Arena:
		return nil, fmt.Errorf("adopted memory has no file that peers could map (use Alloc): %w", fault.ErrNotSupported)
	}
	return a.At, nil
}

// Deregister implements register.Backend. Peers keep an arena mapped: its handles end with the generation. Device
// memory is withdrawn; this waits for the peers, for some seconds at most. After a failure the owner of adopted memory
// gets it back no earlier than when the heap closes.
func (t *Transport) Deregister(m register.Memory, _ any) error {
	err := t.withdraw(withdrawTimeout, m.Generation)
	if err != nil {
		t.heap.Keep(m.Base, m.Bytes, m.Generation)
	}
	return err
}

// peer is another rank's memory.
type peer struct {
	t    *Transport
	card card
	ctx  context.Context // of Attach
	heap *mem.Heap       // for Go-heap domains, which are in this process
	dir  *mem.Directory

	process *shm.Watched // nil for this process

	number int     // number of peers attached before it
	remote *remote // its device memory; nil if one of the two ranks uses no device

	mu     sync.Mutex              // held to import
	arenas atomic.Pointer[[]arena] // imported so far; only grows
	failed error                   // why the last background import failed; t.mu guards it
}

type arena struct {
	base unsafe.Pointer
	size int
}

// fetch opens one of the peer's memory files.
func (p *peer) fetch(ctx context.Context, r shm.Ref) (*shm.File, error) {
	var f *shm.File
	err := error(os.ErrPermission)
	if !avoidProc.Load() {
		f, err = shm.Open(r)
	}
	if err == nil || errors.Is(err, fault.ErrPeerLost) || errors.Is(err, fault.ErrStale) {
		return f, err
	}
	if p.card.Socket == "" {
		return nil, p.unreachable(err, errNoSocket)
	}
	f, serr := request(ctx, p.card.Socket, p.t.secret, r)
	if serr != nil {
		return nil, p.unreachable(err, p.lost(serr))
	}
	return f, nil
}

// lost returns err, why the peer's socket gave no descriptor, or that the peer has died. The system closes the socket of
// a process that is killed some time before it tells that the process has ended, so lost waits for that.
func (p *peer) lost(err error) error {
	if p.process == nil || errors.Is(err, os.ErrPermission) { // then the peer has answered
		return err
	}
	for end := time.Now().Add(deathTime); ; time.Sleep(time.Millisecond) {
		if p.t.Look(); p.Dead() {
			return fmt.Errorf("%v is gone: %w: %w", p.card.Process, err, fault.ErrPeerLost)
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// deathTime is how long lost waits.
const deathTime = time.Second

// unreachable returns the error if neither /proc nor the peer's socket has helped. Processes that may not see each
// other are treated like processes on different hosts.
func (p *peer) unreachable(proc, socket error) error {
	err := fmt.Errorf("%w; over its socket: %w", proc, socket)
	if errors.Is(proc, os.ErrPermission) && !errors.Is(socket, fault.ErrPeerLost) {
		err = fmt.Errorf("%v cannot be reached from here: %w: %w", p.card.Process, err, fault.ErrNotSupported)
	}
	return err
}

// follow watches the peer's process, unless it is this one.
func (p *peer) follow() error {
	self, err := shm.Self()
	if err != nil || p.card.Process == self {
		return err
	}
	p.process, err = p.t.watch.Add(p.card.Process)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	if p.card.Socket == "" {
		return p.unreachable(err, errNoSocket)
	}
	fd, serr := requestFD(p.ctx, p.card.Socket, p.t.secret, processRequest)
	if serr != nil {
		return p.unreachable(err, serr)
	}
	p.process, err = p.t.watch.Adopt(p.card.Process, fd)
	return err
}

// Dead implements team.PeerMemory.
func (p *peer) Dead() bool { return p.process.Dead() }

var errNoSocket = errors.New("it has none")

// avoidProc makes tests use the socket.
var avoidProc atomic.Bool

func (p *peer) open() error {
	if p.card.Directory.Process != p.card.Process || p.card.Directory.Size != mem.DirectorySize {
		return fmt.Errorf("memory directory of %v is not what it should be: %w", p.card.Process, fault.ErrStale)
	}
	f, err := p.fetch(p.ctx, p.card.Directory)
	if err != nil {
		return err
	}
	defer f.Close()
	ptr, err := f.Map(0, mem.DirectorySize, true)
	if err != nil {
		return err
	}
	if p.dir, err = mem.CheckDirectory(ptr, p.card.Domain); err != nil {
		return errors.Join(err, shm.Unmap(ptr, mem.DirectorySize))
	}
	p.sync()
	if p.failed != nil {
		return errors.Join(p.failed, p.unmap())
	}
	return nil
}

// ring makes the peer look at this rank's directory and ledger.
func (p *peer) ring() {
	p.dir.Doorbell.Add(1)
	shm.FutexWake((*uint32)(unsafe.Pointer(&p.dir.Doorbell)))
}

// sync imports all arenas that the peer has published. The caller holds t.mu.
func (p *peer) sync() {
	if p.heap == nil {
		p.failed = p.grow(p.dir.Arenas())
	}
}

// grow imports arenas until there are n.
func (p *peer) grow(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		have := *p.arenas.Load()
		if len(have) >= n {
			return nil
		}
		a, err := p.load(len(have))
		if err != nil {
			return err
		}
		grown := append(have[:len(have):len(have)], a)
		p.arenas.Store(&grown)
	}
}

// openArena opens the file of arena i. It is nil for an arena that its owner has released.
func (p *peer) openArena(i int) (f *shm.File, err error) {
	ref := p.dir.Arena(i, p.card.Process)
	if ref.Size == 0 {
		return nil, nil
	}
	if ref.Size < 0 || ref.Size != shm.RoundUp(ref.Size) {
		return nil, fmt.Errorf("arena %d of %v has size %d: %w", i, p.card.Process, ref.Size, fault.ErrStale)
	}
	ctx, cancel := clock.WithTimeout(context.Background(), requestTimeout, nil)
	defer cancel()
	if f, err = p.fetch(ctx, ref); err != nil && p.dir.Arena(i, p.card.Process).Size == 0 { // released just now
		return nil, nil
	}
	return f, err
}

// load imports arena i. An arena that its owner has released gets size 0, so that no location is inside it.
func (p *peer) load(i int) (arena, error) {
	f, err := p.openArena(i)
	if f == nil {
		return arena{}, err
	}
	defer f.Close()
	base, err := f.Map(0, f.Size(), false)
	return arena{base, f.Size()}, err
}

// Resolve implements team.PeerMemory.
func (p *peer) Resolve(l mem.Location, n int) (unsafe.Pointer, error) {
	if p.heap != nil {
		return p.heap.Resolve(l, n)
	}
	have := *p.arenas.Load()
	if int(l.Arena) >= len(have) {
		return p.resolveNew(l, n)
	}
	a := have[l.Arena]
	if n < 0 || l.Offset > uint64(a.size) || n > a.size-int(l.Offset) {
		return nil, fmt.Errorf("%d bytes at %+v are outside the arena of %d: %w", n, l, a.size, fault.ErrStale)
	}
	return unsafe.Add(a.base, l.Offset), nil
}

// resolveNew resolves a location in an arena that is not imported yet.
func (p *peer) resolveNew(l mem.Location, n int) (unsafe.Pointer, error) {
	if int(l.Arena) >= p.dir.Arenas() {
		return nil, fmt.Errorf("arena %d of %d: %w", l.Arena, p.dir.Arenas(), fault.ErrStale)
	}
	if err := p.grow(int(l.Arena) + 1); err != nil {
		return nil, err
	}
	return p.Resolve(l, n)
}

// ReadOnly implements team.PeerMemory.
func (p *peer) ReadOnly(l mem.Location, n int) (unsafe.Pointer, func() error, error) {
	if p.heap != nil { // on the Go heap, for the race detector, stores do not fault
		ptr, err := p.heap.Resolve(l, n)
		return ptr, func() error { return nil }, err
	}
	if _, err := p.Resolve(l, n); err != nil {
		return nil, nil, err
	}
	f, err := p.openArena(int(l.Arena))
	if err != nil {
		return nil, nil, err
	}
	if f == nil {
		return nil, nil, fmt.Errorf("arena %d of %v was released: %w", l.Arena, p.card.Process, fault.ErrStale)
	}
	defer f.Close()
	size := shm.RoundUp(n)
	ptr, err := f.MapReadOnly(int(l.Offset), size)
	return ptr, func() error { return shm.Unmap(ptr, size) }, err
}

// Live implements team.PeerMemory.
func (p *peer) Live(l mem.Location) bool { return p.dir.Live(l) }

// Close implements team.PeerMemory. The mappings belong to the domain, and end with it.
func (p *peer) Close() error { return nil }

func (p *peer) unmap() error {
	if p.heap != nil {
		return nil
	}
	var errs []error
	for _, a := range *p.arenas.Load() {
		if a.size > 0 {
			errs = append(errs, shm.Unmap(a.base, a.size))
		}
	}
	return errors.Join(append(errs, shm.Unmap(unsafe.Pointer(p.dir), mem.DirectorySize))...)
}
