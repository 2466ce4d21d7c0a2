package gpuend

import "sync"

// order is the order of what far ends do that share signals: waits follow waits, and all else follows all else.
type order struct {
	mu   sync.Mutex
	last [2]chan struct{} // closed after what came last; nil: nothing came
}

// place is the place of some steps in an order.
type place struct {
	before [2]chan struct{} // nil: nothing comes before
	done   chan struct{}
}

// next takes the next place for steps of a side.
func (o *order) next(out, in bool) place {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := place{done: make(chan struct{})}
	for k, has := range [2]bool{out, in} {
		if has {
			p.before[k], o.last[k] = o.last[k], p.done
		}
	}
	return p
}

// there reports whether all that comes before has ended.
func (p *place) there() bool {
	for _, c := range p.before {
		select {
		case <-c:
		default:
			if c != nil {
				return false
			}
		}
	}
	return true
}

// end lets the next ones go on, once those before have ended.
func (p *place) end() {
	if p.there() {
		close(p.done)
		return
	}
	go func() {
		for _, c := range p.before {
			if c != nil {
				<-c
			}
		}
		close(p.done)
	}()
}
