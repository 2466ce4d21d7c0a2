package schedule

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// simulated is how long the schedules of all hosts take on a network where each host sends and receives an element in a
// unit of time, at the same time, and an item has come latency after it has left.
func simulated(p Plan, latency int) int {
	type host struct {
		steps       []Step
		sends, recv int   // indices of the next step that sends, and that receives
		sent, came  int   // when its link is free to send, and when the last item had come
		left        []int // when each step that sends had left
		at          []int // when each step that receives had come, 0 for those that send
	}
	all := make([]host, p.Hosts)
	for me := range all {
		q := p
		q.Me = me
		for c, k := q.Begin(), (Step{}); c.Next(&k); {
			all[me].steps, all[me].at = append(all[me].steps, k), append(all[me].at, 0)
		}
	}
	under := map[[2]int][]int{} // when items come, by who sends and who receives
	next := func(h *host, i int, sends bool) int {
		for i < len(h.steps) && (h.steps[i].Op == Send) != sends {
			i++
		}
		return i
	}
	end := 0
	for progress := true; progress; {
		progress = false
		for me := range all {
			h := &all[me]
			for h.sends = next(h, h.sends, true); h.sends < len(h.steps) && next(h, h.recv, false) > h.sends; h.sends = next(h, h.sends, true) {
				k := h.steps[h.sends]
				h.sent = max(h.sent, slices.Max(append(h.at[:h.sends:h.sends], 0))) + k.N
				h.left = append(h.left, h.sent)
				pair := [2]int{me, k.Peer}
				under[pair] = append(under[pair], h.sent+latency)
				h.sends++
				progress = true
			}
			for h.recv = next(h, h.recv, false); h.recv < len(h.steps); h.recv = next(h, h.recv, false) {
				k := h.steps[h.recv]
				pair := [2]int{k.Peer, me}
				if len(under[pair]) == 0 || k.After > len(h.left) {
					break
				}
				at := max(under[pair][0], h.came+k.N)
				if k.After > 0 {
					at = max(at, h.left[k.After-1])
				}
				h.came, h.at[h.recv], under[pair] = at, at, under[pair][1:]
				h.recv++
				end = max(end, at)
				progress = true
			}
		}
	}
	for me := range all {
		if h := &all[me]; next(h, h.sends, true) < len(h.steps) || next(h, h.recv, false) < len(h.steps) {
			panic("hosts wait for each other")
		}
	}
	return end
}

// What costs say of a way's bytes, and of its messages, is what its schedules take on a network where bytes, or messages, are
// all that takes time.
func TestPrices(t *testing.T) {
	for _, hosts := range []int{2, 3, 4, 5, 8, 13, 16, 32} {
		for way := Ring; way <= ScatterTree; way++ {
			if way == Linear || way == ScatterHalving && hosts&(hosts-1) != 0 { // a Linear plan is that of one host
				continue
			}
			t.Run(fmt.Sprintf("%d hosts, %v %d", hosts, way, way), func(t *testing.T) {
				const count = 1 << 20
				m := Model{Send: 1000, Swap: 1000, Relay: 1000, Around: 1000} // a nanosecond for each byte
				terms := m.Terms(way, hosts, count)
				p := planOf(way, hosts, count, count/256)
				switch way {
				case Chain, ToChain:
					items := 256.0
					terms.Relayed = (float64(hosts) - 2 + items) * count / items
				}
				require.InEpsilon(t, m.Price(terms), simulated(p, 0), 0.01)

				// Messages that a host sends beside each other count, too, but for those of a Pairwise: they do not take nothing.
				const latency = 1 << 30
				messages := m.Terms(way, hosts, hosts).Messages
				if way == Chain || way == ToChain {
					messages = float64(hosts) - 1 // of one item
				}
				got := simulated(planOf(way, hosts, hosts, hosts), latency) / latency
				require.LessOrEqual(t, got, int(messages))
				if way != Pairwise {
					require.GreaterOrEqual(t, 2*got, int(messages))
				}
			})
		}
	}
}

// planOf is a plan with as much of each host, if a way has blocks of them.
func planOf(way Way, hosts, count, item int) Plan {
	p := Plan{Way: way, Hosts: hosts, Line: 1, Count: count, Item: item}
	parts := slices.Repeat([]int{count / hosts}, hosts)
	switch {
	case way == Pairwise:
		p.Count, p.Sends, p.Receives = 0, parts, parts
	case way > Linear:
		p.Begins = begins(parts...)
	}
	return p
}
