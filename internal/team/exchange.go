package team

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// Exchange is data that the leaders of all hosts move and combine, for an operation whose reduction and type it has.
type Exchange struct {
	Plan schedule.Plan // in elements; the same on all hosts but for Plan.Me
	Work *Work
	// Source is this host's data, Destination where the result belongs. They may be the same. A host that has no data
	// of its own needs no Source.
	Source, Destination unsafe.Pointer
}
