// Package ubcoll is collectives and point-to-point for Go programs on one or many processes, on buffers that the user
// registers once. MPI (or nothing but the environment) starts the ranks, a registration cache remembers what the
// hardware knows about each buffer, and every transfer reads and writes the user's memory directly.
//
// This package has the nouns: Comm, Vec, Buffer, Registration, Stream, Op, Error, Options. The verbs are in package
// coll. A first program:
//
//	ubcoll.Main(ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
//		x := []float32{float32(c.Rank())}
//		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
//	})
//
// Run it as `mpirun -np 4 ./prog` (built with -tags mpi), or as `NTHREADS=4 ./prog`.
//
// What a function's comment says: "local" means that other ranks need not call it, "collective" that all ranks of the
// communicator must, in the same order. "Blocking" calls wait for this rank's part; none waits longer than
// Options.Timeout for a peer, and the death of a peer's process ends it within two seconds.
package ubcoll
