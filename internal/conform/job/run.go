package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// runVar makes the program call ubcoll.Run instead of Main. Its value is the number of processes, each of which reports
// the result.
const runVar = "CONFORM_RUN"

// outcome is the result of Run in one process.
type outcome struct {
	Code    int
	Aborted bool
	Peer    int // -1 if the error names none
	Text    string
	Left    string // what is left behind
	Again   string // the error of a second Run, if one is made
}

// report calls Run, and returns its exit code after all processes have reported: launchers end a job when one process
// exits.
func report(o ubcoll.Options) int {
	before := held()
	err := ubcoll.Run(context.Background(), o, run)
	r := outcome{Code: ubcoll.ExitCode(err), Aborted: errors.Is(err, ubcoll.ErrAborted), Peer: -1, Text: fmt.Sprint(err)}
	if e, ok := errors.AsType[*ubcoll.Error](err); ok {
		r.Peer = e.Peer
	}
	testkit.UntilFor(testkit.Limit/4, func() bool { return held() == before })
	if now := held(); now != before {
		r.Left = fmt.Sprintf("%+v, and before %+v", now, before)
	}
	if os.Getenv("CONFORM_AGAIN") != "" {
		r.Again = fmt.Sprint(ubcoll.Run(context.Background(), o, run))
	}
	dir, err := conform.Dir()
	if err == nil {
		err = r.write(endings.RunFile(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	testkit.Until(func() bool { return fmt.Sprint(len(endings.RunFiles(dir))) == os.Getenv(runVar) })
	return r.Code
}

func (r *outcome) write(name string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	aside := filepath.Join(filepath.Dir(name), "."+filepath.Base(name))
	return testkit.InOrder(
		func() error { return os.WriteFile(aside, b, 0o600) },
		func() error { return os.Rename(aside, name) })
}

// holding counts what Run could leave behind.
type holding struct{ Goroutines, Descriptors, Mappings int }

func held() holding {
	maps, _ := os.ReadFile("/proc/self/maps")
	h := holding{Goroutines: runtime.NumGoroutine(), Mappings: strings.Count(string(maps), "memfd:ubcoll")}
	if os.Getenv("CONFORM_LAUNCH") == "" { // an MPI opens some, and keeps them
		fds, _ := os.ReadDir("/proc/self/fd")
		h.Descriptors = len(fds)
	}
	return h
}
