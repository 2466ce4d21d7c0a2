//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestHostsShrink kills ranks and hosts one after the other, or cuts links, in jobs across hosts whose ranks shrink the
// communicator: those that are left agree on the members of each communicator that they made, and those that are cut off know it.
func TestHostsShrink(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 4))
		for k := range testkit.Often(30) {
			own := rand.New(rand.NewPCG(pick.Uint64(), 0))
			kind := []int{cutLink, killRank, killHost}[k%3]
			t.Run(fmt.Sprintf("%d/%s", k, []string{"rank", "host", "link"}[kind]), func(t *testing.T) { shrinkAcross(t, kind, own) })
		}
	}
}

// shrunk is how a job with deaths of some ranks is to end.
type shrunk struct {
	p    place
	dead []int
	out  []int // that live, and without whom the others go on
}

func (s *shrunk) left() int { return s.p.size() - len(s.dead) - len(s.out) }

// without are the ranks of hosts that are cut off from others: which of these go on is known from the sizes.
func (s *shrunk) without(a, b int) {
	on := make([][]int, len(s.p.ranks))
	for r := range s.p.size() {
		on[s.p.host(r)] = append(on[s.p.host(r)], r)
	}
	switch {
	case b < 0: // a is cut off from all
		if rest := s.p.size() - len(on[a]); len(on[a]) < rest || len(on[a]) == rest && on[a][0] != 0 {
			s.out = on[a]
			return
		}
		for h, ranks := range on {
			if h != a {
				s.out = append(s.out, ranks...)
			}
		}
	case len(on[a]) < len(on[b]), len(on[a]) == len(on[b]) && on[a][0] > on[b][0]:
		s.out = on[a]
	default:
		s.out = on[b]
	}
}

func shrinkAcross(t *testing.T, kind int, pick *rand.Rand) {
	all := places()
	s := shrunk{p: all[pick.IntN(len(all))]}
	n, hosts := s.p.size(), len(s.p.ranks)
	a, b := pick.IntN(hosts), -1
	switch kind {
	case killRank:
		s.dead = pick.Perm(n)[:1+pick.IntN(n-1)]
	case killHost:
		for r := range n {
			if s.p.host(r) == a {
				s.dead = append(s.dead, r)
			}
		}
	case cutLink:
		if b = pick.IntN(hosts); a == b || hosts == 2 {
			b = -1
		}
		s.without(a, b)
	}
	if kind == killHost { // those of a host that is silent may be alive
		half := shrunk{p: s.p}
		if half.without(a, -1); !slices.Equal(half.out, s.dead) {
			for r := range n {
				if !slices.Contains(s.dead, r) {
					s.out = append(s.out, r)
				}
			}
		}
	}
	bin := program(t)
	dir, tmp := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(endings.LeftFile(dir), fmt.Append(nil, s.left()), 0o600))
	h := across(t, hosts, s.p.options(), []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp, env.NetTimeout.Name + "=2s"}, bin, "shrink")
	awaitReady(t, dir, n, func(int) string { return h.out.String() })
	letter := func(host int) string { return string(rune('a' + host)) }
	what := fmt.Sprintf("%v: %v die, %v are cut off (%d from %d)", s.p, s.dead, s.out, a, b)
	switch kind {
	case killRank:
		for _, v := range s.dead {
			time.Sleep(time.Duration(pick.IntN(40_000)) * time.Microsecond)
			var pid int
			text, err := os.ReadFile(endings.ReadyFile(dir, v))
			require.NoError(t, err)
			_, err = fmt.Sscan(string(text), &pid)
			require.NoError(t, err)
			h.do(t, "signal", letter(s.p.host(v)), "KILL", fmt.Sprint(pid))
		}
	case killHost:
		h.do(t, "kill", letter(a))
	case cutLink:
		if b < 0 {
			h.do(t, "cut", letter(a))
		} else {
			h.do(t, "cut", letter(a), letter(b))
		}
	}
	said := ""
	for r := range n {
		if slices.Contains(s.dead, r) {
			continue
		}
		var text string
		if !testkit.Until(func() bool {
			b, err := os.ReadFile(endings.ShrunkFile(dir, r))
			text = string(bytes.TrimSpace(b))
			return err == nil
		}) {
			t.Fatalf("rank %d says nothing: %s: %s", r, what, h.out.String())
		}
		switch was, why, refused := strings.Cut(text, ": "); {
		case slices.Contains(s.out, r):
			require.True(t, refused, "rank %d: %s: %s", r, what, text)
			require.Contains(t, []string{"lost", "aborted"}, was, text)
			t.Logf("rank %d: %s", r, why)
			continue
		case said == "":
			said = text
		}
		require.Equal(t, said, text, "rank %d: %s", r, what)
		_, members, _ := strings.Cut(text, " | ")
		require.Len(t, strings.Fields(members), s.left(), "rank %d: %s: %s", r, what, text)
	}
	t.Logf("%s: %s", what, said)
	_ = h.wait(t)
	require.Empty(t, leftovers(t, tmp))
}
