package bootstrap

// Hoster is what a [Bootstrap] can have beside its methods: it says itself which host its rank is on. Optional; without it
// UBCOLL_HOSTID or the system says so.
type Hoster interface {
	// Host is the name and identity of this rank's host: ranks that return the same are on one host, if they can map each
	// other's memory, and ranks that return others are not. "" leaves it to UBCOLL_HOSTID and the system. Local, does not
	// block, and always the same.
	Host() string
}

// Keyed is what a [Bootstrap] can have beside its methods: a secret that its ranks knew before they met. Optional; without
// it the secret of the job travels with the first AllGather, which whoever hears it then knows.
type Keyed interface {
	// Key is the secret, the same on all ranks; nil or empty is none. The caller only reads it. Local, does not block.
	Key() []byte
}
