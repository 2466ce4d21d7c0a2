package gpuend_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(2, func() int { return testkit.Main(m) }) }
