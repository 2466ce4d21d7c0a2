package bootstrap

// Hoster is an optional interface of a [Bootstrap] that knows which host its rank is on. Without it, UBCOLL_HOSTID or
// the system tells.
type Hoster interface {
	// Host is the name and identity of this rank's host. Ranks with the same value are on one host if they can map each
	// other's memory; ranks with different values are on different hosts. "" leaves it to UBCOLL_HOSTID and the system.
	// Local, does not block, and always returns the same.
	Host() string
}

// Keyed is an optional interface of a [Bootstrap] whose ranks share a secret from the start. Without it, the secret of
// the job travels with the first AllGather, where an eavesdropper can read it.
type Keyed interface {
	// Key is the secret, the same on all ranks; nil or empty means that there is none. The caller only reads it. Local,
	// does not block.
	Key() []byte
}
