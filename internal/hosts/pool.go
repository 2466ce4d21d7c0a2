package hosts

import "sync"

// pool is the memory in which a rank lets land what it will combine. All its communicators share it. An operation takes
// it as a whole; one that finds it taken goes on with less memory, of its communicator's own.
type pool struct {
	mu     sync.Mutex
	memory []byte
	taken  bool
}

const (
	window     = 8 // most items that one peer may have on the way, and that all together may have in landing memory
	leastItems = 4 // fewer if they are large: as many at least
	poolBytes  = 2 << 20
	ownBytes   = 128 << 10
)

// take returns the pool's memory, or nil if it is taken.
func (p *pool) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return nil
	}
	if p.memory == nil {
		p.memory = make([]byte, poolBytes)
	}
	p.taken = true
	return p.memory
}

// give returns the memory. No peer may write to it any more.
func (p *pool) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
}
