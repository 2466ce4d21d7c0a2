package bootstrap

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/ubcoll/ubcoll/internal/env"
)

// faults are what is wrong with the variables that give a process its place. Its methods read them.
type faults []error

func (f *faults) bad(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}

func (f *faults) missing(i env.Info, set bool) {
	if !set {
		f.bad(fmt.Errorf("%s is not set", i.Name))
	}
}

// text reads a variable of a launcher.
func (f *faults) text(name string) string {
	s := os.Getenv(name)
	f.missing(env.Info{Name: name}, s != "")
	return s
}

// number reads a variable of a launcher. It is 0 if that is missing or malformed.
func (f *faults) number(name string, low, high int64) int {
	s := f.text(name)
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case s == "":
		return 0
	case err != nil || n < low || n > high:
		f.bad(fmt.Errorf("%s=%q: want a whole number from %d to %d", name, s, low, high))
		return 0
	}
	return int(n)
}

// place reads rank and size from a launcher's variables.
func (f *faults) place(c *config, rank, size string) {
	before := len(*f)
	c.rank, c.size = f.number(rank, 0, maxHosts-1), f.number(size, 1, maxHosts)
	if len(*f) == before && c.rank >= c.size {
		f.bad(fmt.Errorf("%s=%d does not fit %s=%d: ranks count from 0", rank, c.rank, size, c.size))
	}
}

// meet reads UBCOLL_RENDEZVOUS.
func (f *faults) meet(c *config) {
	if where, _ := env.Rendezvous.Get(); where != "" {
		var err error
		c.network, c.addr, err = rendezvous(where)
		f.bad(err)
	}
}

// secret reads UBCOLL_SECRET, which may be missing.
func (f *faults) secret() []byte {
	secret, _ := env.Secret.Get()
	if secret != "" && len(secret) < minSecret {
		f.bad(fmt.Errorf("%s has %d bytes, want at least %d", env.Secret.Name, len(secret), minSecret))
	}
	return []byte(secret)
}

// given reports whether the user says where a launcher's ranks meet.
func (f *faults) given(c *config) bool {
	if !env.Rendezvous.IsSet() {
		return false
	}
	f.meet(c)
	f.prove(c)
	return true
}

// onOneHost makes the ranks meet at an abstract socket, whose name tells this user's jobs apart.
func (f *faults) onOneHost(c *config) {
	name := sha256.Sum256([]byte(c.job))
	c.network, c.addr = "unix", fmt.Sprintf("@ubcoll-%d-%x", os.Getuid(), name[:8])
	f.prove(c)
}

// The ports of jobs of several hosts that say nothing else. They lie above those that Linux takes for connections, 32768
// to 60999 (net.ipv4.ip_local_port_range), and above 60001 to 63000, which sites often give Slurm (SrunPortRange).
const (
	firstPort = 63001
	lastPort  = 65535
)

// onHosts makes the ranks meet on a host, at the port that number chooses. Rank 0 listens on all addresses of its host,
// whose own name is often a loopback address there.
func (f *faults) onHosts(c *config, host string, number uint64) {
	port := strconv.FormatUint(firstPort+number%(lastPort-firstPort+1), 10)
	c.network, c.addr, c.bind = "tcp", net.JoinHostPort(host, port), ":"+port
	f.prove(c)
}

// prove sets what ranks prove their identity with. The job is part of it, so that a rank of another job that has the same
// secret and meets at the same place is a stranger.
func (f *faults) prove(c *config) {
	secret := f.secret()
	if c.peers = len(secret) == 0 && c.network == "unix"; !c.peers && len(secret) == 0 {
		f.bad(errors.New(env.Secret.Name + " is not set, and ranks that meet over TCP need it, the same on all: export " +
			env.Secret.Name + "=$(openssl rand -hex 16) before the launcher"))
	}
	h := hmac.New(sha256.New, secret)
	io.WriteString(h, c.job)
	c.secret = h.Sum(nil)
}
