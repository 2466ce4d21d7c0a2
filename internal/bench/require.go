package bench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
)

// Required returns an error if UBCOLL_REQUIRE lists something that this job does without. The error names everything
// that is missing and wraps fault.ErrNotSupported. have names what the caller knows to be in use. Local.
func Required(c *ubcoll.Comm, have ...string) error {
	list, err := env.Require.Get()
	if err != nil {
		return err
	}
	var errs []error
	missing := func(what string, why error) {
		if why != nil {
			errs = append(errs, fmt.Errorf("%s lists %s: %w", env.Require.Name, what, why))
		}
	}
	for _, what := range list {
		if slices.Contains(have, what) {
			continue
		}
		switch what {
		case "mpi":
			if !bootstrap.UsesMPI() {
				missing(what, fmt.Errorf("these ranks are not MPI's (build with -tags mpi, start with mpirun): %w",
					fault.ErrNotSupported))
			}
		case "cuda":
			_, err := c.GPU()
			missing(what, err)
		case "verbs": // with UBCOLL_IB, Open has looked for a device, and each pair of ranks of different hosts has
			if when, err := env.IB.Get(); err == nil && when == "off" {
				missing(what, fmt.Errorf("%s=off: %w", env.IB.Name, fault.ErrNotSupported))
			}
		case "hosts": // every job can run on several hosts, and none has to
		}
	}
	return errors.Join(errs...)
}
