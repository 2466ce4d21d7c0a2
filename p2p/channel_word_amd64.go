//go:build !race

package p2p

// storeWord stores v after all that was stored before it, as amd64 does with plain stores; an atomic one would wait for
// each.
func storeWord(p *uint64, v uint64) { *p = v }
