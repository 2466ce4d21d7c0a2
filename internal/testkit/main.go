package testkit

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// Main runs m's tests, and then fails if goroutines are left behind, or descriptors that internal/fdtrace knows. Pass its
// result to os.Exit.
func Main(m *testing.M) int {
	fdtrace.Start()
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := leaks(); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines stay behind:", err)
		return 1
	}
	if open := fdtrace.Since(0); open != "" {
		fmt.Fprintln(os.Stderr, "descriptors stay behind:\n"+open)
		return 1
	}
	return 0
}

// NoLeaks returns a function that fails t if goroutines started since this call are left behind, or descriptors that
// internal/fdtrace knows.
func NoLeaks(t testing.TB) (check func()) {
	fdtrace.Start()
	before, opened := goleak.IgnoreCurrent(), fdtrace.Mark()
	return func() {
		t.Helper()
		if err := leaks(before); err != nil {
			t.Error("goroutines stay behind:", err)
		}
		if open := fdtrace.Since(opened); open != "" {
			t.Error("descriptors stay behind:\n" + open)
		}
	}
}

// leaks returns an error for goroutines that do not end. It gives them time to.
func leaks(options ...goleak.Option) error {
	for start := time.Now(); ; {
		err := goleak.Find(options...)
		if err == nil || time.Since(start) > Limit/4 {
			return err
		}
	}
}

// Rapid is for the TestMain of a package with random tests by rapid. settings are rapid's flags, like "checks=60"; the
// command line can change them. TEST_SEED repeats a run: rapid logs the seed of a failure. No test writes a file.
func Rapid(settings ...string) {
	set := func(name, value string) error { return flag.Set("rapid."+name, value) }
	for _, s := range append(settings, "nofailfile=true") {
		name, value, _ := strings.Cut(s, "=")
		if err := set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	if s := os.Getenv(seedVar); s != "" {
		if err := set("seed", s); err != nil {
			fmt.Fprintln(os.Stderr, seedVar+":", err)
			os.Exit(2)
		}
	}
}
