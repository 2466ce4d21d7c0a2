package net

import "sync/atomic"

// order counts a link's puts in their order, of which each connection sends its own. The caller of its methods holds
// Link.putting.
type order struct {
	sent [none]atomic.Uint64 // by each connection

	counted uint64 // puts before by
	of      [none]uint64
	by      []uint8 // which connection the puts after these take
	first   int     // of by that is not counted
}

// none is the connection of a put that is not sent, and counts as such.
const none = oneSidedIndex + 1

// add adds a put that a connection is going to send.
func (o *order) add(connection int) {
	o.count()
	o.by = append(o.by, uint8(connection))
}

// skip adds one that is not sent.
func (o *order) skip() { o.add(none) }

// count returns how many puts have been sent with all before them.
func (o *order) count() uint64 {
	for ; o.first < len(o.by); o.first++ {
		if i := o.by[o.first]; i != none {
			if o.of[i] == o.sent[i].Load() {
				break
			}
			o.of[i]++
		}
		o.counted++
	}
	if o.first > len(o.by)/2 { // so that by stays as long as what is under way
		o.by = o.by[:copy(o.by, o.by[o.first:])]
		o.first = 0
	}
	return o.counted
}
