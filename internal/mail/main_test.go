package mail_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Rapid()
	os.Exit(testkit.Main(m))
}
