package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda"
)

// The test program runs itself as another process: what the variable names is what that process does.
const childVar = "UBCOLL_TEST_CHILD"

var children = map[string]func() error{}

// setLibrary names another library than the driver's, where there is one to load.
var setLibrary = func(path string) {}

func TestMain(m *testing.M) {
	if lib := os.Getenv("UBCOLL_TEST_LIBRARY"); lib != "" {
		setLibrary(lib)
	}
	if name := os.Getenv(childVar); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func init() {
	children["probe"] = func() error {
		fmt.Println(cuda.Have())
		return nil
	}
}
