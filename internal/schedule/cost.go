package schedule

import (
	"math"
	"math/bits"
)

// Model is what moving data between hosts costs: nanoseconds, and picoseconds a byte.
type Model struct {
	Message int // a message, beside its bytes
	Send    int // to send a byte to a host that sends nothing meanwhile
	Swap    int // to exchange a byte with another host
	Combine int // to combine a byte
	Relay   int // to pass a byte on in a chain, where a host receives and sends, beside combining it
	Around  int // to send a byte around a ring, whose hosts wait for their neighbours at each hop

	Only Way // this way costs nothing: it is the one that is measured
}

// Default fits TCP between hosts of a processor each, as measured for 2, 4 and 8 hosts and 2 KiB to 4 MiB.
var Default = Model{Message: 16_000, Send: 165, Swap: 250, Combine: 75, Relay: 255, Around: 293}

// terms has what costs are sums of: how many messages, and how many bytes of each kind. Their order is that of prices.
type terms [6]float64

func (m *Model) prices() [len(terms{})]*int {
	return [...]*int{&m.Message, &m.Send, &m.Swap, &m.Combine, &m.Relay, &m.Around}
}

// unit is how many nanoseconds a price of 1 is.
var unit = terms{1, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}

// What ways of blocks cost, in the model's prices, by measurements of 4 and 8 hosts of 4 KiB to 4 MiB.
const (
	apiece  = 0.6  // a message of many that do not wait for each other, to or from one host
	rounded = 1.05 // a byte that is exchanged in rounds, rather than straight
	passed  = 1.3  // a byte that hosts pass on, for the host that has all
)

// terms returns what a way costs for so many bytes, if items are as long as m says.
func (m Model) terms(way Way, hosts, bytes int) (t terms) {
	n, b := float64(hosts), float64(bytes)
	levels := float64(bits.Len(uint(hosts)) - 1)
	rounds := float64(bits.Len(uint(hosts - 1)))
	pairs := math.Exp2(levels) // hosts that go on after folding
	fold := 0.0
	if pairs < n {
		fold = 2
	}
	switch way {
	case Ring:
		part := (n - 1) / n * b
		t = terms{2*n - 2, 0, 0, part, 0, 2 * part}
	case Doubling:
		t = terms{levels + fold, fold * b, levels * b, levels * b, 0, 0}
	case Halving:
		part := (1 - 1/pairs) * b
		t = terms{2*levels + fold, fold * b, 2 * part, part, 0, 0}
	case Chain:
		items := math.Ceil(b / float64(m.Item(Chain, hosts, bytes)))
		t = terms{n - 2 + items, 0, 0, 0, (n - 2 + items) * b / items, 0}
	case Tree:
		t = terms{rounds, rounds * b, 0, 0, 0, 0}
	case Scatter:
		part := (n - 1) / n * b
		t = terms{2 * rounds, part, part, 0, 0, 0}
	case ToChain: // each host that passes an item on has combined it
		items := math.Ceil(b / float64(m.Item(ToChain, hosts, bytes)))
		passed := (n - 2 + items) * b / items
		t = terms{n - 2 + items, 0, 0, passed, passed, 0}
	case Pairwise: // a reduce-scatter combines as much by any way
		t = terms{n - 1, 0, (n - 1) / n * b, 0, 0, 0}
	case GatherDoubling, ScatterHalving:
		t = terms{rounds, 0, rounded * (n - 1) / n * b, 0, 0, 0}
	case Linear:
		t = terms{apiece * (n - 1), (n - 1) / n * b, 0, 0, 0, 0}
	case GatherTree, ScatterTree:
		t = terms{rounds, passed * (n - 1) / n * b, 0, 0, 0, 0}
	case ToTree:
		t = terms{rounds, rounds * b, 0, rounds * b, 0, 0}
	}
	return t
}

// Cost is about how many nanoseconds a way takes for so many bytes.
func (m Model) Cost(way Way, hosts, bytes int) (ns float64) {
	if way == m.Only {
		return 0
	}
	t := m.terms(way, hosts, bytes)
	for i, p := range m.prices() {
		ns += t[i] * float64(*p) * unit[i]
	}
	return ns
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
