package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/tuning"
)

func TestChoose(t *testing.T) {
	for _, k := range []struct {
		name string
		best map[int][]float64 // eager, one-shot, push, two-shot, push with streaming
		want tuning.Table
	}{
		{"each in turn", map[int][]float64{
			64: {1, 2, 3, 4, 9}, 1024: {1, 2, 3, 4, 9}, 4096: {5, 4, 6, 7, 9}, 65536: {90, 80, 70, 75, 90},
			1 << 20: {900, 800, 700, 750, 690}},
			tuning.Table{EagerTotal: 2048, OneShotTotal: 8192, PushFrom: 65536, StreamFrom: 1 << 20}},
		{"push everywhere", map[int][]float64{64: {1, 2, 1.5, 4, 9}, 1024: {5, 2, 1, 4, 9}},
			tuning.Table{EagerTotal: 128, PushFrom: 64, StreamFrom: never}},
		{"push never", map[int][]float64{64: {3, 2, 9, 1, 9}, 1024: {5, 2, 9, 1, 9}},
			tuning.Table{PushFrom: never, StreamFrom: 64}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var got tuning.Table
			choose(&got, k.best, 2)
			require.Equal(t, k.want, got)
		})
	}
}
