package bootstrap

import "time"

// Join is Env with the settings given.
func Join(rank, size int, where, secret string, timeout time.Duration) (Bootstrap, error) {
	network, addr, err := rendezvous(where)
	if err != nil {
		return nil, err
	}
	return config{rank, size, network, addr, []byte(secret)}.join(timeout)
}

// LingerFor sets how long rank 0 stays after it has given up, and returns a function that restores it.
func LingerFor(d time.Duration) (restore func()) { return set(&linger, d) }

// HandshakesFor sets how long a handshake may take, and returns a function that restores it.
func HandshakesFor(d time.Duration) (restore func()) { return set(&handshakeTimeout, d) }

func set(v *time.Duration, d time.Duration) (restore func()) {
	old := *v
	*v = d
	return func() { *v = old }
}
