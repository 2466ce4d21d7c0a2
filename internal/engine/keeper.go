package engine

import (
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Keeper keeps memory registered as long as something that uses it may be replayed: a graph of the library, or another
// CUDA graph. The zero Keeper keeps nothing.
type Keeper struct {
	mu   sync.Mutex
	kept map[*mem.Allocation]*register.Ref
}

// Keep registers all of a, an allocation of c's rank; repeated calls register it only once.
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

// Close releases all memory. Nothing may be replayed afterwards.
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
