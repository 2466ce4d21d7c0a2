//go:build mpi && cgo

package bootstrap

// MPI counts in C ints, but a message of any length must pass. So parts travel in chunks of at most chunkSize bytes of
// each rank, and of at most maxChunk bytes in all.
const (
	chunkSize = 256 << 10
	maxChunk  = 1 << 30
)

// chunks yields each chunk in turn: the offset in the parts at which it begins, and how many bytes of each rank's part
// it has.
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

// scatter appends the content of a chunk, packed in rank order, to each rank's part.
func scatter(parts [][]byte, packed []byte, sizes []int) {
	for r, n := range sizes {
		parts[r] = append(parts[r], packed[:n]...)
		packed = packed[n:]
	}
}
