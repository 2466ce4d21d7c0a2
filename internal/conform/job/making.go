package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
)

// making is the argument that runs endings.KillMaking, which opens its communicators itself.
const making = "kill-making"

func makeAndKill(o ubcoll.Options) int {
	b, err := bootstrap.Env()
	if err == nil {
		err = endings.KillMaking(context.Background(), b, o)
	}
	if err == nil {
		err = b.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return ubcoll.ExitCode(err)
}
