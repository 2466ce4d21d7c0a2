//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	if lib := os.Getenv("UBCOLL_TEST_LIBRARY"); lib != "" {
		verbs.SetLibrary(lib)
	}
	testkit.Children(children)
	os.Exit(testkit.Main(m))
}

// children are functions that tests run in processes of their own.
var children = map[string]func() error{}
