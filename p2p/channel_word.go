//go:build !amd64 || race

package p2p

import "sync/atomic"

// storeWord stores v after all that was stored before it.
func storeWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
