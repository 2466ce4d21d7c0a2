package hosts

import (
	"sync"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// memory is JobConfig.Memory.
type memory func(n int) []byte

func (m memory) make(n int) []byte {
	if m == nil {
		return make([]byte, n)
	}
	return m(n)
}

// pool is the memory in which a rank lets land what it will combine. All its communicators share it. An operation takes
// the large piece; one that finds it taken goes on with a small one. There are as many small ones as operations have
// moved data beside that with the large one, at the same time.
type pool struct {
	memory memory
	mu     sync.Mutex
	large  []byte
	taken  bool     // large is
	spares [][]byte // small ones that nobody uses
}

const (
	window     = 8 // most items that one peer may have on the way, and that all together may have in landing memory
	leastItems = 4 // fewer if they are large: as many at least
	poolBytes  = 2 << 20
	spareBytes = 128 << 10
)

// take returns memory that is the caller's until it gives it back.
func (p *pool) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.taken {
		if p.large == nil {
			p.large = p.memory.make(poolBytes)
		}
		p.taken = true
		return p.large
	}
	last := len(p.spares) - 1
	if last < 0 {
		return p.memory.make(spareBytes)
	}
	b := p.spares[last]
	p.spares = p.spares[:last]
	return b
}

// give returns what take has returned, or nothing. No peer may write to it any more.
func (p *pool) give(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch len(b) {
	case poolBytes:
		p.taken = false
	case spareBytes:
		p.spares = append(p.spares, b)
	}
}

// spares is memory of items that are gathered to be sent, or combined to be sent on. There is as much as operations have
// used at the same time.
type spares struct {
	memory memory
	mu     sync.Mutex
	free   [][]byte
}

func (p *spares) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return p.memory.make(schedule.Slots * slotBytes)
	}
	b := p.free[last]
	p.free = p.free[:last]
	return b
}

func (p *spares) give(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, b)
}
