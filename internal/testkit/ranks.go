package testkit

import "sync"

// Each runs f for all ranks at once, and returns the errors by rank.
func Each[R any](ranks []R, f func(r R) error) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() { errs[i] = f(r) })
	}
	wg.Wait()
	return errs
}
