package ubcoll_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"driver": childDriver, "log": childLog, "end": childEnd, "main": childMain, "open": childOpen})
	gputest.Main(4, m.Run)
}
