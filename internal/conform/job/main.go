// Command job runs suites of package conform, named by its arguments, one after the other. Any launcher can start it.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func main() {
	o := ubcoll.Options{Timeout: testkit.Limit}
	if env.Timeout.IsSet() {
		o.Timeout = 0
	}
	if len(os.Args) > 1 && os.Args[1] == making {
		os.Exit(makeAndKill(o))
	}
	if os.Getenv(runVar) != "" {
		os.Exit(report(o))
	}
	ubcoll.Main(o, run)
}

// run is what one rank does.
func run(ctx context.Context, c *ubcoll.Comm) error {
	for _, name := range os.Args[1:] {
		s := suites[name]
		if s == nil {
			return fmt.Errorf("no suite %q among %v: %w", name, slices.Sorted(maps.Keys(suites)), ubcoll.ErrArgument)
		}
		start := time.Now()
		if err := s(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if c.Rank() == 0 {
			fmt.Printf("ok %s: %d ranks, %v\n", name, c.Size(), time.Since(start).Round(time.Millisecond))
		}
	}
	return nil
}
