package team

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	flag.Parse()
	if s := os.Getenv("TEST_SEED"); s != "" { // rapid logs the seed of what fails
		if err := flag.Set("rapid.seed", s); err != nil {
			fmt.Fprintln(os.Stderr, "TEST_SEED:", err)
			os.Exit(2)
		}
	}
	os.Exit(testkit.Main(m))
}
