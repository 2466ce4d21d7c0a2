package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/ubcoll/ubcoll/hw/shm"
)

// identity is what handles of one rank say of it.
type identity struct {
	secret  []byte
	job     uint64
	host    uint64
	process shm.Process
}

func (d *identity) identify(secret []byte) error {
	host, err1 := hostID()
	self, err2 := shm.Self()
	*d = identity{secret: secret, job: hash("job", secret), host: hash("host", []byte(host)), process: self}
	return errors.Join(err1, err2)
}

func hash(what string, b []byte) uint64 {
	sum := sha256.Sum256(append([]byte(what+":"), b...))
	return binary.LittleEndian.Uint64(sum[:])
}
