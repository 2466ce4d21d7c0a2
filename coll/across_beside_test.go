package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
)

// TestAcrossSideBySide: operations of several communicators at the same time share a rank's landing memory. One that
// finds it taken has other memory, and neither waits for the other.
func TestAcrossSideBySide(t *testing.T) {
	for i, hosts := range []string{"aabbc", "ab", "abcd"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			requireAll(t, onHosts(t, hosts, func(c *ubcoll.Comm) error {
				cs := []*ubcoll.Comm{c}
				for range 2 {
					d, err := c.Dup(context.Background())
					if err != nil {
						return err
					}
					cs = append(cs, d)
				}
				var all sync.WaitGroup
				errs := make([]error, len(cs))
				for i, c := range cs {
					all.Go(func() {
						for turn := 0; turn < 6 && errs[i] == nil; turn++ {
							n := 200000 // by ring and chain
							if turn%2 == 1 {
								n = 100000 // by recursive doubling
							}
							errs[i] = checkAcross(c, n+10000*i, turn)
						}
					})
				}
				all.Wait()
				return errors.Join(errors.Join(errs...), cs[1].Close(), cs[2].Close())
			}))
		})
	}
}

// lateNode is a node that shows nothing that comes to posted places while held is set. These are those of proposals; the
// places of items are granted.
type lateNode struct {
	transport.Node
	held *atomic.Bool
}

func (n lateNode) Endpoint(comm uint64, peer int, expected bool) transport.Endpoint {
	return &lateEndpoint{Endpoint: n.Node.Endpoint(comm, peer, expected), held: n.held, words: map[int]*atomic.Uint64{}}
}

type lateEndpoint struct {
	transport.Endpoint
	held  *atomic.Bool
	words map[int]*atomic.Uint64 // by posted place
}

func (e *lateEndpoint) Post(place int, seq uint64, p unsafe.Pointer, n int) {
	if e.words[place] == nil {
		e.words[place] = new(atomic.Uint64)
	}
	e.Endpoint.Post(place, seq, p, n)
}

func (e *lateEndpoint) Word(place int) *atomic.Uint64 {
	if w := e.words[place]; w != nil {
		return w
	}
	return e.Endpoint.Word(place)
}

func (e *lateEndpoint) Poll() {
	e.Endpoint.Poll()
	for place, w := range e.words {
		if !e.held.Load() {
			w.Store(e.Endpoint.Word(place).Load())
		}
	}
}

// TestAcrossEarly: where peers can access the buffers, the result is there before the hosts have agreed. No call returns
// before they have.
func TestAcrossEarly(t *testing.T) {
	if race.Enabled {
		t.Skip("it looks at memory that ranks write")
	}
	const n, root = 50000, 1
	for _, hosts := range []string{"ab", "aabb", "aaabbcc", "aabbccdd"} {
		for _, k := range []struct {
			name string
			want float32
			call func(c *ubcoll.Comm, dst, src []float32) error
		}{
			{"all-reduce", float32(len(hosts)), func(c *ubcoll.Comm, dst, src []float32) error {
				return coll.AllReduce(context.Background(), c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)
			}},
			{"broadcast", 1, func(c *ubcoll.Comm, dst, src []float32) error {
				if c.Rank() == root {
					copy(dst, src)
				}
				return coll.Broadcast(context.Background(), c, ubcoll.Of(dst), root)
			}},
		} {
			t.Run(hosts+"/"+k.name, func(t *testing.T) {
				f := transporttest.New(t, transporttest.Options{})
				var held atomic.Bool
				network := func(c transport.Config) (transport.Node, error) {
					node, err := f.Node(c)
					return lateNode{node, &held}, err
				}
				var ready, over sync.WaitGroup
				ready.Add(len(hosts))
				begin, all := make(chan struct{}), make([][]float32, len(hosts))
				var ended atomic.Int32
				over.Go(func() {
					requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
						src, dst, free, err := twoBuffers(c, n, true, false)
						if err == nil {
							err = checkAcross(c, n, 0) // makes the links
						}
						clear(dst)
						for i := range src {
							src[i] = 1
						}
						all[c.Rank()] = dst
						ready.Done()
						<-begin
						err = errors.Join(err, k.call(c, dst, src))
						ended.Add(1)
						return errors.Join(err, coll.Barrier(context.Background(), c), free())
					}))
				})
				ready.Wait()
				held.Store(true)
				close(begin)
				there := testkit.UntilFor(10*time.Second, func() bool {
					for _, dst := range all {
						for i := range dst {
							if (*atomic.Uint32)(unsafe.Pointer(&dst[i])).Load() != math.Float32bits(k.want) {
								return false
							}
						}
					}
					return true
				})
				assert.True(t, there, "data wait for the verdict")
				assert.Zero(t, ended.Load(), "calls return without a verdict")
				held.Store(false)
				over.Wait()
			})
		}
	}
}

// stalledNode is a node whose polls wait while stall is locked.
type stalledNode struct {
	transport.Node
	stall *sync.Mutex
}

func (n stalledNode) Endpoint(comm uint64, peer int, expected bool) transport.Endpoint {
	return stalledEndpoint{n.Node.Endpoint(comm, peer, expected), n.stall}
}

type stalledEndpoint struct {
	transport.Endpoint
	stall *sync.Mutex
}

func (e stalledEndpoint) Poll() {
	e.stall.Lock()
	defer e.stall.Unlock()
	e.Endpoint.Poll()
}

// TestAcrossEarlyEnds: after a bad verdict no call returns while an owner of the host may still use the team's buffers. An
// owner that hears it late does not take the grants of the next operation, where another host is already, for its own.
func TestAcrossEarlyEnds(t *testing.T) {
	const hosts, slow = "aaabb", 1
	f := transporttest.New(t, transporttest.Options{})
	var stall sync.Mutex
	network := func(c transport.Config) (transport.Node, error) {
		node, err := f.Node(c)
		if c.Rank == slow {
			node = stalledNode{node, &stall}
		}
		return node, err
	}
	var ready, over sync.WaitGroup
	ready.Add(len(hosts))
	begin := make(chan struct{})
	var ended [len(hosts)]atomic.Bool
	over.Go(func() {
		requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
			src, dst, free, err := twoBuffers(c, 50000, true, false)
			if err == nil {
				err = checkAcross(c, 50000, 0) // makes the links
			}
			ready.Done()
			<-begin
			var is error
			if hosts[c.Rank()] == 'a' {
				is = coll.AllReduce(context.Background(), c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)
			} else {
				is = coll.Barrier(context.Background(), c)
			}
			ended[c.Rank()].Store(true)
			if !errors.Is(is, ubcoll.ErrMismatch) {
				err = errors.Join(err, fmt.Errorf("rank %d: %w", c.Rank(), is))
			}
			return errors.Join(err, checkAcross(c, 20000, 0), free())
		}))
	})
	ready.Wait()
	stall.Lock()
	close(begin)
	testkit.Eventually(t, func() bool { return ended[3].Load() && ended[4].Load() })
	time.Sleep(50 * time.Millisecond)
	for r := range slow + 2 {
		assert.False(t, ended[r].Load(), "rank %d has returned", r)
	}
	stall.Unlock()
	over.Wait()
}
