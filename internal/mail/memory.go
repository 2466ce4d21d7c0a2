package mail

import "github.com/ubcoll/ubcoll/internal/hosts"

// MemoryBetween is what messages between hosts cost a rank of a communicator of so many ranks that has exchanged messages
// with so many ranks of other hosts. What memory of batches has never been used is not resident.
func MemoryBetween(ranks, pairs int) []hosts.Term {
	return []hosts.Term{
		{What: "table of ranks", Bytes: ranks * (4 + 8)},
		{What: "batches", Bytes: pairs * batchMemory()},
		{What: "pairs", Bytes: pairs * (hosts.PairBytes(placesFar) + 1<<10)},
	}
}
