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

// Watcher is an optional interface of a [Bootstrap] that tells a rank that its job has broken while the rank makes no
// call, too: for example while it waits for another rank over a connection of its own. Without it, the rank learns that
// in its next call.
//
// The job breaks when a rank dies, aborts or gives up, or closes while another rank waits for it. A rank that closes
// while none waits for it has left in good order: if another rank waits for it later, the job breaks then. So nothing is
// told of a job that all ranks close after their last calls. After this rank's Close, Broken's channel may stay open
// whatever happens.
//
// [Env], [Local] and [PerProcess] implement it. PerProcess tells what breaks the bootstrap that it took over only if
// that is a Watcher. [MPI] and [Gompi] are none, because they may call MPI only during calls.
type Watcher interface {
	// Broken returns a channel that is closed once the job has broken, as far as this rank knows: within 2 seconds after
	// a rank has died, and as late as the next call would learn it where a host is silent. It is always the same channel.
	// Local, does not block, and may be called from any goroutine at any time.
	Broken() <-chan struct{}

	// Cause returns the error that this rank's next call would return because the job has broken: a *fault.Error whose
	// Peer is the rank that it is about. It is nil before Broken's channel is closed, and always the same afterwards.
	// Local, does not block, and may be called from any goroutine at any time.
	Cause() error
}

// Survivor is an optional interface of a [Bootstrap] whose Close waits for all ranks of the job, as [MPI]'s does.
type Survivor interface {
	// Survive says that ranks of the job have died, and that this one goes on without them: Close is then local, and leaves
	// MPI unfinalized, since finalizing would wait for them. The library calls it when ranks that were left have made a
	// communicator of their own. Local, does not block, and may be called from any goroutine at any time.
	Survive()
}
