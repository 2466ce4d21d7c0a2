package tuning

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/fault"
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
