package onesided_test

import (
	"context"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

var background = context.Background()

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
