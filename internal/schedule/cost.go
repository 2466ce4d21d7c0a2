package schedule

import (
	"math"
	"math/bits"
)

// Model is what moving data between hosts costs: nanoseconds, and picoseconds a byte.
type Model struct {
	Agree   int // a round of messages by which the hosts agree
	Message int // a message with data, beside its bytes
	Send    int // to send a byte to a host that sends nothing meanwhile
	Swap    int // to exchange a byte with another host
	Combine int // to combine a byte
	Relay   int // to pass a byte on in a chain, where a host receives and sends, beside combining it
	Around  int // to send a byte around a ring, whose hosts wait for their neighbours at each hop

	Only Way // this way costs nothing: it is the one that is measured
}

// Default fits TCP between hosts of a processor each, as measured for 2, 4 and 8 hosts and 2 KiB to 4 MiB.
var Default = Model{Agree: 9_500, Message: 16_000, Send: 165, Swap: 250, Combine: 75, Relay: 255, Around: 293}

// DefaultRDMA is an estimate of RDMA at 100 Gbit/s, from what cards are said to do. Nobody has measured it.
var DefaultRDMA = Model{Agree: 4_000, Message: 5_000, Send: 85, Swap: 100, Combine: 75, Relay: 130, Around: 150}

// Terms is what costs are sums of: rounds of the agreement, messages, and bytes of each kind, in the order of a model's
// prices.
type Terms struct{ Rounds, Messages, Sent, Swapped, Combined, Relayed, Around float64 }

const prices = 7

func (t *Terms) all() [prices]float64 {
	return [...]float64{t.Rounds, t.Messages, t.Sent, t.Swapped, t.Combined, t.Relayed, t.Around}
}

func (m *Model) prices() [prices]*int {
	return [...]*int{&m.Agree, &m.Message, &m.Send, &m.Swap, &m.Combine, &m.Relay, &m.Around}
}

// unit is how many nanoseconds a price of 1 is.
var unit = [prices]float64{1, 1, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}

// What ways of blocks cost, in the model's prices, by measurements of 4 and 8 hosts of 4 KiB to 4 MiB.
const (
	apiece  = 0.6     // a message of many that do not wait for each other, to or from one host
	rounded = 1.0 / 6 // a byte that is exchanged in rounds, beside the exchange: it is in other places than its blocks
	passed  = 0.66    // a byte that hosts pass on, for the host that has all
)

// Terms returns what a way consists of for so many bytes of a lane, if items are as long as m says. Of blocks, they are
// those of all hosts together, and of what travels with the agreement those that a host sends in all rounds.
func (m Model) Terms(way Way, hosts, bytes int) (t Terms) {
	n, b := float64(hosts), float64(bytes)
	levels := float64(bits.Len(uint(hosts)) - 1)
	rounds := float64(bits.Len(uint(hosts - 1)))
	pairs := math.Exp2(levels) // hosts that go on after folding
	part := (n - 1) / n * b
	fold := 0.0
	if pairs < n {
		fold = 2
	}
	t.Rounds = rounds
	switch way {
	case Folded, Shared, Routed:
		t.Swapped = b
	case Ring:
		t.Messages, t.Combined, t.Around = 2*n-2, part, 2*part
	case Doubling:
		t.Messages, t.Sent, t.Swapped, t.Combined = levels+fold, fold*b, levels*b, levels*b
	case Halving:
		part := (1 - 1/pairs) * b
		t.Messages, t.Sent, t.Swapped, t.Combined = 2*levels+fold, fold*b, 2*part, part
	case Chain, ToChain: // each host that passes an item on to the root has combined it
		items := math.Ceil(b / float64(m.Item(way, hosts, bytes)))
		t.Messages, t.Relayed = n-2+items, (n-2+items)*b/items
		if way == ToChain {
			t.Combined = t.Relayed
		}
	case Tree:
		t.Messages, t.Sent = rounds, rounds*b
	case Scatter:
		t.Messages, t.Sent, t.Swapped = 2*rounds, part, part
	case Pairwise: // a reduce-scatter combines as much by any way
		t.Messages, t.Swapped = n-1, part
	case GatherDoubling, ScatterHalving:
		t.Messages, t.Swapped, t.Combined = rounds, part, rounded*part
	case Linear:
		t.Messages, t.Sent = apiece*(n-1), part
	case GatherTree, ScatterTree:
		t.Messages, t.Sent, t.Combined = rounds, part, passed*part
	case ToTree:
		t.Messages, t.Sent, t.Combined = rounds, rounds*b, rounds*b
	}
	return t
}

// Price is about how many nanoseconds that takes.
func (m Model) Price(t Terms) (ns float64) {
	all := t.all()
	for i, p := range m.prices() {
		ns += all[i] * float64(*p) * unit[i]
	}
	return ns
}

// Cost is about how many nanoseconds a way takes for so many bytes.
func (m Model) Cost(way Way, hosts, bytes int) (ns float64) {
	if way == m.Only {
		return 0
	}
	return m.Price(m.Terms(way, hosts, bytes))
}

// Best is the way of ways that costs least. All hosts choose alike.
func (m Model) Best(ways []Way, hosts, bytes int) (best Way) {
	least := math.Inf(1)
	for _, w := range ways {
		if c := m.Cost(w, hosts, bytes); c < least {
			best, least = w, c
		}
	}
	return best
}

// LargestItem is about as much as one call on a socket moves, in bytes.
const LargestItem = 512 << 10

// leastItem keeps a table's odd costs from cutting data into crumbs.
const leastItem = 4 << 10

// Item is how many bytes an item of a way has, at most.
func (m Model) Item(way Way, hosts, bytes int) int {
	switch way {
	case Ring:
		bytes = (bytes + hosts - 1) / hosts
	case Chain, ToChain:
		// The last host has everything when hosts-2 items have passed, and then all items. That is soonest with so many.
		pass := float64(m.Relay)
		if way == ToChain {
			pass += float64(m.Combine)
		}
		items := int(math.Sqrt(float64(hosts-2) * float64(bytes) * pass * 1e-3 / float64(max(m.Message, 1))))
		bytes = max(bytes/max(items, 1), min(bytes, leastItem))
	}
	return min((bytes+63)&^63, LargestItem)
}
