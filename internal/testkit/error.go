package testkit

import (
	"errors"
	"fmt"
)

// ErrOf is the error of a call with another result.
func ErrOf[T any](_ T, err error) error { return err }

// Wants is an error unless err wraps all of want.
func Wants(err error, want ...error) error {
	for _, w := range want {
		if !errors.Is(err, w) {
			return fmt.Errorf("want %q, got: %w", w, err)
		}
	}
	return nil
}

// WantsOf is Wants of one check among several: what it says names the rank, and what was looked at.
func WantsOf(rank int, what string, err error, want ...error) error {
	if err := Wants(err, want...); err != nil {
		return fmt.Errorf("rank %d: %s: %w", rank, what, err)
	}
	return nil
}
