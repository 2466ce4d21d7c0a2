package gpumail_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) {
	gputest.Main(1, func() int { return testkit.Main(m) })
}
