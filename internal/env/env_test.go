package env

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
			`UBCOLL_RANK="-1": want a whole number from 0 to 65535`},
		{"no number", "UBCOLL_SIZE", "four", func() (any, error) { return Size.Get() }, 0,
			`UBCOLL_SIZE="four": want a whole number from 1 to 65536`},
		{"default", "NTHREADS", "", func() (any, error) { return Threads.Get() }, 1, ""},
		{"duration", "UBCOLL_TIMEOUT", "90s", func() (any, error) { return Timeout.Get() }, 90 * time.Second, ""},
		{"default duration", "UBCOLL_TIMEOUT", "", func() (any, error) { return Timeout.Get() }, 10 * time.Minute, ""},
		{"duration without unit", "UBCOLL_TIMEOUT", "90", func() (any, error) { return Timeout.Get() }, time.Duration(0),
			`UBCOLL_TIMEOUT="90": want a duration over zero, as 30s or 10m`},
		{"list", "UBCOLL_REQUIRE", "mpi, cuda,", func() (any, error) { return Require.Get() }, []string{"mpi", "cuda"}, ""},
		{"choice", "UBCOLL_REGISTER", "off", func() (any, error) { return Register.Get() }, "off", ""},
		{"wrong choice", "UBCOLL_LOG", "loud", func() (any, error) { return Log.Get() }, "",
			`UBCOLL_LOG="loud": want one of debug, info, warn`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			got, err := c.get()
			if c.err != "" {
				require.EqualError(t, err, c.err)
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
	require.Equal(t, map[string]string{"UBCOLL_TIMEOUT": "10m0s", "UBCOLL_REGISTER": "auto", "UBCOLL_ALGO": "",
		"UBCOLL_CUDA": "auto"}, a)

	t.Setenv("UBCOLL_REGISTER", "sometimes")
	_, err = JobWide()
	require.ErrorContains(t, err, "UBCOLL_REGISTER")
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
