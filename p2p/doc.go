// Package p2p moves data between two ranks: single sends and receives, exchanges of several messages, and memory
// channels with semaphores. On a communicator with ranks on several hosts, channels and semaphores of device
// memory are [ubcoll.ErrNotSupported]. [ubcoll.Comm.Split] makes a communicator for each host's ranks, on which all works.
//
// Within one communicator, messages from one rank to another arrive in the order in which they were sent. There are no
// tags; Dup separates messages. A send and its receive name the same element type, and the receive has room for at
// least as many elements; on devices, on streams and in groups ([ubcoll.Group]), for exactly as many. Both use host
// memory or both use device memory: the two kinds of messages are counted apart, and do not match each other.
// Everything here is independent of collectives, except in a Group. Several goroutines may call it at once; their calls
// take their places in the order one after the other.
//
// On a host stream a call is queued, but takes its place among the messages from one rank to another when it is made.
// [ubcoll.Stream.Sync] returns its error. If its ctx ends before it is done, the communicator breaks. A call whose
// place is behind a queued one that has not run yet first waits for that call's turn, without a deadline of its own.
//
// A [Channel] is made by both ranks together, or by one rank over a [Semaphore], whose signals several channels share.
//
// Messages and channels of device memory are kernels, which the host only queues: on the stream of [ubcoll.Comm.On], or
// on one of the library's own, for which the call then waits. A send, a receive, a [SendRecv] or an [Exchange] is one
// kernel. Calls take their places among the messages from one rank to another in the order in which they are made,
// whatever their streams. A message that waits delays what follows on the same stream, but not messages of other ranks
// or the other direction. On streams ctx counts during the call only, and the stream's Sync returns a message's error;
// without an error, as many elements were received as were asked for.
//
// The kernels count the messages, so they may be captured and replayed: by package graph, whose launches take their
// places as calls do, or by other code that captures the stream. In that case the library keeps the buffers until the
// communicator closes. Whoever launches the graph must then keep its messages, and others between the same ranks, in
// the intended order.
//
// Up to 64 KiB a message of device memory travels as packets, and waits for its receive only if two such messages are
// on their way to that rank already. A larger one waits for its receive. It goes straight to the receiver's memory if
// that is registered and the sender has imported it; otherwise it goes through staging memory. Copy engines carry
// messages of 32 MiB and more that both sides have captured with graph.Capture.
//
// All host memory works for messages. Small messages travel with their announcement. Larger registered memory is copied
// once, by receiver and sender together. Other memory goes through staging memory, or is written straight to a
// registered receive buffer. Memory of [ubcoll.Alloc] is registered at its first use if the policy allows. Between hosts
// small messages are copied at both ends, and the kernel writes large ones straight to the receiver's memory, registered
// or not. The memory stays the caller's, who must not touch it until the call or the request is done. It may be freed meanwhile, and is
// gone when they are done.
//
// [ubcoll.ErrArgument], [ubcoll.ErrStale], [ubcoll.ErrLimit] and a context that had ended before the call are local:
// nothing was sent, and nothing was received. A message that does not fit or has another type is [ubcoll.ErrMismatch]
// for the receiver, and also for the sender unless it is small enough to be sent without waiting. The message is
// consumed, the destination is unchanged, and both ranks go on. [ubcoll.ErrPeerLost], [ubcoll.ErrTimeout],
// [ubcoll.ErrAborted] and a context that ends during the call break the communicator, as with collectives.
package p2p
