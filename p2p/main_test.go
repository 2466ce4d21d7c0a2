package p2p_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(8, func() int { return testkit.Main(m) }) }
