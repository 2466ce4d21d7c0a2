package messages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// Programs runs random programs of sends and receives: messages between random ranks, of random sizes, types and kinds
// of memory, as groups or as several requests, in varying order across peers, with delays.
func Programs(ctx context.Context, c *ubcoll.Comm) error {
	programs, err := conform.Number("CONFORM_PROGRAMS", 300)
	if err != nil {
		return err
	}
	all := rand.New(rand.NewPCG(conform.Seed(), 77))
	mine := rand.New(rand.NewPCG(conform.Seed(), 7700+uint64(c.Rank())))
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 1<<20)
	if err != nil {
		return err
	}
	pools := []pool{{bytes: b.Slice(), vec: b.Vec()}, {bytes: make([]byte, 1<<20)}}
	pools[1].vec = ubcoll.Of(pools[1].bytes)
	for k := range programs {
		if err := runProgram(ctx, c, k, all, mine, pools); err != nil {
			return conform.Fail(c, "program %d: %w", k, err)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return b.Free()
}

// pool is memory that messages take pieces of.
type pool struct {
	bytes []byte
	vec   ubcoll.Vec
	used  int
}

func (p *pool) take(n int) ([]byte, ubcoll.Vec, bool) {
	at := (p.used + 7) &^ 7
	if at+n > len(p.bytes) {
		return nil, ubcoll.Vec{}, false
	}
	p.used = at + n
	return p.bytes[at : at+n], p.vec.Slice(at, at+n), true
}

type message struct {
	from, to, bytes, id int
	typ                 dtype.Type
	mem                 []byte
	vec                 ubcoll.Vec
	recv                bool
}

func runProgram(ctx context.Context, c *ubcoll.Comm, k int, all, mine *rand.Rand, pools []pool) error {
	for i := range pools {
		pools[i].used = 0
	}
	types := []dtype.Type{dtype.Uint8, dtype.Int16, dtype.Float32, dtype.Float64}
	var lanes [][]message // this rank's messages, by peer and direction
	at := map[[2]int]int{}
	for id := range all.IntN(3 * c.Size()) {
		m := message{from: all.IntN(c.Size()), to: all.IntN(c.Size()), typ: types[all.IntN(len(types))], id: 100*k + id}
		m.bytes = all.IntN([]int{113, 113, 4097, 20000, 200000}[all.IntN(5)]) &^ 7
		for _, recv := range []bool{false, true} {
			peer := m.from
			if !recv {
				peer = m.to
			}
			if c.Rank() != m.from && !recv || c.Rank() != m.to && recv {
				continue
			}
			m.recv = recv
			var ok bool
			p := mine.IntN(2)
			if m.mem, m.vec, ok = pools[p].take(m.bytes); !ok {
				m.mem = make([]byte, m.bytes)
				m.vec = ubcoll.Of(m.mem)
			}
			for i := range m.mem {
				m.mem[i] = 0
				if !recv {
					m.mem[i] = value(m.id, m.from, i)
				}
			}
			key := [2]int{peer, 0}
			if recv {
				key[1] = 1
			}
			if _, ok := at[key]; !ok {
				at[key] = len(lanes)
				lanes = append(lanes, nil)
			}
			lanes[at[key]] = append(lanes[at[key]], m)
		}
	}
	return perform(ctx, c, lanes, mine)
}

// perform mixes the lanes at random, keeping the order within each, cuts the whole into requests, and waits for them in
// some order.
func perform(ctx context.Context, c *ubcoll.Comm, lanes [][]message, mine *rand.Rand) error {
	var order []message
	left := append([][]message(nil), lanes...)
	for len(left) > 0 {
		i := mine.IntN(len(left))
		order = append(order, left[i][0])
		if left[i] = left[i][1:]; len(left[i]) == 0 {
			left = append(left[:i], left[i+1:]...)
		}
	}
	delay := func() {
		if mine.IntN(20) == 0 {
			time.Sleep(time.Duration(mine.IntN(100)) * time.Microsecond)
		}
	}
	groups := make([]p2p.Exchange, 1+mine.IntN(3))
	var requests []*p2p.Request
	for i := range groups {
		from, to := len(order)*i/len(groups), len(order)*(i+1)/len(groups)
		for _, m := range order[from:to] {
			if v := m.vec.As(m.typ); m.recv {
				groups[i].Recv(m.from, v)
			} else {
				groups[i].Send(m.to, v)
			}
		}
		delay()
		r, err := groups[i].Start(ctx, c)
		if err != nil {
			return err
		}
		requests = append(requests, r)
	}
	mine.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	for _, r := range requests {
		delay()
		if mine.IntN(2) == 0 {
			if _, err := r.Test(); err != nil {
				return err
			}
		}
		if err := r.Wait(ctx); err != nil { // this moves the others, too
			return err
		}
	}
	for _, m := range order {
		for i := range m.mem {
			if want := value(m.id, m.from, i); m.mem[i] != want {
				return fmt.Errorf("message %d of %d bytes from %d to %d (receive %v): byte %d is %#x, not %#x", m.id, m.bytes,
					m.from, m.to, m.recv, i, m.mem[i], want)
			}
		}
	}
	return nil
}
