package coll_test

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(24, m.Run) }
