package p2p_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/gputest"
)

func TestMain(m *testing.M) { gputest.Main(8, func() int { return await.Main(m) }) }
