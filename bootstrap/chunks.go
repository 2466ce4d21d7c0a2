//go:build mpi && cgo

package bootstrap

// MPI counts in C ints, and a message of any length has to pass: parts travel in chunks of at most chunkSize bytes a
// rank, and of at most maxChunk bytes in all.
const (
	chunkSize = 256 << 10
	maxChunk  = 1 << 30
)

// chunks yields, until all lengths are used up, how many bytes of each rank's part the next chunk has, and where in
// the parts they begin.
func chunks(lengths []int) func(yield func(from int, sizes []int) bool) {
	block := max(1, min(chunkSize, maxChunk/len(lengths)))
	return func(yield func(int, []int) bool) {
		longest := 0
		for _, n := range lengths {
			longest = max(longest, n)
		}
		for from := 0; from < longest; from += block {
			sizes := make([]int, len(lengths))
			for r, n := range lengths {
				sizes[r] = min(max(n-from, 0), block)
			}
			if !yield(from, sizes) {
				return
			}
		}
	}
}

func sum(sizes []int) int {
	total := 0
	for _, n := range sizes {
		total += n
	}
	return total
}

// scatter appends what a chunk brought, packed in rank order, to each rank's part.
func scatter(parts [][]byte, packed []byte, sizes []int) {
	for r, n := range sizes {
		parts[r] = append(parts[r], packed[:n]...)
		packed = packed[n:]
	}
}
