package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func set(n int, ranks ...int) Set {
	s := make(Set, Words(n))
	for _, r := range ranks {
		s.Add(r)
	}
	return s
}

func TestSet(t *testing.T) {
	a, b := set(130, 0, 63, 64, 129), set(130, 63, 129)
	require.Equal(t, 4, a.Count())
	require.True(t, a.Has(129))
	require.False(t, a.Has(128))
	require.True(t, a.Holds(b))
	require.False(t, b.Holds(a))
	require.False(t, a.Equal(b))
	b.join(a)
	require.True(t, a.Equal(b))
}

// TestNext checks what rank 0 of three does next, at each step and after each thing that it may hear.
func TestNext(t *testing.T) {
	const n = 3
	at := func(attempt uint32, step Step, gone ...int) State {
		return State{Attempt: attempt, Step: step, Gone: set(n, gone...)}
	}
	ended := at(1, Mapped, 2)
	ended.Done = 1
	again := at(2, Proposed, 2)
	again.Done = 1
	without := at(1, Mapped, 0, 2)
	without.Done = 1
	for _, k := range []struct {
		name     string
		step     Step // of rank 0, with rank 2 gone
		one, two State
		lost     []int
		v        Verdict
		about    int
		then     State // rank 0's
	}{
		{"nobody has begun", Proposed, State{}, State{}, nil, Wait, 1, at(1, Proposed, 2)},
		{"another knows less", Proposed, at(1, Proposed), State{}, nil, Wait, 1, at(1, Proposed, 2)},
		{"the same set", Proposed, at(1, Proposed, 2), State{}, nil, Ready, -1, at(1, Proposed, 2)},
		{"another is further", Proposed, at(1, Made, 2), State{}, nil, Ready, -1, at(1, Proposed, 2)},
		{"another is behind", Made, at(1, Proposed, 2), State{}, nil, Wait, 1, at(1, Made, 2)},
		{"all at the last step", Mapped, at(1, Mapped, 2), State{}, nil, Over, -1, ended},
		{"another has ended", Mapped, ended, State{}, nil, Over, -1, ended},
		{"and begun again", Mapped, again, State{}, nil, Over, -1, ended},
		{"another has ended without this rank", Proposed, without, State{}, nil, Excluded, 1, at(1, Proposed, 2)},
		{"another says that this rank is gone", Made, at(1, Proposed, 0), State{}, nil, Excluded, 1, at(1, Made, 2)},
		{"what a rank says that is gone", Proposed, at(1, Proposed, 2), at(1, Proposed, 0, 1), nil, Ready, -1, at(1, Proposed, 2)},
		{"another gave up", Made, at(1, Refused, 2), State{}, nil, Failed, 1, at(1, Made, 2)},
		{"another has begun again", Made, at(2, Proposed, 2), State{}, nil, Ready, -1, at(2, Proposed, 2)},
		{"and this rank was nearly done", Mapped, at(2, Proposed, 2), State{}, nil, Ready, -1, at(2, Proposed, 2)},
		{"it has given up two attempts", Made, at(2, Refused, 2), State{}, nil, Failed, 1, at(2, Proposed, 2)},
		{"another has ended without this rank, and begun again", Made, again, State{}, nil, Excluded, 1, at(1, Made, 2)},
		{"the last other is gone", Made, at(1, Made, 2), State{}, []int{1}, Ready, -1, at(1, Proposed, 1, 2)},
		{"the last other is gone, after it did the last step", Made, at(1, Mapped, 2), State{}, []int{1}, Ready, -1, at(1, Proposed, 1, 2)},
		{"the same, and so has this rank", Mapped, at(1, Mapped, 2), State{}, []int{1}, Over, -1, ended},
	} {
		t.Run(k.name, func(t *testing.T) {
			a := New(0, n, Mapped, State{}, make([]State, n))
			a.Lost(2)
			v, about := a.Next()
			require.Equal(t, Wait, v)
			require.Equal(t, 1, about)
			for a.mine.Step < k.step {
				a.Advance()
			}
			a.Heard(1, k.one)
			a.Heard(2, k.two)
			for _, r := range k.lost {
				a.Lost(r)
			}
			v, about = a.Next()
			require.Equal(t, []any{k.v, k.about, k.then}, []any{v, about, a.Mine()})
		})
	}
}

// A rank joins an attempt that others have begun, not one before it.
func TestJoins(t *testing.T) {
	a := New(0, 2, Mapped, State{Attempt: 1, Done: 1}, []State{{}, {Attempt: 4, Step: Proposed, Gone: set(2)}})
	v, _ := a.Next()
	require.Equal(t, Ready, v)
	require.Equal(t, State{Attempt: 4, Step: Proposed, Gone: set(2), Done: 1}, a.Mine())
}

// A rank that gives up is left out once it has told of its last step.
func TestRefuse(t *testing.T) {
	for step := Proposed; step <= Mapped; step++ {
		a := New(0, 2, Mapped, State{}, make([]State, 2))
		for range step - Proposed {
			a.Advance()
		}
		require.Equal(t, step == Mapped, a.Refuse())
		require.Equal(t, step == Mapped, a.Mine().Step != Refused)
	}
}

// world is ranks that tell each other their states by messages, which come late, in order; who dies has told some only.
type world struct {
	n       int
	r       *rand.Rand
	ranks   []*side
	seen    [][]int // by rank and other: how many of its states have come
	history [][]State
	dead    []bool
	heard   [][]int // by dead rank and other: how many of its states come at all
}

type side struct {
	a     *Agreement
	over  Verdict // Over or Excluded at the end
	fails int     // how often it has given up
}

// again has a rank that gives up its attempt begin another one.
func (w *world) again(r int) {
	s := w.ranks[r]
	if s.a.Refuse() {
		w.kill(r)
		return
	}
	w.tell(r)
	s.fails++
	s.a = New(r, w.n, Connected, s.a.Mine(), s.a.told)
	w.tell(r)
}

func (w *world) tell(r int) {
	s := w.ranks[r].a.Mine()
	s.Gone = slices.Clone(s.Gone)
	w.history[r] = append(w.history[r], s)
}

func (w *world) kill(r int) {
	w.dead[r] = true
	w.heard[r] = make([]int, w.n)
	for o := range w.n { // each other may have got any number of what was told, at least what it has seen
		w.heard[r][o] = w.seen[o][r] + w.r.IntN(len(w.history[r])-w.seen[o][r]+1)
	}
}

// turn lets a rank take what has come, and do what is next.
func (w *world) turn(r int) {
	s := w.ranks[r]
	before := s.a.Mine()
	for o := range w.n {
		have := len(w.history[o])
		if w.dead[o] {
			have = w.heard[o][r]
		}
		n := min(w.seen[r][o]+w.r.IntN(3), have)
		for ; w.seen[r][o] < n; w.seen[r][o]++ {
			s.a.Heard(o, w.history[o][w.seen[r][o]])
		}
		if w.dead[o] && n == have && w.r.IntN(2) == 0 {
			s.a.Lost(o)
		}
	}
	v, _ := s.a.Next()
	switch v {
	case Ready:
		if w.r.IntN(3) > 0 { // else its work takes time
			s.a.Advance()
		}
	case Failed:
		w.again(r)
		return
	case Over, Excluded:
		s.over = v
	}
	if after := s.a.Mine(); after.Step != before.Step || after.Attempt != before.Attempt || after.Done != before.Done || !after.Gone.Equal(before.Gone) {
		w.tell(r)
	}
}

// TestRandom kills ranks at any time, and one may give up: all that are left end alike, with the same ranks, none of which had died
// before it began.
func TestRandom(t *testing.T) {
	r := testkit.Random(t)
	outcomes := map[string]int{}
	for round := range testkit.Often(100_000) {
		n := 2 + r.IntN(5)
		w := &world{n: n, r: r, ranks: make([]*side, n), seen: make([][]int, n), history: make([][]State, n), dead: make([]bool, n), heard: make([][]int, n)}
		for i := range n {
			before := State{}
			if r.IntN(4) == 0 {
				before.Attempt = 1 // it has given up one that others have not come to
			}
			w.ranks[i], w.seen[i] = &side{a: New(i, n, Connected, before, make([]State, n))}, make([]int, n)
			w.tell(i)
		}
		early := set(n)
		deaths := r.IntN(n)
		for i := range deaths / 2 {
			w.kill(i)
			early.Add(i)
		}
		left := deaths - deaths/2
		refuses := -1
		if r.IntN(8) == 0 {
			refuses = n - 1
		}
		steps := 0
		for ; ; steps++ {
			require.Less(t, steps, 100_000, "round %d: it does not end", round)
			open := 0
			for i := range n {
				if !w.dead[i] && w.ranks[i].over == Wait {
					open++
				}
			}
			if open == 0 {
				break
			}
			i := r.IntN(n)
			switch {
			case w.dead[i]:
			case left > 0 && i != n-1 && r.IntN(40) == 0: // also one that has ended
				w.kill(i)
				left--
			case w.ranks[i].over != Wait:
			case i == refuses && w.ranks[i].fails < 2 && r.IntN(10) == 0:
				w.again(i)
			default:
				w.turn(i)
			}
		}
		var sets []Set
		for i, s := range w.ranks {
			if w.dead[i] {
				continue
			}
			outcomes[fmt.Sprint(s.over, s.fails > 0)]++
			require.Equal(t, Over, s.over, "round %d: rank %d", round, i)
			require.False(t, s.a.Ended().Has(i), "round %d: rank %d", round, i)
			for o := range n {
				require.False(t, s.a.Ended().Has(o) && !w.dead[o], "round %d: rank %d takes rank %d, which lives, for gone", round, i, o)
			}
			require.True(t, s.a.Ended().Holds(early), "round %d: rank %d", round, i)
			if !slices.ContainsFunc(sets, s.a.Ended().Equal) {
				sets = append(sets, s.a.Ended())
			}
		}
		require.LessOrEqual(t, len(sets), 1, "round %d", round)
	}
	t.Log(outcomes)
	require.Positive(t, outcomes[fmt.Sprint(Over, false)])
	require.Positive(t, outcomes[fmt.Sprint(Over, true)])
}
