package testkit

import (
	"errors"
	"fmt"
)

// ErrOf returns the error of a call that also has another result.
func ErrOf[T any](_ T, err error) error { return err }

// Wants returns an error unless err wraps all of want.
func Wants(err error, want ...error) error {
	for _, w := range want {
		if !errors.Is(err, w) {
			return fmt.Errorf("want %q, got: %w", w, err)
		}
	}
	return nil
}

// WantsOf is Wants for one check among several: its error names the rank and what was checked.
func WantsOf(rank int, what string, err error, want ...error) error {
	if err := Wants(err, want...); err != nil {
		return fmt.Errorf("rank %d: %s: %w", rank, what, err)
	}
	return nil
}

// InOrder takes steps that need those before them: none runs after one that failed, whose error it returns. What
// stands by itself, as checks and cleaning up do, all runs: for that there is errors.Join.
func InOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
