package onesided

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// MemoryBetween is what channels, semaphores, windows and handles between hosts cost a rank of a communicator of so many
// ranks that uses them with so many ranks of other hosts, besides its ends and its parts of windows. Pairs of ranks that
// exchange messages, too, share the connections.
func MemoryBetween(ranks, pairs int) []hosts.Term {
	return []hosts.Term{
		{What: "table of ranks", Bytes: ranks * (4 + 8)},
		{What: "calls", Bytes: pairs * transport.MaxCall},
		{What: "data to accumulate, and packets", Bytes: pairs * dataBytes},
		{What: "pairs", Bytes: pairs * (hosts.PairBytes(0) + int(unsafe.Sizeof(far{})) + 2<<10)},
	}
}
