package net

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"echo": echo, "raw": raw})
	os.Exit(testkit.Main(m))
}
