package bootstrap

import (
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Join is Env with the settings given.
func Join(rank, size int, where, secret string, timeout time.Duration) (Bootstrap, error) {
	network, addr, err := rendezvous(where)
	if err != nil {
		return nil, err
	}
	netTimeout, err := env.NetTimeout.Get()
	if err != nil {
		return nil, err
	}
	return config{rank: rank, size: size, network: network, addr: addr, secret: []byte(secret), netTimeout: netTimeout}.join(timeout)
}

// Place is where Env would go.
type Place struct {
	Rank, Size               int
	Network, Addr, Bind, Job string
	Peers                    bool
}

// EnvPlace is Env without the join.
func EnvPlace() (Place, error) {
	c, err := envConfig()
	return Place{c.rank, c.size, c.network, c.addr, c.bind, c.job, c.peers}, err
}

// Here is where the ranks of a launcher's job on one host meet.
func Here(job string) string {
	c := config{job: job}
	new(faults).onOneHost(&c)
	return c.addr
}

// Hostlist is what reads lists of hosts.
var Hostlist = hostlist

// LingerFor sets how long rank 0 stays after it has given up, and returns a function that restores it.
func LingerFor(d time.Duration) (restore func()) { return set(&linger, d) }

// HandshakesFor sets how long a handshake may take, and returns a function that restores it.
func HandshakesFor(d time.Duration) (restore func()) { return set(&handshakeTimeout, d) }

func set(v *time.Duration, d time.Duration) (restore func()) {
	old := *v
	*v = d
	return func() { *v = old }
}

// Die ends the connections of a rank of Env, as if its process had died: it tells nobody why.
func Die(b Bootstrap) {
	switch b := b.(type) {
	case *root:
		c := lost(0, "died")
		b.mu.Lock()
		b.failure = &c
		b.mu.Unlock()
		close(b.broken)
		b.drop()
	case *leaf:
		b.wire.Close()
	}
}

// ResultBytes is how many bytes rank 0 sends to each other rank as the result of an AllGather.
func ResultBytes(parts [][]byte) int { return len(resultFrame(0, parts).append(nil)) }
