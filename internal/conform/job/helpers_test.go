package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Barrier is a collective that waits for everybody, with data.
func Barrier(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
	return coll.AllReduce(ctx, c, x, x, ubcoll.Sum)
}

// freshSeed is TEST_SEED, or a seed of this run's own.
func freshSeed(t *testing.T) uint64 {
	t.Helper()
	seed := conform.Seed()
	if os.Getenv("TEST_SEED") == "" {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("TEST_SEED=%d", seed)
	return seed
}
