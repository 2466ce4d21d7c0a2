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
}
