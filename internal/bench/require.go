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

// Required is an error that wraps fault.ErrNotSupported and names everything that UBCOLL_REQUIRE lists and this job does
// without: nil if there is nothing. What is in have it does not do without. Local.
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
		case "verbs":
			missing(what, fmt.Errorf("no transport by verbs in this version: %w", fault.ErrNotSupported))
		case "hosts": // which every job can be on, and none has to
		}
	}
	return errors.Join(errs...)
}
