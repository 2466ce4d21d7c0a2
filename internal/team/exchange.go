package team

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// Exchange is data that the owners of a lane on all hosts move and combine, for an operation whose reduction and type it
// has.
type Exchange struct {
	Plan schedule.Plan // in elements; the same on all hosts but for Plan.Me
	Work *Work
	// Source is this host's data, Destination where the result belongs. They may be the same. A host that has no data
	// of its own needs no Source.
	Source, Destination unsafe.Pointer
	// Sources are the data of the team's ranks, if they are not combined yet: each part is combined in Destination,
	// which is then the source, when it is needed. Copies is where else the result belongs: each part is written there
	// once it is final.
	Sources, Copies []unsafe.Pointer
	Stream          bool // Copies are written past the caches
	// Early says that the data may move while the hosts agree. Otherwise only Destination is used before Move.
	Early bool

	// Blocks is where the data are if not at the same offsets in Source and Destination, which are not used then.
	Blocks Blocks
	Size   int // of an element, if it is not one of Work's
}

// Blocks is where the data of an exchange are that go from some host to another one. They are a sequence of elements, of
// which off and n say a part. What is combined on a host is said to go to that host itself, and to come from it.
type Blocks interface {
	// Source returns where the elements for a host are, if they are together there, or nil. Fill writes them to another place.
	Source(host, off, n int) unsafe.Pointer
	Fill(to unsafe.Pointer, host, off, n int)
	// Destination returns where the elements from a host belong, and how many of them, from the first on, belong together
	// there; or nil. Take takes those that have come, whether to there or elsewhere.
	Destination(host, off, n int) (to unsafe.Pointer, together int)
	Take(from unsafe.Pointer, host, off, n int)
	// Done says that the exchange is over, or is none. Nobody uses the memory any more.
	Done()
}

// Router has data that hosts pass on in the messages by which they agree. Rounds count from 0; who sends to whom in them is the
// agreement's affair.
type Router interface {
	// Carries reports whether this host sends data in a round, and Pack writes them to a message, which has room for them.
	Carries(round int) bool
	Pack(round int, to []byte) int
	// Unpack takes the data of a round from a message. It reports whether they are as many as they must be.
	Unpack(round int, from []byte) bool
	// Conclude writes the result, once all rounds are over and the hosts have agreed. It is the last call.
	Conclude()
}

// Counting is counts that hosts tell each other.
type Counting interface {
	Blocks
	// Wrong returns what is wrong with them, once all have come, or nil.
	Wrong() *Refusal
}

// Local is what a rank does within its team beside an exchange. Offsets and lengths are in elements of the exchange.
type Local interface {
	// Need waits until this rank has its team's data of n elements from off on.
	Need(off, n int) error
	// Final says that n elements from off on are final, in the destination.
	Final(off, n int)
	// Advance does what can be done without waiting. busy says that there is more to do, which peers may wait for.
	Advance() (busy bool, err error)
}
