package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// way is how an all-reduce beyond eager size goes.
type way int

const (
	twoShotWay way = iota
	oneShot
	push
)

// runReduce is the reduce family beyond eager size. Which way it goes depends on the descriptors, which all ranks see.
func runReduce(ctx context.Context, c *engine.Comm, w *engine.Work) error {
	if w.Count == 0 {
		return nil
	}
	k := newCall(ctx, c, w)
	srcBytes, dstBytes := w.Count*k.size, w.Count*k.size
	if w.Kind == engine.KindReduceScatter {
		srcBytes *= k.n
	}
	if w.Kind != engine.KindAllReduce {
		dstBytes = 0 // nobody reads or writes another rank's
	}
	srcs, dsts, how, err := c.Buffers(srcBytes, dstBytes)
	if err != nil {
		return err
	}
	if w.Kind == engine.KindAllReduce {
		switch choose(c, srcBytes, how) {
		case oneShot:
			return k.oneShot(srcs)
		case push:
			return k.push(srcs, dsts, how)
		}
	}
	return k.twoShot(srcs, dsts, how)
}

// choose is the way of an all-reduce of so many bytes.
func choose(c *engine.Comm, bytes int, how engine.Where) way {
	switch algorithm := c.Options().Algorithm; {
	case algorithm == "two-shot":
		return twoShotWay
	case algorithm == "one-shot" && how.AllSrc && !how.InPlace:
		return oneShot
	case algorithm == "push" && how.AllSrc && how.AllDst:
		return push
	case algorithm != "":
		return twoShotWay
	case how.AllSrc && how.AllDst && (how.InPlace || bytes >= c.Tuning().PushFrom):
		return push
	case how.AllSrc && !how.InPlace && bytes*c.Size() <= c.Tuning().OneShotTotal:
		return oneShot
	}
	return twoShotWay
}

// alignedSlice cuts count elements of a size into n slices of whole cache lines.
func alignedSlice(count, n, size int) int {
	line := 64/size - 1
	return ((count+n-1)/n + line) &^ line
}
