package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/ubcoll/ubcoll/bootstrap"
)

const versionUsage = `version [flags]

Prints of what this program was built: module, revision, Go, MPI.`

// about says what this program was built from.
type about struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified"` // the files differed from the revision
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cgo      bool   `json:"cgo"`
	MPI      string `json:"mpi,omitempty"` // the linked library; "" = none
}

func built() about {
	a := about{Version: "devel", Revision: setting("vcs.revision"), Modified: setting("vcs.modified") == "true",
		Time: setting("vcs.time"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Cgo: setting("CGO_ENABLED") == "1", MPI: bootstrap.MPILibrary()}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		a.Version = b.Main.Version
	}
	return a
}

// String returns the version on one line: the module's, and the revision unless the module's version names it.
func (a about) String() string {
	v, r := a.Version, a.Revision[:min(12, len(a.Revision))]
	if r != "" && !strings.Contains(v, r) {
		v += " " + r
		if a.Modified {
			v += "+dirty"
		}
	}
	return v
}

// version returns the version that results have of the program that measured them.
func version() string { return built().String() }

// printVersion is the command version.
func printVersion(args []string, out io.Writer) error {
	fs := newFlags("version")
	asJSON := fs.Bool("json", false, "as JSON")
	if err := parseFlags(fs, args, versionUsage, out); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	a := built()
	if *asJSON {
		return writeJSON(out, a)
	}
	mpi, cgo := "without MPI", "without cgo"
	if a.MPI != "" {
		mpi = a.MPI
	}
	if a.Cgo {
		cgo = "cgo"
	}
	_, err := fmt.Fprintf(out, "ubcoll %v\n%s %s, %s\n%s\n", a, a.Go, a.Platform, cgo, mpi)
	return err
}

func writeJSON(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	_, werr := fmt.Fprintf(out, "%s\n", text)
	return errors.Join(err, werr)
}

func setting(key string) string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == key {
				return s.Value
			}
		}
	}
	return ""
}
