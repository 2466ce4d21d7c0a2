package ofi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
)

// keys makes keys of some length that nobody can guess, and none twice: the images of 0, 1, 2, ... under a permutation that
// a random seed chooses (a Feistel network; Luby and Rackoff, 1988). A provider that lets its user choose keys gives the
// memory to whoever names one.
type keys struct {
	bits uint // even
	seed [32]byte
	next atomic.Uint64
}

// rounds: four make the permutation a strong pseudorandom one.
const rounds = 4

func newKeys(bytes int) (*keys, error) {
	k := &keys{bits: uint(8 * min(bytes, 8))}
	if _, err := rand.Read(k.seed[:]); err != nil {
		return nil, fmt.Errorf("random keys: %w", err)
	}
	return k, nil
}

// make returns a key. fault.ErrLimit says that all have been used.
func (k *keys) make() (Key, error) {
	n := k.next.Add(1) - 1
	if k.bits < 64 && n>>k.bits != 0 {
		return 0, fmt.Errorf("all keys of %d bits have been used: open the domain anew: %w", k.bits, fault.ErrLimit)
	}
	half := k.bits / 2
	mask := uint64(1)<<half - 1
	left, right := n>>half, n&mask
	for i := range rounds {
		var in [41]byte
		copy(in[:], k.seed[:])
		in[32] = byte(i)
		binary.LittleEndian.PutUint64(in[33:], right)
		h := sha256.Sum256(in[:])
		left, right = right, left^binary.LittleEndian.Uint64(h[:])&mask
	}
	return Key(left<<half | right), nil
}
