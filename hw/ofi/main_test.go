//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(children)
	os.Exit(testkit.Main(m))
}

// children are functions that tests run in processes of their own.
var children = map[string]func() error{}
