// Package p2p moves data between two ranks: sends and receives, alone and together, and memory channels. On a
// communicator that has ranks on several hosts there is none of it yet: each call is [ubcoll.ErrNotSupported], and
// [ubcoll.Comm.Split] makes communicators of each host's ranks, which have all.
//
// Messages from one rank to another arrive in the order in which they were sent, within one communicator; there are no
// tags (Dup separates). A send and its receive name the same element type, and the receive has room for at least as
// many elements; on devices, on streams and in groups ([ubcoll.Group]), for exactly as many. Both are of host memory,
// or both of device memory: those are counted apart, and a send of the one is not received into the other. Everything
// here is independent of collectives, but for what a Group does with them, and may be called from several goroutines at
// once, whose calls take their places in the order one after the other.
//
// On a stream of the host a call is queued, and takes its place among the messages from one rank to another when it is
// made; [ubcoll.Stream.Sync] has its error. If its ctx ends before it is done, the communicator is broken. A call that
// waits behind one whose turn on its stream has not come waits for that first, without a deadline of its own.
//
// Messages of device memory, and channels over it, are kernels, which the host only queues: on the stream of
// [ubcoll.Comm.On], or on one of the library's own, for which the call then waits. A send, a receive, a [SendRecv] or
// an [Exchange] is one kernel. Calls take their places among the messages from one rank to another in the order in
// which they are made, whatever their streams; messages of other ranks, or the other way, are not held up by one that
// waits, but what follows on the same stream is. On streams ctx counts at the call only, and the error of a message is
// that of the stream's Sync: as many elements as were asked for have been received if there is none. The kernels count
// the messages, so that they may be captured and replayed: by package graph, whose launches take their places as calls
// do, or on a stream that somebody else captures. Then the buffers are kept until the communicator closes, and it is
// for whoever launches to keep the messages of a launch and others between the same ranks in the order that is meant.
//
// Up to 64 KiB a message of device memory travels as packets, and does not wait for its receive unless two such
// messages are on their way to that rank already; a larger one waits for it, goes straight to the receiver's memory if
// that is registered and the sender has imported it, and else by way of staging memory. Copy engines do those of 32 MiB
// and more that graph.Capture has on both sides.
//
// Any host memory will do for messages. What fits travels with the announcement; larger registered memory is copied
// once, by the receiver and the sender together; other memory goes through staging memory, or is written straight to a
// receiver that is registered. Memory of [ubcoll.Alloc] is registered at its first use if the policy allows. The memory
// stays the caller's, who leaves it alone until the call or the request is done; it may be freed meanwhile, and is gone
// when they are.
//
// [ubcoll.ErrArgument], [ubcoll.ErrStale], [ubcoll.ErrLimit] and a context that had ended before the call are local:
// nothing was sent, and nothing was received. A message that does not fit or has another type is [ubcoll.ErrMismatch]
// for the receiver, and for the sender too if it is larger than what is sent without waiting; the message is consumed,
// what it was for holds what it held, and the two ranks go on. [ubcoll.ErrPeerLost], [ubcoll.ErrTimeout],
// [ubcoll.ErrAborted] and a context that ends during the call break the communicator, as with collectives.
package p2p
