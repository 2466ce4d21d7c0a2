package main

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// Barrier is a collective that waits for everybody, with data.
func Barrier(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
	return coll.AllReduce(ctx, c, x, x, ubcoll.Sum)
}
