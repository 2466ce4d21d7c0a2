package env

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

func TestGet(t *testing.T) {
	for _, c := range []struct {
		name, variable, value string
		get                   func() (any, error)
		want                  any
		err                   string
	}{
		{"unset number", "UBCOLL_RANK", "", func() (any, error) { return Rank.Get() }, 0, ""},
		{"number", "UBCOLL_RANK", "7", func() (any, error) { return Rank.Get() }, 7, ""},
		{"negative", "UBCOLL_RANK", "-1", func() (any, error) { return Rank.Get() }, 0,
			`UBCOLL_RANK="-1": want a whole number from 0 to 65535: invalid argument`},
		{"no number", "UBCOLL_SIZE", "four", func() (any, error) { return Size.Get() }, 0,
			`UBCOLL_SIZE="four": want a whole number from 1 to 65536: invalid argument`},
		{"default", "NTHREADS", "", func() (any, error) { return Threads.Get() }, 1, ""},
		{"duration", "UBCOLL_TIMEOUT", "90s", func() (any, error) { return Timeout.Get() }, 90 * time.Second, ""},
		{"duration within bounds", "UBCOLL_NET_TIMEOUT", "10s", func() (any, error) { return NetTimeout.Get() }, 10 * time.Second, ""},
		{"duration below the least", "UBCOLL_NET_TIMEOUT", "999ms", func() (any, error) { return NetTimeout.Get() }, time.Duration(0),
			`UBCOLL_NET_TIMEOUT="999ms": want a duration from 1s to 1h0m0s, as 10s: invalid argument`},
		{"duration above the most", "UBCOLL_NET_TIMEOUT", "2h", func() (any, error) { return NetTimeout.Get() }, time.Duration(0),
			`UBCOLL_NET_TIMEOUT="2h": want a duration from 1s to 1h0m0s, as 10s: invalid argument`},
		{"default duration", "UBCOLL_TIMEOUT", "", func() (any, error) { return Timeout.Get() }, 10 * time.Minute, ""},
		{"duration without unit", "UBCOLL_TIMEOUT", "90", func() (any, error) { return Timeout.Get() }, time.Duration(0),
			`UBCOLL_TIMEOUT="90": want a duration over zero, as 30s or 10m: invalid argument`},
		{"too long a duration", "UBCOLL_TIMEOUT", "99999999999h", func() (any, error) { return Timeout.Get() }, time.Duration(0),
			`UBCOLL_TIMEOUT="99999999999h": too long, 2562047h at most: invalid argument`},
		{"bytes", "UBCOLL_MAX_PINNED", "4096", func() (any, error) { return MaxPinned.Get() }, 4096, ""},
		{"bytes with a unit", "UBCOLL_MAX_PINNED", "4G", func() (any, error) { return MaxPinned.Get() }, 4 << 30, ""},
		{"bytes with another", "UBCOLL_MAX_PINNED", "512m", func() (any, error) { return MaxPinned.Get() }, 512 << 20, ""},
		{"no bytes", "UBCOLL_MAX_PINNED", "4 GB", func() (any, error) { return MaxPinned.Get() }, 0,
			`UBCOLL_MAX_PINNED="4 GB": want a size from 0 to 1073741824G: digits, then possibly K, M or G, as in 4M: invalid argument`},
		{"too many bytes", "UBCOLL_MAX_PINNED", "1073741825G", func() (any, error) { return MaxPinned.Get() }, 0,
			`UBCOLL_MAX_PINNED="1073741825G": want a size from 0 to 1073741824G: digits, then possibly K, M or G, as in 4M: invalid argument`},
		{"list", "UBCOLL_REQUIRE", "mpi, cuda,", func() (any, error) { return Require.Get() }, []string{"mpi", "cuda"}, ""},
		{"choice", "UBCOLL_REGISTER", "off", func() (any, error) { return Register.Get() }, "off", ""},
		{"wrong choice", "UBCOLL_LOG", "loud", func() (any, error) { return Log.Get() }, "",
			`UBCOLL_LOG="loud": want one of error, warn, info, debug: invalid argument`},
		{"nearest choice", "UBCOLL_PIN", "require", func() (any, error) { return Pin.Get() }, "",
			`UBCOLL_PIN="require": want one of auto, required: did you mean required?: invalid argument`},
		{"word of no list", "UBCOLL_REQUIRE", "mpi,gpu", func() (any, error) { return Require.Get() }, nil,
			`UBCOLL_REQUIRE="mpi,gpu": "gpu": want some of mpi, cuda, verbs, hosts, libfabric, with commas: invalid argument`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			got, err := c.get()
			if c.err != "" {
				require.EqualError(t, err, c.err)
				require.ErrorIs(t, err, fault.ErrArgument)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestSecretStaysOutOfErrors(t *testing.T) {
	t.Setenv("UBCOLL_SECRET", "hunter2")
	v := *Secret
	v.parse = func(string) (string, error) { return "", os.ErrInvalid }
	_, err := v.Get()
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")
}

func TestJobWide(t *testing.T) {
	t.Setenv("UBCOLL_TIMEOUT", "600s")
	a, err := JobWide()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"UBCOLL_TIMEOUT": "10m0s", "UBCOLL_NET_TIMEOUT": "5s", "UBCOLL_REGISTER": "auto", "UBCOLL_PIN": "auto", "UBCOLL_ALGO": "", "UBCOLL_COLLNET_PLUGIN": "",
		"UBCOLL_CUDA": "auto", "UBCOLL_NVLS": "off"}, a)

	t.Setenv("UBCOLL_REGISTER", "sometimes")
	_, err = JobWide()
	require.ErrorContains(t, err, "UBCOLL_REGISTER")
}

// Validate reports all malformed variables of the project at once, and ignores others.
func TestValidate(t *testing.T) {
	for _, v := range All() {
		t.Setenv(v.Name, "") // counts as unset
	}
	require.NoError(t, Validate())
	t.Setenv("NTHREADS", "many")
	require.NoError(t, Validate())
	bad := []string{"UBCOLL_TIMEOUT", "UBCOLL_REGISTER", "UBCOLL_PIN", "UBCOLL_CUDA", "UBCOLL_NVLS", "UBCOLL_MAX_REGIONS", "UBCOLL_MAX_PINNED",
		"UBCOLL_IB", "UBCOLL_OFI", "UBCOLL_IB_PCI_RELAXED_ORDERING", "UBCOLL_LOG", "UBCOLL_ALGO", "UBCOLL_CPU", "UBCOLL_PORTS", "UBCOLL_REQUIRE", "UBCOLL_RANKS_PER_PROCESS"}
	for _, name := range bad {
		t.Setenv(name, "sometimes")
	}
	err := Validate()
	require.ErrorIs(t, err, fault.ErrArgument)
	for _, name := range bad {
		require.Regexp(t, `(?m)^`+name+`="sometimes": .*want .+: invalid argument$`, err.Error())
	}
	require.Equal(t, len(bad)-1, strings.Count(err.Error(), "\n"), "a line each")
}

func TestPorts(t *testing.T) {
	for s, want := range map[string]PortRange{"": {}, "20000-20100": {20000, 20100}, "7": {7, 7}, "1-65535": {1, 65535}} {
		t.Setenv("UBCOLL_PORTS", s)
		got, err := Ports.Get()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"0-5", "5-4", "1-65536", "-", "x", "1-2-3", "-5"} {
		t.Setenv("UBCOLL_PORTS", s)
		_, err := Ports.Get()
		require.ErrorIs(t, err, fault.ErrArgument, s)
	}
	t.Setenv("UBCOLL_NET", " eth0,, 10.0.0.0/8 ")
	got, err := Net.Get()
	require.NoError(t, err)
	require.Equal(t, []string{"eth0", "10.0.0.0/8"}, got)
	t.Setenv("UBCOLL_NET", "fe80::1,192.168.0.1,bond0.12,wlp0s20f3")
	_, err = Net.Get()
	require.NoError(t, err)
	for _, s := range []string{"-?", "eth0,10.0.0.0/33", "1.2.3.400/8", "a name", "averylonginterface"} {
		t.Setenv("UBCOLL_NET", s)
		_, err := Net.Get()
		require.ErrorIs(t, err, fault.ErrArgument, s)
	}
}

func TestUnknown(t *testing.T) {
	names, near := Unknown([]string{"PATH=x", "UBCOLL_ALGO=ring", "UBCOLL_ALGORITHM=ring", "UBCOLL_TIMEOUTS", "NTHREADS=1",
		"UBCOLL_TEST_X=1", "UBCOLL_EMULATE_SEED=1", "UBCOLL_SOMETHING_ELSE=1"})
	require.Equal(t, []string{"UBCOLL_ALGORITHM", "UBCOLL_TIMEOUTS", "UBCOLL_SOMETHING_ELSE"}, names)
	require.Equal(t, []string{"UBCOLL_ALGO", "UBCOLL_TIMEOUT", ""}, near)
}

func TestRequires(t *testing.T) {
	t.Setenv("UBCOLL_REQUIRE", "verbs,mpi")
	require.True(t, Requires("mpi"))
	require.False(t, Requires("cuda"))
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range All() {
		require.False(t, seen[v.Name], "%s is listed twice", v.Name)
		seen[v.Name] = true
		require.True(t, strings.HasSuffix(v.Doc, "."), "%s needs a sentence", v.Name)
		require.NotEmpty(t, v.Kind, v.Name)
	}
}
