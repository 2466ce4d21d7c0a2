package engine_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/await"
)

func TestMain(m *testing.M) { os.Exit(await.Main(m)) }
