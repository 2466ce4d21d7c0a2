package testkit

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each case has its turn: in one of so many commits without the race detector, and in another with it. The first has all.
func TestTurn(t *testing.T) {
	t.Setenv("UBCOLL_TEST_FULL", "")
	const of, cases = 3, 7
	count := map[int]int{}
	for turn := range uint64(of) {
		for i := range cases {
			if comes(turn, i, of, false) {
				count[i]++
				require.False(t, comes(turn, i, of, true), i)
			}
		}
	}
	for i := range cases {
		require.Equal(t, 1, count[i], i)
	}
	for name, want := range map[string]int{"": cases, "0": 3, "1": 3} { // of 1, the first, and either 2 and 5 or 1 and 4
		t.Setenv(turnVar, name)
		ran := 0
		for i := range cases {
			t.Run("case", func(t *testing.T) {
				Turn(t, i, of)
				ran++
			})
		}
		some := Turns(t, of, []int{0, 1, 2, 3, 4, 5, 6})
		require.Equal(t, 0, some[0])
		require.Len(t, some, ran)
		require.GreaterOrEqual(t, ran, want, name)
	}
	sampled := map[int]int{}
	for turn := range 60 {
		t.Setenv(turnVar, strconv.Itoa(turn))
		for _, i := range Sample(3, []int{0, 1, 2, 3, 4, 5, 6}) {
			sampled[i]++
		}
	}
	for i := range cases {
		if Daily() { // has none
			require.Equal(t, i%3 == 0, sampled[i] == 60, "%d: %d", i, sampled[i])
			continue
		}
		require.NotZero(t, sampled[i], i)
		require.Equal(t, i == 0, sampled[i] == 60, "%d: %d", i, sampled[i])
	}
	t.Setenv(turnVar, "1")
	t.Setenv("UBCOLL_TEST_FULL", "1")
	require.Len(t, Turns(t, of, make([]int, cases)), cases)
}
