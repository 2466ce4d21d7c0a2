package tuning

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// measured is a file with all parts.
func measured() File {
	f := File{Version: Version, Devices: "2 x GPU", Device: map[string]int{"lines_pair": 4 << 20, "push_from": 1},
		Messages: map[string]int{"eager_few": 512}, Network: "2 hosts", Hosts: map[string]int{"message_ns": 7, "connections": 2}}
	f.SetHost(Default())
	return f
}

func TestRoundTrip(t *testing.T) {
	a := measured()
	b, err := Parse("x", a.Bytes())
	require.NoError(t, err)
	require.Equal(t, a, b)
	for _, k := range []struct {
		name   string
		change func(*File)
		same   bool
	}{
		{"where it was measured decides nothing", func(f *File) { f.Machine, f.Devices, f.Network = "elsewhere", "4 x GPU", "3 hosts" }, true},
		{"how a rank writes is its own affair", func(f *File) { f.Host["stream_from"]++ }, true},
		{"a size of the host", func(f *File) { f.Host["push_from"]++ }, false},
		{"a size of devices", func(f *File) { f.Device["push_from"]++ }, false},
		{"a limit of messages", func(f *File) { f.Messages["eager_few"]++ }, false},
		{"a cost between hosts", func(f *File) { f.Hosts["message_ns"]++ }, false},
		{"no costs between hosts", func(f *File) { f.Hosts = nil }, false},
		{"no limits of messages", func(f *File) { f.Messages = nil }, false},
		{"no sizes of devices", func(f *File) { f.Device = nil }, false},
		{"no sizes of the host", func(f *File) { f.Host = nil }, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			b, err := Parse("x", a.Bytes())
			require.NoError(t, err)
			k.change(&b)
			require.Equal(t, k.same, a.Hash() == b.Hash())
		})
	}
	require.Equal(t, measured(), a, "hashes change nothing")
}

// What a file lacks is the default.
func TestTable(t *testing.T) {
	for _, k := range []struct {
		name, text string
		want       func(*Table)
	}{
		{"nothing", `{"version":2,"machine":"A","devices":"B"}`, func(*Table) {}},
		{"host", `{"version":2,"machine":"A","host":{"push_from":12345,"combine_up_to":0}}`,
			func(t *Table) { t.Machine, t.PushFrom, t.CombineUpTo = "A", 12345, 0 }},
		{"devices", `{"version":2,"devices":"B","device":{"push_from":12345,"lines_many":0}}`,
			func(t *Table) { t.Machine, t.GPU.PushFrom, t.GPU.LinesMany = "B", 12345, 0 }},
		{"both", `{"version":2,"machine":"A","devices":"B","host":{"eager_total":1},"device":{"ring_from":2}}`,
			func(t *Table) { t.Machine, t.EagerTotal, t.GPU.RingFrom = "A; B", 1, 2 }},
		{"messages", `{"version":2,"machine":"A","messages":{"eager_few":12,"eager_some":0,"eager_many":256}}`,
			func(t *Table) {
				t.Machine, t.Messages = "messages set by hand", Messages{12, 0, 256, 64 << 10}
			}},
		{"messages of devices", `{"version":2,"devices":"B","device":{"ring_from":2},"messages":{"eager_device":65535}}`,
			func(t *Table) {
				t.Machine, t.GPU.RingFrom, t.Messages.EagerDevice = "B; messages set by hand", 2, 65535
			}},
		{"hosts", `{"version":2,"network":"N","hosts":{"swap_ps":12,"combine_ps":0}}`,
			func(t *Table) { t.Machine, t.Hosts.Swap, t.Hosts.Combine = "N", 12, 0 }},
		{"connections", `{"version":2,"hosts":{"connections":8}}`,
			func(t *Table) { t.Machine, t.Hosts.Connections = "hosts set by hand", 8 }},
	} {
		t.Run(k.name, func(t *testing.T) {
			f, err := Parse("x", []byte(k.text))
			require.NoError(t, err)
			want := Default()
			k.want(&want)
			require.Equal(t, want, f.Table())
		})
	}
}

// Each size has its own name, so that a file can have it.
func TestSizes(t *testing.T) {
	var table Table
	for part, sizes := range map[string]map[string]*int{"host": table.sizes(), "device": table.GPU.Sizes(),
		"messages": table.Messages.sizes(), "hosts": table.Hosts.numbers(), "rdma": prices(&table.RDMA)} {
		at := map[*int]string{}
		for name, p := range sizes {
			require.Empty(t, at[p], "%s: %s", part, name)
			at[p] = name
			f := File{Version: Version, Host: map[string]int{name: 7}}
			switch part {
			case "device":
				f.Host, f.Device = nil, f.Host
			case "messages":
				f.Host, f.Messages = nil, f.Host
			case "hosts":
				f.Host, f.Hosts = nil, f.Host
			case "rdma":
				f.Host, f.RDMA = nil, f.Host
			}
			f, err := Parse("x", f.Bytes())
			require.NoError(t, err)
			require.NotEqual(t, Default(), f.Table())
		}
	}
	require.Len(t, table.sizes(), 5)
	require.Len(t, table.GPU.Sizes(), 14)
	require.Len(t, table.Messages.sizes(), 4)
	require.Len(t, table.Hosts.numbers(), 8)
}

// What is measured between hosts leaves how many connections there are.
func TestSetHosts(t *testing.T) {
	f := File{Version: Version, Hosts: map[string]int{"connections": 3, "swap_ps": 1}}
	old := f.Hosts
	m := schedule.Model{Agree: 7, Message: 1, Send: 6, Swap: 2, Combine: 3, Relay: 4, Around: 5}
	f.SetHosts("N", false, m)
	require.Equal(t, Hosts{m, 3}, f.Table().Hosts)
	require.Equal(t, schedule.DefaultRDMA, f.Table().RDMA)
	require.Equal(t, "N", f.Table().Machine)
	require.Equal(t, map[string]int{"connections": 3, "swap_ps": 1}, old)
	table := f.Table()
	require.Equal(t, []bool{false, true}, []bool{table.Assumed(false), table.Assumed(true)})
	f.SetHosts("R", true, m)
	table = f.Table()
	require.Equal(t, []schedule.Model{m, m}, []schedule.Model{*table.Between(false), *table.Between(true)})
	require.Equal(t, "N; R", table.Machine)
	f = File{}
	f.SetHosts("N", false, schedule.Default)
	f.SetHosts("R", true, schedule.DefaultRDMA)
	table = f.Table()
	require.Equal(t, DefaultHosts(), table.Hosts)
	require.Equal(t, []bool{true, true}, []bool{table.Assumed(false), table.Assumed(true)})
}

// How long a message may be depends on the number of ranks. What was measured leaves it as it was set by hand.
func TestEagerHost(t *testing.T) {
	m := Messages{EagerFew: 3, EagerSome: 2, EagerMany: 1}
	for ranks, want := range map[int]int{1: 3, 16: 3, 17: 2, 128: 2, 129: 1, 4095: 1} {
		require.Equal(t, want, m.EagerHost(ranks), "%d ranks", ranks)
	}
	f := measured()
	f.SetHost(Default())
	require.Equal(t, measured().Messages, f.Messages)
}

func TestWithoutLines(t *testing.T) {
	for _, k := range []struct {
		name   string
		change func(*GPU)
		pair   int
	}{
		{"the default", func(*GPU) {}, 1 << 20},
		{"measured over such links", func(g *GPU) { g.OneShotPair, g.LinesPair, g.LinesMany, g.MoveLines = 12345, 0, 0, 0 }, 12345},
		{"measured over others", func(g *GPU) { g.OneShotPair, g.LinesPair = 12345, 0 }, 1 << 20},
	} {
		t.Run(k.name, func(t *testing.T) {
			g := DefaultGPU()
			k.change(&g)
			g = g.WithoutLines()
			require.Equal(t, k.pair, g.OneShotPair)
			require.Zero(t, g.LinesPair+g.LinesMany+g.MoveLines)
		})
	}
}

func TestParse(t *testing.T) {
	for _, k := range []struct {
		name, text string
		want       []string
	}{
		{"no JSON", "{", []string{"unexpected end"}},
		{"more than a table", `{"version":2} {}`, []string{"after top-level value"}},
		{"unknown part", `{"version":2,"gpu":{}}`, []string{`"gpu"`}},
		{"unknown keys", `{"version":2,"host":{"push_form":3},"device":{"eager_total":1}}`,
			[]string{`unknown key "push_form" in "host": did you mean push_from?`, `unknown key "eager_total" in "device"`}},
		{"older version", `{"version":1,"machine":"x","eager_total":4096}`,
			[]string{"version is 1, this build reads 2: have ubcoll tune write a new one"}},
		{"newer version", `{"version":3}`, []string{"version is 3"}},
		{"no version", `{}`, []string{"version is 0"}},
		{"negative", `{"version":2,"host":{"push_from":-3},"device":{"push_from":-1}}`,
			[]string{`push_from of "host" is -3`, `push_from of "device" is -1`}},
		{"more than boxes have room for", `{"version":2,"messages":{"eager_few":2049,"eager_some":1024,"eager_many":-1,` +
			`"eager_device":65537,"eager":9}}`, []string{
			`eager_few of "messages" is 2049, and a message's box has room for 2048`,
			`eager_device of "messages" is 65537, and a message's box has room for 65536`,
			`eager_many of "messages" is -1`, `unknown key "eager" in "messages"`}},
		{"connections", `{"version":2,"hosts":{"connections":9,"swap_ns":1}}`, []string{`connections of "hosts" is 9: want 1 to 8`,
			`unknown key "swap_ns" in "hosts": did you mean swap_ps?`}},
		{"no connection", `{"version":2,"hosts":{"connections":0}}`, []string{`connections of "hosts" is 0: want 1 to 8`}},
		{"no number", `{"version":2,"device":{"lines_pair":"8M"}}`, []string{"device"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := Parse("table.json", []byte(k.text))
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, "table.json")
			for _, want := range k.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Setenv(env.Tuning.Name, "")
	table, agreed, err := Load()
	require.NoError(t, err)
	require.Equal(t, Default(), table)
	require.Equal(t, "default", agreed, "hosts with other processors have another default")
	a := measured()
	name := filepath.Join(t.TempDir(), "t.json")
	require.NoError(t, os.WriteFile(name, a.Bytes(), 0o600))
	t.Setenv(env.Tuning.Name, name)
	table, agreed, err = Load()
	require.NoError(t, err)
	require.Equal(t, a.Table(), table)
	require.Equal(t, 4<<20, table.GPU.LinesPair)
	require.Equal(t, a.Hash(), agreed)
	t.Setenv(env.Tuning.Name, name+".not")
	_, _, err = Load()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// An endless file, or one that is too large for a table, is not read into memory.
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
			_, _, err := Load()
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "UBCOLL_TUNING")
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(measured().Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := Parse("fuzz", data); err == nil {
			b, err := Parse("again", a.Bytes())
			require.NoError(t, err)
			require.Equal(t, a.Bytes(), b.Bytes())
			require.Equal(t, a.Table(), b.Table())
		}
	})
}
