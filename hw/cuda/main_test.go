package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var children = map[string]func() error{}

// setLibrary sets the library to load in place of the driver's, in builds that load one.
var setLibrary = func(path string) {}

func TestMain(m *testing.M) {
	if lib := os.Getenv("UBCOLL_TEST_LIBRARY"); lib != "" {
		setLibrary(lib)
	}
	testkit.Children(children)
	os.Exit(m.Run())
}

func init() {
	children["probe"] = func() error {
		fmt.Println(cuda.Have())
		return nil
	}
}
