package hosts

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// block is what one host tells the others about one operation: what its team wants and, if the others need data of it
// and that is small, the data. Blocks travel one behind the other.
type block struct {
	host int
	seq  uint64
	sig  uint64 // 0: the host's ranks disagree, or one refused
	data []byte
}

// blockHead is the size of a block's head: host, length, sequence, signature, and 8 bytes reserved.
const blockHead = 32

// MaxBlocks is the most bytes that the data of all blocks of an operation may have together.
const MaxBlocks = 256 << 10

// padded rounds n up, so that what follows a block stays aligned for every element type.
func padded(n int) int { return (n + 15) &^ 15 }

// head writes a block's head, for n bytes of data.
func (b *block) head(to []byte, n int) {
	binary.LittleEndian.PutUint32(to, uint32(b.host))
	binary.LittleEndian.PutUint32(to[4:], uint32(n))
	binary.LittleEndian.PutUint64(to[8:], b.seq)
	binary.LittleEndian.PutUint64(to[16:], b.sig)
}

// blockBytes is the size of a block with n bytes of data.
func blockBytes(n int) int { return blockHead + padded(n) }

// parseBlocks reads count blocks from the front of b into all, by host. It checks their heads: they must be of
// operation seq and of hosts first, first+1 and so on, modulo the number of hosts. It returns how many bytes they take.
func parseBlocks(b []byte, all []block, first, count int, seq uint64) (int, error) {
	at := 0
	for i := range count {
		h := (first + i) % len(all)
		if len(b)-at < blockHead {
			return 0, fmt.Errorf("the block of host %d is cut short: %w", h, fault.ErrMismatch)
		}
		k := block{host: int(binary.LittleEndian.Uint32(b[at:])), seq: binary.LittleEndian.Uint64(b[at+8:]),
			sig: binary.LittleEndian.Uint64(b[at+16:])}
		n := int(binary.LittleEndian.Uint32(b[at+4:]))
		switch {
		case k.host != h:
			return 0, fmt.Errorf("a block of host %d in the place of host %d's: %w", k.host, h, fault.ErrMismatch)
		case k.seq != seq:
			return 0, fmt.Errorf("host %d is in operation %d, this one in %d: %w", h, k.seq, seq, fault.ErrMismatch)
		case blockBytes(n) > len(b)-at:
			return 0, fmt.Errorf("the data of host %d's block, %d bytes, are cut short: %w", h, n, fault.ErrMismatch)
		}
		k.data = b[at+blockHead:][:n]
		all[h] = k
		at += blockBytes(n)
	}
	return at, nil
}
