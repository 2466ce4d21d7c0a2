package roster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var background = context.Background()

// gather returns the rosters of ranks whose hosts the bootstraps name.
func gather(t *testing.T, bs []bootstrap.Bootstrap) []*roster.Roster {
	t.Helper()
	rs := make([]*roster.Roster, len(bs))
	require.NoError(t, errors.Join(testkit.Each(bs, func(b bootstrap.Bootstrap) (err error) {
		rs[b.Rank()], err = roster.Gather(background, b, nil, gpuOf(b.Rank()), nil)
		return err
	})...))
	return rs
}

// gpuOf is what a rank of gather tells about its devices.
func gpuOf(rank int) json.RawMessage { return fmt.Appendf(nil, `"gpu of %d"`, rank) }

func letter(i int) string { return fmt.Sprintf("host-%03d", i) }

// layouts are distributions of ranks over hosts.
var layouts = []struct {
	name  string
	n     int
	host  func(rank int) int
	hosts [][]int // or nil
}{
	{"one", 3, func(int) int { return 0 }, [][]int{{0, 1, 2}}},
	{"block", 6, func(r int) int { return r / 2 }, [][]int{{0, 1}, {2, 3}, {4, 5}}},
	{"cyclic", 6, func(r int) int { return r % 2 }, [][]int{{0, 2, 4}, {1, 3, 5}}},
	{"uneven", 6, func(r int) int { return []int{7, 7, 3, 7, 1, 3}[r] }, [][]int{{0, 1, 3}, {2, 5}, {4}}},
	{"64 hosts", 260, func(r int) int { return r * 37 % 64 }, nil}, // more ranks than hellos with details allow
}

// alone hides a bootstrap's optional methods.
type alone struct{ bootstrap.Bootstrap }

// counted counts the exchanges of a rank.
type counted struct {
	bootstrap.Bootstrap
	gathers, pairs int
}

func (c *counted) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	c.gathers++
	return c.Bootstrap.AllGather(ctx, mine)
}

func (c *counted) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	c.pairs++
	return c.Bootstrap.(bootstrap.Exchanger).Exchange(ctx, peer, mine)
}

// hosts makes the bootstraps of n ranks on hosts with the given names.
type hosts func(n int, name func(rank int) string) []bootstrap.Bootstrap

// each runs f where all bootstraps exchange between two ranks, where none does, and where only one of many does not.
func each(t *testing.T, f func(t *testing.T, on hosts)) {
	for name, can := range map[string]func(rank int) bool{
		"pairs":         func(int) bool { return true },
		"all":           func(int) bool { return false },
		"all but one's": func(rank int) bool { return rank != 1 },
	} {
		t.Run(name, func(t *testing.T) {
			f(t, func(n int, name func(rank int) string) []bootstrap.Bootstrap {
				bs := bootstrap.Local(n)
				for r, b := range bs {
					if !can(r) {
						bs[r] = alone{b}
					}
				}
				return enginetest.Hosts(bs, name)
			})
		})
	}
}

// TestMessages: with exchanges between two ranks, each rank makes a limited number of them.
func TestMessages(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			bs, cs := bootstrap.Local(l.n), make([]*counted, l.n)
			for r, b := range bs {
				cs[r] = &counted{Bootstrap: b}
				bs[r] = cs[r]
			}
			rs := gather(t, enginetest.Hosts(bs, func(r int) string { return letter(l.host(r)) }))
			for _, c := range cs {
				c.gathers, c.pairs = 0, 0
			}
			exchange(t, rs)
			for rank, r := range rs {
				rounds, h := 0, len(r.Hosts)
				for 2<<rounds <= h {
					rounds++
				}
				switch {
				case h == 1:
					require.Equal(t, [2]int{1, 0}, [2]int{cs[rank].gathers, cs[rank].pairs})
				case !r.First():
					require.Equal(t, [2]int{0, 2}, [2]int{cs[rank].gathers, cs[rank].pairs})
				default:
					require.Zero(t, cs[rank].gathers)
					require.LessOrEqual(t, cs[rank].pairs, 2*(len(r.LocalRanks())-1)+rounds+2)
					if h == 1<<rounds {
						require.Equal(t, 2*(len(r.LocalRanks())-1)+rounds, cs[rank].pairs)
					}
				}
			}
		})
	}
}

func TestGather(t *testing.T) { each(t, gathers) }

func gathers(t *testing.T, on hosts) {
	for _, l := range testkit.Sample(3, layouts) { // in daily runs not so many ranks
		t.Run(l.name, func(t *testing.T) {
			rs := gather(t, on(l.n, func(r int) string { return letter(l.host(r)) }))
			want := l.hosts
			if want == nil {
				at := map[int]int{}
				for r := range l.n {
					h, ok := at[l.host(r)]
					if !ok {
						h = len(want)
						at[l.host(r)] = h
						want = append(want, nil)
					}
					want[h] = append(want[h], r)
				}
			}
			ids := map[uint64]int{}
			for rank, r := range rs {
				require.Equal(t, want, r.Hosts)
				require.Contains(t, r.LocalRanks(), rank)
				require.Equal(t, r.LocalRanks()[0] == rank, r.First())
				require.Len(t, r.Hellos, len(r.LocalRanks()))
				require.Equal(t, rs[0].Secret, r.Secret)
				require.Equal(t, rs[0].Comm, r.Comm)
				require.Len(t, r.Secret, 16)
				for other := range rs {
					require.Equal(t, letter(l.host(other)), r.Hostnames()[other])
					require.Contains(t, r.Hosts[r.Host(other)], other)
				}
				for i, h := range r.Hellos {
					require.Equal(t, letter(l.host(rank)), h.Hostname)
					require.Equal(t, string(gpuOf(r.LocalRanks()[i])), string(h.GPUs))
				}
				if h, ok := ids[r.HostID()]; ok {
					require.Equal(t, h, r.Mine)
				}
				ids[r.HostID()] = r.Mine
			}
			require.Len(t, ids, len(want))
			exchange(t, rs)
			rows(t, rs)
		})
	}
}

// exchange checks that the ranks of each host hear of each other.
func exchange(t *testing.T, rs []*roster.Roster) {
	t.Helper()
	for _, err := range testkit.Each(rs, func(r *roster.Roster) error {
		got, err := roster.Exchange(background, r, 100+r.Rank(), nil)
		want := slices.Clone(r.LocalRanks())
		for i := range want {
			want[i] += 100
		}
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("rank %d got %v, not %v", r.Rank(), got, want)
		}
		return err
	}) {
		require.NoError(t, err)
	}
}

// rows checks that all ranks have the rows of all, in one table for each host.
func rows(t *testing.T, rs []*roster.Roster) {
	t.Helper()
	row := func(rank int) []byte { return []byte(fmt.Sprintf("%0*d", rank%128+1, rank)) }
	tables := map[int][]byte{}
	for _, r := range rs {
		if r.First() {
			tables[r.Mine] = make([]byte, r.TableBytes())
			r.Lay(tables[r.Mine])
		}
	}
	for _, err := range testkit.Each(rs, func(r *roster.Roster) error {
		_, err := roster.ExchangeRows(background, r, 0, row(r.Rank()), nil)
		r.Lay(tables[r.Mine])
		_, err2 := roster.Exchange(background, r, 0, nil)
		for rank := range rs {
			if got := r.Row(rank); err == nil && string(got) != string(row(rank)) {
				err = fmt.Errorf("rank %d has %q for rank %d", r.Rank(), got, rank)
			}
		}
		if r.Row(-1) != nil || r.Row(len(rs)) != nil {
			err = errors.Join(err, errors.New("ranks that the job does not have have rows"))
		}
		return errors.Join(err, err2)
	}) {
		require.NoError(t, err)
	}
}

// An error of one rank of any host becomes an error of all ranks, about the same rank.
func TestErrorsOfOneRank(t *testing.T) { each(t, errorsOfOneRank) }

func errorsOfOneRank(t *testing.T, on hosts) {
	const n, odd = 7, 5
	for _, l := range []func(int) int{func(int) int { return 0 }, func(r int) int { return r / 3 }, func(r int) int { return r % 3 }} {
		name := func(r int) string { return letter(l(r)) }
		own := func(r int) error {
			if r == odd {
				return reason.About(3, fmt.Errorf("no more of this: %w", fault.ErrLimit))
			}
			return nil
		}
		check := func(rank int, err error, about int) {
			require.ErrorIs(t, err, fault.ErrLimit)
			require.ErrorContains(t, err, "no more of this")
			require.Equal(t, about, reason.Blamed(err, -1))
			if rank != odd {
				require.ErrorContains(t, err, "rank 5: ")
			}
		}
		for rank, err := range testkit.Each(on(n, name), func(b bootstrap.Bootstrap) error {
			_, err := roster.Gather(background, b, nil, nil, own(b.Rank()))
			return err
		}) {
			check(rank, err, 3)
		}
		rs := gather(t, on(n, name))
		for rank, err := range testkit.Each(rs, func(r *roster.Roster) error {
			_, err := roster.Exchange(background, r, "", own(r.Rank()))
			return err
		}) {
			check(rank, err, 3)
		}
		exchange(t, rs) // the errors broke nothing
		for _, err := range testkit.Each(rs, func(r *roster.Roster) error {
			_, err := roster.ExchangeRows(background, r, 0, make([]byte, roster.RowBytes+min(r.Rank(), 1)), nil)
			return err
		}) {
			require.ErrorIs(t, err, fault.ErrLimit)
			require.ErrorContains(t, err, "a row of 129 bytes")
		}
	}
}

// Of the errors of several ranks each has its own, and all other ranks that of the first.
func TestErrorsOfSeveralRanks(t *testing.T) { each(t, errorsOfSeveralRanks) }

func errorsOfSeveralRanks(t *testing.T, on hosts) {
	const n, first = 7, 2
	own := func(r int) error {
		if r == first || r == 4 || r == 5 {
			return fmt.Errorf("no more of %s: %w", letter(r), fault.ErrLimit)
		}
		return nil
	}
	for name, l := range map[string]func(int) int{
		"one host": func(int) int { return 0 },
		"blocks":   func(r int) int { return r / 3 },
		"cyclic":   func(r int) int { return r % 3 },
		"apart":    func(r int) int { return r },
	} {
		t.Run(name, func(t *testing.T) {
			check := func(rank int, err error) {
				require.ErrorIs(t, err, fault.ErrLimit)
				if own(rank) != nil {
					require.ErrorContains(t, err, "no more of "+letter(rank))
					return
				}
				require.Equal(t, first, reason.Blamed(err, -1))
				require.ErrorContains(t, err, "rank 2: no more of "+letter(first))
			}
			host := func(r int) string { return letter(l(r)) }
			for rank, err := range testkit.Each(on(n, host), func(b bootstrap.Bootstrap) error {
				_, err := roster.Gather(background, b, nil, nil, own(b.Rank()))
				return err
			}) {
				check(rank, err)
			}
			for rank, err := range testkit.Each(gather(t, on(n, host)), func(r *roster.Roster) error {
				_, err := roster.Exchange(background, r, "", own(r.Rank()))
				return err
			}) {
				check(rank, err)
			}
		})
	}
}

// Settings are compared over all hosts: the error names the first rank that differs, and in what.
func TestCompare(t *testing.T) {
	set := func(s ...string) (all []roster.Setting) {
		for i := 0; i < len(s); i += 2 {
			all = append(all, roster.Setting{What: s[i], Value: s[i+1]})
		}
		return all
	}
	usual := set("the a", "1", "the b", "2")
	for _, c := range []struct {
		name string
		odd  map[int][]roster.Setting
		text string
		peer int
	}{
		{"one", map[int][]roster.Setting{4: set("the a", "1", "the b", "3")}, "the b is 2 on rank 0 and 3 on rank 4", 4},
		{"the first of two", map[int][]roster.Setting{5: set(), 3: set("the a", "9", "the b", "3")},
			"the a is 1 on rank 0 and 9 on rank 3", 3},
		{"rank 0", map[int][]roster.Setting{0: set("the a", "0", "the b", "2")}, "the a is 0 on rank 0 and 1 on rank 1", 1},
		{"lacks one", map[int][]roster.Setting{2: set("the b", "2")}, "the a is 1 on rank 0 and unset on rank 2", 2},
		{"has one more", map[int][]roster.Setting{2: set("the a", "1", "the b", "2", "the c", "")},
			"the c is unset on rank 0 and  on rank 2", 2},
		{"another order", map[int][]roster.Setting{2: set("the b", "2", "the a", "1")}, "order", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bs := enginetest.Hosts(bootstrap.Local(6), func(r int) string { return letter(r % 3) })
			for _, err := range testkit.Each(bs, func(b bootstrap.Bootstrap) error {
				agree, ok := c.odd[b.Rank()]
				if !ok {
					agree = usual
				}
				_, err := roster.Gather(background, b, agree, nil, nil)
				return err
			}) {
				require.ErrorIs(t, err, fault.ErrMismatch)
				require.ErrorContains(t, err, c.text)
				require.Equal(t, c.peer, reason.Blamed(err, -1))
			}
		})
	}
}

// If ranks of one host cannot map each other's memory, each becomes a host, alike on all ranks; the other hosts stay.
func TestExchangeVerdict(t *testing.T) { each(t, exchangeVerdict) }

func exchangeVerdict(t *testing.T, on hosts) {
	rs := gather(t, on(7, func(r int) string { return letter(r % 3) }))
	same := make([]uint64, len(rs))
	for rank, r := range rs {
		same[rank] = r.HostID()
	}
	for _, err := range testkit.Each(rs, func(r *roster.Roster) error {
		var apart *roster.Apart
		if r.Rank() == 4 || r.Rank() == 1 {
			apart = &roster.Apart{About: 5 - r.Rank(), Why: fmt.Sprint("no way from ", r.Rank())}
		}
		_, parted, err := roster.ExchangeVerdict(background, r, 0, nil, apart)
		if err == nil && !slices.Equal(parted, []roster.Apart{{Rank: 1, About: 4, Why: "no way from 1"}}) {
			err = fmt.Errorf("rank %d: %v", r.Rank(), parted)
		}
		return err
	}) {
		require.NoError(t, err)
	}
	ids := map[uint64]bool{}
	for rank, r := range rs {
		require.Equal(t, [][]int{{0, 3, 6}, {1}, {2, 5}, {4}}, r.Hosts)
		require.Contains(t, r.LocalRanks(), rank)
		require.Len(t, r.Hellos, len(r.LocalRanks()))
		for i, here := range r.LocalRanks() {
			require.Equal(t, letter(rank%3), r.Hellos[i].Hostname)
			require.Equal(t, string(gpuOf(here)), string(r.Hellos[i].GPUs))
		}
		require.Equal(t, rank%3 != 1, same[rank] == r.HostID())
		ids[r.HostID()] = true
		require.Equal(t, []string{letter(0), letter(1), letter(2), letter(0), letter(1) + "/2", letter(2), letter(0)}, r.Hostnames())
		require.ErrorIs(t, r.Explain(fault.ErrLimit), fault.ErrLimit)
		require.ErrorContains(t, r.Explain(fault.ErrLimit), "rank 1: no way from 1")
	}
	require.Len(t, ids, 4)
	exchange(t, rs)
	rows(t, rs)
	for _, err := range testkit.Each(rs, func(r *roster.Roster) error { // an error takes precedence
		var own error
		if r.Rank() == 2 {
			own = fault.ErrStale
		}
		_, _, err := roster.ExchangeVerdict(background, r, 0, own, &roster.Apart{About: 0})
		return err
	}) {
		require.ErrorIs(t, err, fault.ErrStale)
	}
}

// If a rank leaves, the exchanges of all others end, on any host.
func TestLostRank(t *testing.T) { each(t, lostRank) }

func lostRank(t *testing.T, on hosts) {
	for gone := range 5 {
		bs := on(5, func(r int) string { return letter(r % 3) })
		rs := gather(t, bs)
		for rank, err := range testkit.Each(rs, func(r *roster.Roster) error {
			if r.Rank() == gone {
				return bs[gone].Close()
			}
			_, err := roster.Exchange(background, r, 0, nil)
			if err == nil {
				return errors.New("it exchanged all the same")
			}
			if !errors.Is(err, fault.ErrPeerLost) {
				return err
			}
			return bs[r.Rank()].Close()
		}) {
			require.NoError(t, err, "rank %d without rank %d", rank, gone)
		}
	}
}

// keyed is a bootstrap that has a secret.
type keyed struct {
	bootstrap.Bootstrap
	key []byte
}

func (k keyed) Key() []byte { return k.key }

// All ranks know the job's secret. If all had a secret before, hearing the hellos does not reveal it.
func TestSecret(t *testing.T) {
	secrets := func(bs []bootstrap.Bootstrap) (all [][]byte, told []byte) {
		heard := &heard{Bootstrap: bs[1]}
		bs[1] = heard
		if k, ok := heard.Bootstrap.(keyed); ok {
			bs[1] = keyed{heard, k.key}
		}
		for _, r := range gather(t, bs) {
			all = append(all, r.Secret)
			require.Len(t, r.Secret, 16)
			require.Equal(t, all[0], r.Secret)
		}
		return all, heard.told
	}
	some := func(keys ...string) []bootstrap.Bootstrap {
		bs := bootstrap.Local(len(keys))
		for r, key := range keys {
			if key != "" {
				bs[r] = keyed{bs[r], []byte(key)}
			}
		}
		return bs
	}
	for _, keys := range [][]string{{"", "", ""}, {"a", "a", ""}, {"", "a", "a"}} {
		all, told := secrets(some(keys...))
		require.True(t, bytes.Contains(told, all[0]))
	}
	all, told := secrets(some("a", "a", "a"))
	require.False(t, bytes.Contains(told, all[0]))
	again, _ := secrets(some("a", "a", "a"))
	require.NotEqual(t, all, again)
}

// heard is a bootstrap that records all that ranks send.
type heard struct {
	bootstrap.Bootstrap
	told []byte
}

func (h *heard) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := h.Bootstrap.AllGather(ctx, mine)
	h.told = append(h.told, bytes.Join(all, nil)...)
	return all, err
}

func TestTooManyRanks(t *testing.T) {
	_, err := roster.Gather(background, many{bootstrap.Local(1)[0]}, nil, nil, nil)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.ErrorContains(t, err, "4096 ranks, more than 4095")
}

type many struct{ bootstrap.Bootstrap }

func (many) Size() int { return 4096 }

// Hosts with the same name get different names. A host whose ranks call it differently has a name for each.
func TestDistinct(t *testing.T) {
	for _, k := range []struct {
		named []string
		host  []int
		want  []string
	}{
		{[]string{"a", "a", "b"}, []int{0, 0, 1}, []string{"a", "a", "b"}},
		{[]string{"a", "a", "a", "a"}, []int{0, 1, 2, 1}, []string{"a", "a/2", "a/3", "a/2"}},
		{[]string{"b", "a", "a", "b"}, []int{0, 1, 2, 3}, []string{"b", "a", "a/2", "b/2"}},
		{[]string{"a", "a", "a/2"}, []int{0, 1, 2}, []string{"a", "a/3", "a/2"}},
		{[]string{"a", "a", "a/2", "a/2"}, []int{0, 1, 2, 3}, []string{"a", "a/3", "a/2", "a/2/2"}},
		{[]string{"a", "b", "b", "a"}, []int{0, 0, 1, 1}, []string{"a", "b", "b/2", "a/2"}},
	} {
		require.Equal(t, k.want, roster.Distinct(k.named, k.host), "%v on %v", k.named, k.host)
	}
}
