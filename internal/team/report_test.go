package team

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWaitWord(t *testing.T) {
	for _, k := range []struct {
		v    waitWord
		want string
	}{
		{0, "no wait"},
		{newWaitWord(KindSend, false, 3, 7), "send #7 to rank 3"},
		{newWaitWord(KindRecv, true, 4095, 1<<39-1), "recv #549755813887 of several from rank 4095"},
		{newWaitWord(KindAllReduce, false, 0, 1), "all_reduce #1 for rank 0"},
		{newWaitWord(KindSend, false, 1, 0), "send to rank 1"},
		{newWaitWord(kindOther, false, 2, 0), "a channel or window for rank 2"},
		{1<<64 - 1, "operation(255) #549755813887 of several for rank 65535"}, // damaged
	} {
		require.Equal(t, k.want, k.v.String())
	}
}

func TestFollow(t *testing.T) {
	send := func(peer int) waitWord { return newWaitWord(KindSend, false, peer, 1) }
	recv := func(peer int) waitWord { return newWaitWord(KindRecv, false, peer, 1) }
	barrier := func(peer int) waitWord { return newWaitWord(KindBarrier, false, peer, 5) }
	for _, k := range []struct {
		name   string
		all    []waitWord
		circle []int
		last   int
		text   string
	}{
		{"nobody else waits", []waitWord{recv(1), 0}, nil, 1, ""},
		{"a chain", []waitWord{recv(1), barrier(2), send(3), 0}, nil, 3, ""},
		{"two send", []waitWord{send(1), send(0)}, []int{0, 1}, -1, "a circle of sends (0 -> 1 -> 0)"},
		{"three send", []waitWord{send(2), send(0), send(1)}, []int{0, 2, 1}, -1, "a circle of sends (0 -> 2 -> 1 -> 0)"},
		{"all receive", []waitWord{recv(1), recv(0)}, []int{0, 1}, -1, "a circle of receives (0 -> 1 -> 0)"},
		{"a circle of others", []waitWord{send(2), send(2), send(1)}, []int{2, 1}, -1, "a circle of sends (1 -> 2 -> 1)"},
		{"different orders", []waitWord{recv(1), barrier(0)}, []int{0, 1}, -1, "they make their calls in different orders"},
		{"itself", []waitWord{recv(0)}, []int{0}, -1, "a circle of receives (0 -> 0)"},
	} {
		t.Run(k.name, func(t *testing.T) {
			circle, last := follow(k.all, 0, k.all[0].peer())
			require.Equal(t, k.circle, circle)
			require.Equal(t, k.last, last)
			if circle != nil {
				require.Contains(t, explain(k.all, circle), k.text)
			}
		})
	}
}

// ranksTo are the ranks below n.
func ranksTo(n int) (all []int) {
	for r := range n {
		all = append(all, r)
	}
	return all
}

// TestList: equal waits of many ranks are listed together, and the list is never long.
func TestList(t *testing.T) {
	all := make([]waitWord, 20)
	for r := range all {
		if r != 9 {
			all[r] = newWaitWord(KindBarrier, false, 9, 1)
		}
	}
	require.Equal(t, "ranks 0-8, 10-19 in barrier #1 for rank 9, rank 9 in no wait", list(all, ranksTo(len(all))))
	all = make([]waitWord, 4096)
	for r := range all {
		all[r] = newWaitWord(KindSend, true, (r+1)%4096, 1e6)
	}
	circle, _ := follow(all, 0, 1)
	require.Less(t, len(explain(all, circle)+list(all, ranksTo(len(all)))), TextBytes)
	require.Contains(t, list(all, ranksTo(len(all))), "and so on")
	for r := range all {
		all[r] = newWaitWord(KindSend, false, r%2, 1)
	}
	require.Less(t, len(list(all, ranksTo(len(all)))), 300)
}
