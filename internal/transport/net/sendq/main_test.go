package sendq

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
