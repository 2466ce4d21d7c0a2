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

// LingerFor sets how long rank 0 stays after it has given up, and returns what restores it.
func LingerFor(d time.Duration) (restore func()) {
	old := linger
	linger = d
	return func() { linger = old }
}
