package roster

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/ubcoll/ubcoll/hw/shm"
)

// Identity is what handles of one rank say of it.
type Identity struct {
	Secret  []byte
	Job     uint64
	Host    uint64
	Process shm.Process
}

// Identity is what handles of this rank say of it.
func (r *Roster) Identity() (d Identity, err error) {
	d = Identity{Secret: r.Secret, Job: Hash("job", r.Secret), Host: r.HostID()}
	d.Process, err = shm.Self()
	return d, err
}

// Hash is a number for b, which no hash of something else has.
func Hash(what string, b []byte) uint64 {
	sum := sha256.Sum256(append([]byte(what+":"), b...))
	return binary.LittleEndian.Uint64(sum[:])
}
