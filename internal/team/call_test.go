package team

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
)

// What hosts tell each other says what the word says that ranks of a host compare.
func TestCall(t *testing.T) {
	for _, k := range []struct {
		name string
		w    Work
		want Call
	}{
		{"all fields", Work{Kind: KindReduce, Type: dtype.Float32, Red: Max, Root: 4095, Count: MaxCount},
			Call{uint64(KindReduce)<<56 | uint64(dtype.Float32)<<48 | uint64(Max)<<40 | 4095, MaxCount}},
		{"barrier", Work{Kind: KindBarrier}, Call{uint64(KindBarrier) << 56, 0}},
		{"broadcast of nothing", Work{Kind: KindBroadcast, Type: dtype.Int8, Root: 1}, Call{uint64(KindBroadcast)<<56 | uint64(dtype.Int8)<<48 | 1, 0}},
	} {
		t.Run(k.name, func(t *testing.T) {
			require.Equal(t, k.want, k.w.Call())
			require.Equal(t, k.want, CallOf(k.w.Signature()))
		})
	}
	works := []Work{{Kind: KindAllReduce, Type: dtype.Float32, Red: Sum, Count: 3}, {Kind: KindAllReduce, Type: dtype.Float32, Red: Sum, Count: 4}}
	sum, max := CallOf(GroupSignature(works)), CallOf(GroupSignature([]Work{works[0], {Kind: KindAllReduce, Type: dtype.Float32, Red: Max, Count: 4}}))
	require.NotEqual(t, sum, max, "the hash is the root")
	require.Equal(t, uint64(7), sum.Low)
	require.Equal(t, uint64(KindGroup)<<56|uint64(dtype.Float32)<<48|1<<32, sum.High&^(1<<27-1), "two operations")
}

func TestTally(t *testing.T) {
	call := func(n int) Call { return (&Work{Kind: KindBarrier, Count: n}).Call() }
	var y Tally
	for _, z := range []Tally{
		{Votes: []Vote{{call(1), 2, 6}, {call(2), 1, 5}}},
		{Refused: &Refusal{Rank: 9}, Votes: []Vote{{call(3), 2, 3}}, Others: 4},
		{Refused: &Refusal{Rank: 8}, Votes: []Vote{{call(2), 3, 1}}},
		{Refused: &Refusal{Rank: 10}},
	} {
		y.Add(&z)
	}
	require.Equal(t, 8, y.Refused.Rank)
	y.Cut(3)
	require.Equal(t, []Vote{{call(2), 4, 1}, {call(3), 2, 3}, {call(1), 2, 6}}, y.Votes)
	require.Equal(t, 4, y.Others)
	y.Cut(1)
	require.Equal(t, []Vote{{call(2), 4, 1}}, y.Votes)
	require.Equal(t, 8, y.Others)
}
