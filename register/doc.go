// Package register is the registration cache. It remembers what the hardware knows about a program's memory, so that an
// operation learns in nanoseconds whether it may access the bytes at an address directly.
//
// A claim stands for the exact bytes that were registered. It lies in one [Memory], an allocation whose owner vouches
// for its identity by an ID and a generation. All claims in one allocation share one extent: its registration with the
// backends of the kinds NET, NVLS, COLLNET and IPC. Each is absent, complete, or failed with a reason that is
// remembered. In this version ubcoll has IPC (internal/transport/ipc) and, where the environment asks for it, NET
// (internal/transport/net/mr), and no backends of the other kinds. Claims may overlap. A lookup hits only inside some
// claim's exact bytes; a neighbour on the same page misses.
//
// There are three kinds of holds. A [Ref] is a local reference ([Cache.Register], an API call) or a graph's
// ([Cache.RetainGraph], a capture). [Cache.RegisterAuto] makes claims without a reference; when a limit is reached,
// they are evicted, least recently used first. Lookups raise a claim's in-flight count until [Claim.Release]. A local
// lookup never returns a claim that only a graph holds. When a claim ends (a last Close, an eviction, [Cache.Forget],
// [Cache.Invalidate]), lookups miss it at once, and it is deregistered when its last in-flight use leaves.
//
// Everything here is local, not collective, and safe for concurrent use. Lookups take no lock and allocate nothing. A
// rank has one cache, which its communicators share. Only what the root package re-exports, [Policy] and [Stats], is
// promised to stay.
package register
