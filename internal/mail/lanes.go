package mail

import (
	"time"

	"github.com/ubcoll/ubcoll/internal/flight"
)

// mostOpen is how many messages under way a dump has of a lane.
const mostOpen = 64

// Lanes implements engine.Laner: the lanes that have had messages.
func (m *Mail) Lanes() (all []flight.Lane) {
	until := time.Now().Add(10 * time.Millisecond) // for all lanes: whoever moves a message has its lane for less
	for b := range m.all() {
		for _, recv := range [2]bool{false, true} {
			l, k := b.lane(recv), flight.Lane{Peer: b.Peer, Recv: recv}
			for !l.TryLock() {
				if k.Busy = time.Now().After(until); k.Busy {
					break
				}
				time.Sleep(20 * time.Microsecond)
			}
			if k.Busy {
				all = append(all, k)
				continue
			}
			k.Over = l.Seq
			for _, q := range [2]*messageList{&l.Open, &l.waiting} {
				for w := q.Head; w != nil; w = w.next {
					if k.Count++; k.Count <= mostOpen {
						k.Open = append(k.Open, w.Bytes)
					}
					if q == &l.Open {
						k.Over--
					}
				}
			}
			l.Unlock()
			if k.Over > 0 || k.Count > 0 {
				all = append(all, k)
			}
		}
	}
	return all
}
