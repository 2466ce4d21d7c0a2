// Package p2p moves data between two ranks: sends and receives, alone and in groups, and memory channels.
//
// Messages from one rank to another arrive in the order in which they were sent, within one communicator; there are no
// tags (Dup separates). A send and its receive name the same element type, and the receive has room for at least as
// many elements. Everything here is independent of collectives and may be called from several goroutines at once, whose
// calls take their places in the order one after the other.
//
// Channels work between memory of the hosts or between memory of devices; messages of device memory, and messages on
// streams, are hw.ErrNotSupported so far.
//
// Any host memory will do for messages. What fits travels with the announcement; larger registered memory is copied
// once, by the receiver and the sender together; other memory goes through staging memory, or is written straight to a
// receiver that is registered. Memory of ubcoll.Alloc is registered at its first use if the policy allows. The memory
// stays the caller's, who leaves it alone until the call or the request is done.
//
// ErrArgument, ErrStale, ErrLimit and a context that had ended before the call are local: nothing was sent, and nothing
// was received. A message that does not fit or has another type is ErrMismatch for the receiver, and for the sender too
// if it is larger than what is sent without waiting; the message is consumed and the two ranks go on. ErrPeerLost,
// ErrTimeout, ErrAborted and a context that ends during the call break the communicator, as with collectives.
package p2p
