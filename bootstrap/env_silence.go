package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
)

// A host that is cut off closes no connection. Keep-alive probes notice that only while no data is on its way, and the
// limit for sent data (TCP_USER_TIMEOUT) would also end the connection to a process that is stopped and reads nothing,
// though its kernel answers. So each process looks at what its kernel knows about its connections.

// lookInterval is the time between two looks, of which there are at least 8 in a limit.
const lookInterval = 500 * time.Millisecond

// silenceLimit is how long another host may be silent; 0 for no limit: over Unix sockets there is no other host.
func (c config) silenceLimit() time.Duration {
	if c.network != "tcp" {
		return 0
	}
	return c.netTimeout
}

func (c config) wire(conn net.Conn) *wire {
	w := &wire{Conn: conn, silence: silence{limit: c.silenceLimit()}}
	if w.limit > 0 {
		askOften(conn, w.limit)
	}
	return w
}

// keepAlive asks an idle host after a second, and then each second until the limit. Systems know no more than 127 probes.
func (c config) keepAlive() net.KeepAliveConfig {
	const most = 120
	probes := int((c.netTimeout + time.Second - 1) / time.Second)
	interval := (probes + most - 1) / most
	return net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Duration(max(interval, 1)) * time.Second,
		Count: max(3, min(probes, most))}
}

// silence is what a process knows about whether the host at the other end of a connection answers.
type silence struct {
	limit   time.Duration
	looks   int         // in a row that found the host asked, and no answer; the watch's own
	reached atomic.Bool // the host has been silent for the limit
}

// heard notes a look: whether the host has been asked for an acknowledgement in vain, whether data that was sent waits
// for one, and how long ago the last one came. It reports whether the host has been silent for the limit, and time enough has passed for the answers to come.
// That is counted in looks, so that a pause of this machine is no silence of the other.
func (s *silence) heard(asked, sent bool, last time.Duration) bool {
	if !asked && !(sent && last >= s.limit) {
		s.looks = 0
		return false
	}
	s.looks++
	return time.Duration(s.looks)*s.interval() > s.limit/4 && last >= s.limit
}

func (s *silence) interval() time.Duration { return min(lookInterval, s.limit/8) }

// watchSilence looks at wires until end is called, which waits for that. It ends the reads and writes of those whose
// host is silent.
func watchSilence(limit time.Duration, wires func() []*wire) (end func()) {
	if limit == 0 || !seesSilence {
		return func() {}
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		next := time.NewTicker((&silence{limit: limit}).interval())
		defer next.Stop()
		for {
			select {
			case <-over:
				return
			case <-next.C:
			}
			for _, w := range wires() {
				w.look()
			}
		}
	})
	return sync.OnceFunc(func() { close(over); wg.Wait() })
}

// look ends w's reads and writes if its host is silent.
func (w *wire) look() {
	asked, sent, last, err := unanswered(w.Conn)
	if err == nil && w.heard(asked, sent, last) {
		w.reached.Store(true)
		_ = w.SetDeadline(time.Unix(1, 0))
	}
}

// isSilent reports whether a connection that ended with err did so because its host was silent, or keep-alive probes
// or the network found out that it is gone.
func (w *wire) isSilent(err error) bool {
	gone := errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
	return w.reached.Load() || w.limit > 0 && gone
}

func (w *wire) silentText() string {
	return fmt.Sprintf("its host has not answered for %v (%s)", w.limit, env.NetTimeout.Name)
}
