package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/ubcoll/ubcoll/hw/shm"
)

// Identity is what handles of one rank say of it.
type Identity struct {
	Secret  []byte
	Job     uint64
	Host    uint64
	Process shm.Process
}

func (d *Identity) identify(secret []byte) error {
	host, err1 := hostID()
	self, err2 := shm.Self()
	*d = Identity{Secret: secret, Job: Hash("job", secret), Host: Hash("host", []byte(host)), Process: self}
	return errors.Join(err1, err2)
}

// Identity is what handles of this rank say of it.
func (d *Domain) Identity() *Identity { return &d.id }

// Hash is a number for b, which no hash of something else has.
func Hash(what string, b []byte) uint64 {
	sum := sha256.Sum256(append([]byte(what+":"), b...))
	return binary.LittleEndian.Uint64(sum[:])
}
