package ofi_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"unloaded": unloaded})
	os.Exit(testkit.Main(m))
}
