//go:build !linux

package faults

import (
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// Check returns why this process cannot do what all want of it, or nil.
func Check([]Fault, int) error { return nil } // Open is not supported here

func kill() {}

func stop(time.Duration) error { return fault.ErrNotSupported }
