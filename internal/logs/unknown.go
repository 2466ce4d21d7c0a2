package logs

import (
	"log/slog"
	"os"
	"sync"

	"github.com/ubcoll/ubcoll/internal/env"
)

var unknown sync.Once

// WarnUnknown warns, once in a process, of variables that look as if they were ours.
func WarnUnknown(log *slog.Logger) {
	unknown.Do(func() {
		names, near := env.Unknown(os.Environ())
		for i, name := range names {
			what := "no such variable"
			if near[i] != "" {
				what += ": did you mean " + near[i] + "?"
			}
			log.Warn("ubcoll: "+what, "variable", name)
		}
	})
}
