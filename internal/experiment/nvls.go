package experiment

import (
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// NVLS has the values of -nvls and of the keys nvls.
var NVLS = []string{"off", "on"}

// SetNVLS does what -nvls and the keys nvls say: it sets UBCOLL_NVLS of this process. Call it before anything opens a
// communicator, with the same value on all ranks. "" leaves the variable alone. The error of on says why there can be no
// multicast here, in another build or without a driver, so that nobody takes a run without for one with. Local.
func SetNVLS(value string) error {
	if value == "" {
		return nil
	}
	if err := IsNVLS(value); err != nil {
		return err
	}
	if err := os.Setenv(env.NVLS.Name, value); err != nil || value != "on" {
		return err
	}
	return cuda.HaveMulticast().Err
}

// IsNVLS returns an error if value is none of NVLS. Local.
func IsNVLS(value string) error {
	for _, v := range NVLS {
		if v == value {
			return nil
		}
	}
	return fmt.Errorf("%s", nearest.Unknown("value", value, NVLS))
}
