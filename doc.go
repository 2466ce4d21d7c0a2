// Package ubcoll is collectives and point-to-point for Go programs on one or many processes, on buffers that the user
// registers once. MPI (or nothing but the environment) starts the ranks, a registration cache remembers what is known
// about each buffer, and transfers read and write registered memory directly; what is not registered goes through
// staging memory. The ranks of one host have all of it, on the host's memory and on its NVIDIA GPUs. Communicators
// whose ranks are on several hosts have barriers, all-reduces and broadcasts of host memory so far; what else is asked
// for is an error that wraps [ErrNotSupported], and [Comm.Split] makes communicators of each host's ranks.
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
// Arguments are in one order: the context, the communicator, then whom it is with, then the destination before the
// source, as in copy, then what is done to them. A peer that goes with only one of the two stands before it. Lengths of
// a Vec and counts are elements; offsets into windows and channels, and the lengths beside them, are bytes.
//
// What a function's comment says: "local" means that other ranks need not call it, "collective" that all ranks of the
// communicator must, in the same order. "Blocking" calls wait for this rank's part; none waits longer than
// [Options.Timeout] for a peer, and the death of a peer's process ends it within two seconds. What says neither
// "blocking" nor "waits" returns at once.
//
// Memory belongs to whoever made it. An operation uses the memory of its arguments until it is done (on a stream, until
// [Stream.Sync]; in a group, until [Group] returns): the caller leaves it alone meanwhile. A Comm runs one collective
// at a time ([ErrBusy]); everything else may be called from any goroutine, by several at once unless its comment says
// otherwise.
//
// Errors of operations are [*Error]. All errors wrap one of the sentinels below, a context's error, or what the system
// said.
package ubcoll
