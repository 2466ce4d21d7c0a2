package engine

import (
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Keeper keeps memory registered for as long as something may be replayed that uses it: a graph of the library's, or
// what somebody else has captured. The zero Keeper keeps nothing.
type Keeper struct {
	mu   sync.Mutex
	kept map[*mem.Allocation]*register.Ref
}

// Keep registers all of a, an allocation of c's rank, once however often it is asked to.
func (k *Keeper) Keep(c *Comm, a *mem.Allocation) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[a] != nil {
		return nil
	}
	ref, err := c.dom.Cache.RetainGraph(Memory(a), a.Base(), a.Bytes)
	if err != nil {
		return err
	}
	if k.kept == nil {
		k.kept = map[*mem.Allocation]*register.Ref{}
	}
	k.kept[a] = ref
	return nil
}

// Close lets go of all: nothing is replayed any more.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, r := range k.kept {
		errs = append(errs, r.Close())
	}
	k.kept = nil
	return errors.Join(errs...)
}
