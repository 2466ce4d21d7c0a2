package schedule

import (
	"math"
	"math/bits"
)

// Model is what moving data between hosts costs. The unit is the time that a host takes to send a byte, and that byte's
// receiver to receive it.
type Model struct {
	Message float64 // a message costs so much beside its bytes
	Combine float64 // combining a byte
	Relay   float64 // passing a byte on in a chain, where a host receives and sends
	Around  float64 // a byte in a ring: its hosts wait for their neighbours at each hop
}

// Default fits TCP between hosts of a processor each, as measured for 2, 4 and 8 hosts and 2 KiB to 4 MiB.
var Default = Model{Message: 64 << 10, Combine: 0.3, Relay: 1.5, Around: 1.15}

// Cost is about how long a way takes for so many bytes.
func (m Model) Cost(way Way, hosts, bytes int) float64 {
	n, b := float64(hosts), float64(bytes)
	levels := float64(bits.Len(uint(hosts)) - 1)
	pairs := math.Exp2(levels) // hosts that go on after folding
	fold := 0.0
	if pairs < n {
		fold = 2 * (m.Message + b)
	}
	switch way {
	case Ring:
		return (2*n-2)*m.Message + (n-1)/n*b*(2+m.Combine)*m.Around
	case Doubling:
		return levels*(m.Message+b*(1+m.Combine)) + fold
	case Halving:
		return 2*levels*m.Message + (1-1/pairs)*b*(2+m.Combine) + fold
	case Chain:
		items := math.Ceil(b / float64(m.Item(Chain, hosts, bytes)))
		return (n - 2 + items) * (m.Message + m.Relay*b/items)
	case Tree:
		return float64(bits.Len(uint(hosts-1))) * (m.Message + b)
	case Scatter:
		return 2*float64(bits.Len(uint(hosts-1)))*m.Message + 2*(n-1)/n*b
	}
	return math.Inf(1)
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

// Item is how many bytes an item of a way has, at most.
func (m Model) Item(way Way, hosts, bytes int) int {
	switch way {
	case Ring, Scatter:
		bytes = (bytes + hosts - 1) / hosts
	case Chain:
		// The last host has everything when hosts-2 items have passed, and then all items. That is soonest with so many.
		items := int(math.Sqrt(float64(hosts-2) * float64(bytes) / m.Message))
		bytes /= max(items, 1)
	}
	return min((bytes+63)&^63, LargestItem)
}
