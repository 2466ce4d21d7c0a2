//go:build !race

package onesided

// storeWord stores v after all earlier stores. On amd64 plain stores keep this order; an atomic store would wait for
// each.
func storeWord(p *uint64, v uint64) { *p = v }
