package roster

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/ubcoll/ubcoll/hw/shm"
)

// Identity is what a rank's handles say about the rank.
type Identity struct {
	Secret  []byte
	Job     uint64
	Host    uint64
	Process shm.Process
}

// Identity returns what this rank's handles say about it.
func (r *Roster) Identity() (d Identity, err error) {
	d = Identity{Secret: r.Secret, Job: Hash("job", r.Secret), Host: r.HostID()}
	d.Process, err = shm.Self()
	return d, err
}

// Hash returns a number for b that differs from all hashes of other kinds of data: what names the kind.
func Hash(what string, b []byte) uint64 {
	sum := sha256.Sum256(append([]byte(what+":"), b...))
	return binary.LittleEndian.Uint64(sum[:])
}
