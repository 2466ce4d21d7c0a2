package register

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Rapid("checks=300", "steps=100") // longer runs than by default; testdata has only the scripts
	os.Exit(testkit.Main(m))
}

// fake is a backend for tests: it moves nothing, and remembers what is registered.
type fake struct {
	kind           BackendKind
	log            func(string)  // called for every call; or nil
	hold           chan struct{} // Register waits until it is closed; or nil
	entered        chan struct{} // receives a value when Register is called; or nil
	mu             sync.Mutex
	regErr, derErr error
	live           map[*fakeHandle]bool
	registers      int
	enteredOut     chan struct{} // if not nil, Deregister sends here and waits for holdOut
	holdOut        chan struct{}
	deregisters    int
}

type fakeHandle struct {
	kind BackendKind
	mem  Memory
	gone bool // without a lock, so that the race detector sees a use after Deregister
}

var errFake = errors.New("fake failure")

func (f *fake) Kind() BackendKind { return f.kind }

func (f *fake) Register(m Memory) (any, error) {
	hold := f.hold
	if f.entered != nil {
		f.entered <- struct{}{}
	}
	if hold != nil {
		<-hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registers++
	f.say("register", m, f.regErr)
	if f.regErr != nil {
		return nil, f.regErr
	}
	if f.live == nil {
		f.live = map[*fakeHandle]bool{}
	}
	h := &fakeHandle{kind: f.kind, mem: m}
	f.live[h] = true
	return h, nil
}

func (f *fake) Deregister(m Memory, handle any) error {
	if f.holdOut != nil {
		f.enteredOut <- struct{}{}
		<-f.holdOut
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h := handle.(*fakeHandle)
	if !f.live[h] || h.mem != m || h.gone {
		panic("deregistered what is not registered")
	}
	delete(f.live, h)
	h.gone = true
	f.deregisters++
	f.say("deregister", m, f.derErr)
	return f.derErr
}

func (f *fake) say(what string, m Memory, err error) {
	if f.log == nil {
		return
	}
	s := fmt.Sprintf("%v %s memory %d generation %d", f.kind, what, m.ID, m.Generation)
	if err != nil {
		s += ": " + err.Error()
	}
	f.log(s)
}

func (f *fake) fail(register, deregister error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.regErr, f.derErr = register, deregister
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// calls is how often Register and Deregister were called.
func (f *fake) calls() [2]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return [2]int{f.registers, f.deregisters}
}

// errList is an OnError that keeps the errors.
type errList struct {
	mu   sync.Mutex
	errs []error
}

func (l *errList) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

func (l *errList) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s []string
	for _, err := range l.errs {
		s = append(s, err.Error())
	}
	return strings.Join(s, "\n")
}

// mem is an allocation for tests.
func mem(id, generation uint64, base uintptr, bytes int) Memory {
	return Memory{ID: id, Generation: generation, Base: base, Bytes: bytes, Device: hw.Host, Kind: "arena"}
}

func newCache(t *testing.T, config Config) *Cache {
	t.Helper()
	config.PageSize = 4096
	c, err := New(config)
	require.NoError(t, err)
	return c
}

func mustRegister(t *testing.T, c *Cache, m Memory, addr uintptr, n int) *Ref {
	t.Helper()
	r, err := c.Register(m, addr, n)
	require.NoError(t, err)
	return r
}

func requireHit(t *testing.T, c *Cache, addr uintptr, n int) {
	t.Helper()
	cl := c.FindLocal(addr, n, 0)
	require.NotNil(t, cl, "%s", c.Explain(addr, n))
	require.LessOrEqual(t, cl.Addr(), addr)
	require.GreaterOrEqual(t, cl.Addr()+uintptr(cl.Len()), addr+uintptr(n))
	cl.Release()
}

func requireMiss(t *testing.T, c *Cache, addr uintptr, n int) {
	t.Helper()
	require.Nil(t, c.FindLocal(addr, n, 0), "%s", c.Explain(addr, n))
}
