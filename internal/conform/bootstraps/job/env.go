package main

import (
	"fmt"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/conform/bootstraps"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() { suites["env"] = runEnv }

// runEnv runs one case of the suite on Env().
func runEnv(args []string) error {
	if len(args) != 1 || bootstraps.Cases[args[0]] == nil {
		return fmt.Errorf("want one case")
	}
	b, err := bootstrap.Env()
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d\n", b.Rank(), b.Size())
	return bootstraps.Cases[args[0]](b, bootstraps.Promises{Tells: true, Group: 1}, testkit.FixedSeed())
}
