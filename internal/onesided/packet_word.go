//go:build !amd64 || race

package onesided

import "sync/atomic"

// storeWord stores v after all earlier stores.
func storeWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
