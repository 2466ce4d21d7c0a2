// Package register is the registration cache: it remembers what the hardware knows about a program's memory, so that
// an operation that was given an address learns in nanoseconds whether it may touch those bytes directly.
//
// A claim is the exact bytes somebody registered. It lies in one [Memory], an allocation whose owner vouches for its
// identity by an ID and a generation. All claims in one allocation share one extent: its registration with the
// backends, by kind NET, NVLS, COLLNET and IPC, each absent, complete, or failed with a reason that is remembered. In
// this version ubcoll has IPC (internal/transport/ipc) and, where the environment asks for it, NET
// (internal/transport/net/mr); of the other kinds there is none. Claims may overlap. A lookup hits only inside some
// claim's exact bytes; a neighbour on the same page does not.
//
// References are counted apart. A [Ref] is a local one ([Cache.Register], an API call) or a graph one
// ([Cache.RetainGraph], a capture); [Cache.RegisterAuto] makes claims that no reference holds, which are evicted, least
// recently used first, when a limit is reached; lookups hand out claims with their in-flight count raised until
// [Claim.Release]. A local lookup never returns what only a graph holds. What ends (a last Close, an eviction,
// [Cache.Forget], [Cache.Invalidate]) is missed by lookups at once and deregistered when its last in-flight use leaves.
//
// Everything here is local, not collective, and safe for concurrent use. Lookups take no lock and allocate nothing.
// There is one cache per rank, shared by its communicators. Of this package only what the root re-exports, [Policy]
// and [Stats], is promised to stay.
package register
