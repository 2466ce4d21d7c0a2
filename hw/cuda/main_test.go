package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var children = map[string]func() error{}

// setLibrary names another library than the driver's, where there is one to load.
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
