//go:build !linux

package ofi

import "github.com/ubcoll/ubcoll/register"

func readOnly(register.Memory) bool { return false } // there is no libfabric here
