package tuning

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
)

func TestRoundTrip(t *testing.T) {
	a := Default()
	require.NoError(t, a.Validate())
	b, err := Parse("x", a.Bytes())
	require.NoError(t, err)
	require.Equal(t, a, b)
	b.Machine = "elsewhere"
	require.Equal(t, a.Hash(), b.Hash(), "where it was measured decides nothing")
	b.PushFrom++
	require.NotEqual(t, a.Hash(), b.Hash())
}

func TestAgreed(t *testing.T) {
	t.Setenv(env.Tuning.Name, "")
	a, err := Load()
	require.NoError(t, err)
	b := a
	b.PushFrom++
	require.Equal(t, Agreed(a), Agreed(b), "hosts with other processors have another default")
	require.NotEqual(t, Agreed(a), a.Hash(), "a file with the same is one rank's only")
	file := filepath.Join(t.TempDir(), "table.json")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	t.Setenv(env.Tuning.Name, file)
	c, err := Load()
	require.NoError(t, err)
	require.Equal(t, b.Hash(), Agreed(c))
}

func TestParse(t *testing.T) {
	for _, k := range []struct{ name, text, want string }{
		{"no JSON", "{", "unexpected EOF"},
		{"unknown key", `{"version":1,"push_form":3}`, "push_form"},
		{"other version", `{"version":2}`, "version is 2"},
		{"negative", `{"version":1,"push_from":-3,"eager_total":-1}`, "eager_total is -1"},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := Parse("table.json", []byte(k.text))
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, k.want)
			require.ErrorContains(t, err, "table.json")
		})
	}
}

func TestLoad(t *testing.T) {
	a := Default()
	a.PushFrom = 12345
	name := filepath.Join(t.TempDir(), "t.json")
	require.NoError(t, os.WriteFile(name, a.Bytes(), 0o600))
	t.Setenv("UBCOLL_TUNING", name)
	b, err := Load()
	require.NoError(t, err)
	require.Equal(t, a, b)
	t.Setenv("UBCOLL_TUNING", name+".not")
	_, err = Load()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What has no end, or is no table by its size alone, is not read into memory.
func TestLoadLimits(t *testing.T) {
	dir := t.TempDir()
	long, pipe := filepath.Join(dir, "long"), filepath.Join(dir, "pipe")
	f, err := os.Create(long)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<40))
	require.NoError(t, f.Close())
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, c := range []struct {
		name, file, want string
		is               error
	}{
		{"without end", "/dev/zero", "/dev/zero is no regular file", fault.ErrArgument},
		{"without a writer", pipe, "is no regular file", fault.ErrArgument},
		{"folder", dir, "is no regular file", fault.ErrArgument},
		{"long", long, "is longer than 65536 bytes", fault.ErrLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("UBCOLL_TUNING", c.file)
			_, err := Load()
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "UBCOLL_TUNING")
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Default().Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := Parse("fuzz", data); err == nil {
			b, err := Parse("again", a.Bytes())
			require.NoError(t, err)
			require.Equal(t, a, b)
		}
	})
}
