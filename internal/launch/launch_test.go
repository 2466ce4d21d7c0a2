package launch

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseHosts(t *testing.T) {
	for _, c := range []struct {
		name, s string
		want    []Host
		err     string
	}{
		{"one", "a", []Host{{"a", 0}}, ""},
		{"slots", "a:2, b:3", []Host{{"a", 2}, {"b", 3}}, ""},
		{"twice", "a,b,a:2", []Host{{"a", 3}, {"b", 0}}, ""},
		{"user", "me@a:2", []Host{{"me@a", 2}}, ""},
		{"IPv6", "[fe80::1]:2,[::2]", []Host{{"fe80::1", 2}, {"::2", 0}}, ""},
		{"IPv6 without brackets", "fe80::1", nil, "stands in brackets, as [fe80::1]:2"},
		{"open bracket", "[fe80::1", nil, "want an address in brackets"},
		{"nothing", "", nil, "has no name"},
		{"trailing comma", "a,", nil, "has no name"},
		{"no number", "a:x", nil, "want a number of ranks from 1 behind the colon, as a:2"},
		{"none", "a:0", nil, "want a number of ranks from 1"},
		{"an option of ssh", "-oProxyCommand=x", nil, "no name of a host"},
		{"a command", "a;b", nil, "no name of a host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseHosts(c.s)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name, hosts string
		ranks       int
		want        []int
		err         string
	}{
		{"all slots", "a:2,b:3", 0, []int{2, 3}, ""},
		{"one each", "a,b", 0, []int{1, 1}, ""},
		{"evenly", "a,b,c", 7, []int{3, 2, 2}, ""},
		{"by block", "a:4,b:4", 6, []int{4, 2}, ""},
		{"the second is not needed", "a:4,b:4", 3, []int{3, 0}, ""},
		{"more than slots", "a:2,b:1", 7, []int{5, 2}, ""}, // in rounds: 2 1, 2 1, 1
		{"fewer than hosts", "a,b,c", 2, []int{1, 1, 0}, ""},
		{"too many", "a", 1 << 20, nil, "1048576 ranks, more than 65536"},
		{"too many slots", "a:99999999", 0, nil, "99999999 ranks, more than 65536"},
		{"negative", "a", -1, nil, "-1: want a number of ranks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts, err := ParseHosts(c.hosts)
			require.NoError(t, err)
			got, err := Place(hosts, c.ranks)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := Place(nil, 1)
	require.ErrorContains(t, err, "no hosts")
}

// Every rank is on exactly one host.
func TestPlaceAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 6).Draw(t, "slots")
		var hosts []Host
		for _, n := range slots {
			hosts = append(hosts, Host{"x", n})
		}
		ranks := rapid.IntRange(1, 40).Draw(t, "ranks")
		counts, err := Place(hosts, ranks)
		require.NoError(t, err)
		require.Len(t, counts, len(hosts))
		require.Equal(t, ranks, sum(counts))
	})
}

// A shell splits the line into the same words.
func TestLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[ -~\n]{0,8}`), 1, 4).Draw(t, "words")
		out, err := exec.Command("sh", "-c", `f() { for w; do printf '%s\0' "$w"; done; }; f `+Line(words)).Output()
		require.NoError(t, err)
		want := ""
		for _, w := range words {
			want += w + "\x00"
		}
		require.Equal(t, want, string(out))
	})
}

func TestTravels(t *testing.T) {
	environ := []string{"PATH=/bin", "UBCOLL_LOG=info", "UBCOLL_RANK=3", "UBCOLL_SECRET=x", "UBCOLL_RSH=y", "A=b=c"}
	for _, c := range []struct {
		name  string
		names []string
		want  []string
		err   string
	}{
		{"own", nil, []string{"UBCOLL_LOG=info"}, ""},
		{"named", []string{"A", "B=1 2", "C="}, []string{"UBCOLL_LOG=info", "A=b=c", "B=1 2", "C="}, ""},
		{"not there", []string{"D"}, nil, "-x D: there is no such variable; give it a value with -x D=value"},
		{"no name", []string{"=1"}, nil, "want NAME or NAME=value"},
		{"each rank's", []string{"UBCOLL_RANK=1"}, nil, "each rank has its own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Travels(environ, c.names)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestRendezvous(t *testing.T) {
	host := func(addresses ...string) *remote {
		return &remote{name: "a", hello: &hello{Port: 7, Addresses: addresses}}
	}
	for _, c := range []struct {
		name  string
		hosts []*remote
		found []string // by name
		want  string
	}{
		{"by name", []*remote{host("10.0.0.1", "10.1.0.1"), host()}, []string{"10.1.0.1"}, "10.1.0.1:7"},
		{"the name is loopback", []*remote{host("10.0.0.1"), host()}, []string{"127.0.1.1", "::1"}, "10.0.0.1:7"},
		{"the name is ssh's", []*remote{host("10.0.0.1"), host()}, nil, "10.0.0.1:7"},
		{"IPv6", []*remote{host("fd00::1"), host()}, nil, "[fd00::1]:7"},
		{"loopback alone", []*remote{host(), host()}, nil, "127.0.0.1:7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := rendezvous(c.hosts, func(_ context.Context, name string) ([]string, error) {
				require.Equal(t, "a", name)
				return c.found, errors.New("what was found counts")
			})
			require.Equal(t, c.want, got)
		})
	}
	require.Contains(t, rendezvous([]*remote{host()}, nil), "unix:@ubcoll-")
}
