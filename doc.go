// Package ubcoll provides collectives and point-to-point messages for Go programs of one or many processes, on buffers
// that the user registers once. MPI starts the ranks; without MPI they find each other through environment variables. A
// registration cache remembers what is known about each buffer. Transfers read and write registered memory directly;
// all other memory goes through staging memory. On the ranks of one host everything works, on the host's memory and on
// its NVIDIA GPUs. On communicators with ranks on several hosts everything works on host memory, and collectives
// and messages do on devices; the rest returns an error that wraps [ErrNotSupported] there. [Comm.Split] makes a communicator for each host's ranks.
//
// This package has the nouns: [Comm], [Vec], [Buffer], [Registration], [Remote], [Window], [Stream], [Op], [Error],
// [Options]. The verbs are in packages
//   - [github.com/ubcoll/ubcoll/coll]: the collectives,
//   - [github.com/ubcoll/ubcoll/p2p]: messages, and memory channels,
//   - [github.com/ubcoll/ubcoll/graph]: calls that are recorded once and launched often.
//
// A first program:
//
//	ubcoll.Main(ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
//		x := []float32{float32(c.Rank())}
//		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
//	})
//
// Run it as `mpirun -np 4 ./prog` (built with -tags mpi), or as `NTHREADS=4 ./prog`.
//
// Arguments have one order: the context, the communicator, the peer, the destination before the source (as in copy),
// and then what the operation does with them. A peer that belongs to only one of the two buffers stands before that
// buffer. The length of a Vec and all counts are in elements. Offsets into windows and channels, and the lengths beside
// them, are in bytes.
//
// Words in a function's comment: "local" means that other ranks need not call it; "collective" means that all ranks of
// the communicator must call it, in the same order. A "blocking" call waits for this rank's part. It waits for a peer
// no longer than [Options.Timeout], and the death of a peer's process ends the wait within two seconds. A function
// whose comment says neither "blocking" nor "waits" returns at once.
//
// Memory belongs to whoever made it. An operation uses the memory of its arguments until it is done (on a stream: until
// [Stream.Sync]; in a group: until [Group] returns), and the caller must not touch that memory meanwhile. A Comm runs
// one collective at a time ([ErrBusy]). Everything else may be called from any goroutine, and by several at once unless
// its comment says otherwise.
//
// Operations return [*Error]. Every error wraps one of the sentinels below, a context's error, or the system's error.
package ubcoll
