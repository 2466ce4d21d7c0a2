package chart

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/sweep"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// tableOf writes made-up results of an experiment, in the order of its points, as ubcoll run's table has them.
func tableOf(t *testing.T, experiment string, ranks int) string {
	t.Helper()
	s, err := sweep.Parse("x.toml", []byte(experiment))
	require.NoError(t, err)
	plan, err := s.Plan(ranks)
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("operation,variant,type,reduction,ranks,requested_algorithm,registration,device,graph,in_place,size,time,bus_bw\n")
	for i, p := range plan.Points {
		for repeat := range 2 {
			fmt.Fprintf(&b, "%s,%s,%s,%s,%d,%s,%s,%s,%d,%t,%d,%d,%d\n", p.Operation, p.Variant, p.Type, p.Reduction, p.Ranks, p.Algorithm,
				p.Registration, p.Device, p.Graph, p.InPlace, p.Bytes, i+repeat+1, i+repeat+2)
		}
	}
	file := filepath.Join(t.TempDir(), "points.csv")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	return file
}

const manyPanels = `[sweep]
operation = ["broadcast", "all_reduce", "all_gather"]
bytes = "1K..64K x8"
type = ["uint16", "float32", "int8"]
reduction = ["sum", "max"]
registration = ["off", "explicit"]
ranks = [16, 2, 4]
in_place = [true, false]
`

// The order of measurements changes no figure: not a byte of what the drawing program reads, and no name of a file.
func TestShuffled(t *testing.T) {
	smoke, err := os.ReadFile("../../configs/smoke.toml")
	require.NoError(t, err)
	for _, c := range []struct{ name, file string }{
		{"what ubcoll run writes", "testdata/sweep/points.jsonl"},
		{"a table", "testdata/grid.csv"},
		{"one figure", tableOf(t, string(smoke), 3)},
		{"several figures", tableOf(t, manyPanels, 16)},
	} {
		t.Run(c.name, func(t *testing.T) {
			picture := func(file string) (all []string) {
				for _, f := range figuresOf(t, "run="+file) {
					text, err := json.Marshal(f)
					require.NoError(t, err)
					all = append(all, f.Name, string(text))
				}
				return all
			}
			want := picture(c.file)
			text, err := os.ReadFile(c.file)
			require.NoError(t, err)
			head, rest, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
			for _, seed := range testkit.Seeds(t) {
				lines := strings.Split(rest, "\n")
				rand.New(rand.NewPCG(seed, 0)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
				file := filepath.Join(t.TempDir(), filepath.Base(c.file))
				require.NoError(t, os.WriteFile(file, []byte(head+"\n"+strings.Join(lines, "\n")+"\n"), 0o644))
				require.Equal(t, want, picture(file))
			}
		})
	}
}

// What is too much for one figure becomes several. Their names have what is constant in each, and only that. Their panels
// and lines are in order, and what is one line looks the same in all of them.
func TestSplit(t *testing.T) {
	figures := figuresOf(t, tableOf(t, manyPanels, 16))
	var got []string
	for _, f := range figures {
		got = append(got, f.Name)
		for _, p := range f.Panels {
			if f.Name == "all_reduce-float32" {
				got = append(got, "  "+p.Title)
			}
			for i, s := range p.Series {
				require.Equal(t, i, s.Look)
				require.Equal(t, []string{"registered, out of place", "registered, in place", "staged, out of place", "staged, in place"}[i], s.Name)
			}
		}
	}
	require.Equal(t, []string{
		"all_gather-float32", "all_gather-int8", "all_gather-uint16",
		"all_reduce-float32", "  max, 2 ranks", "  max, 4 ranks", "  max, 16 ranks", "  sum, 2 ranks", "  sum, 4 ranks", "  sum, 16 ranks",
		"all_reduce-int8", "all_reduce-uint16",
		"broadcast-float32", "broadcast-int8", "broadcast-uint16",
	}, got)
	require.Equal(t, "all_reduce, float32, host memory", figures[3].Title)

	// What does not explain itself stands behind its axis, and what is the same everywhere is in no name.
	var b strings.Builder
	b.WriteString("operation,type,ranks,algorithm,size,time,bus_bw,registration\n")
	for ranks := range 40 {
		for _, registration := range []string{"explicit", "auto"} {
			fmt.Fprintf(&b, "all_reduce,float32,%d,ring,8,1,1,%s\n", ranks+1, registration)
		}
	}
	file := filepath.Join(t.TempDir(), "many.csv")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	figures = figuresOf(t, file)
	require.Len(t, figures, 40)
	require.Equal(t, []string{"ranks-1", "ranks-2", "ranks-10"}, []string{figures[0].Name, figures[1].Name, figures[9].Name})
	require.Empty(t, figures[0].Panels[0].Title)
}

// A legend names up to 16 lines. With one more there are several figures, whose panels have fewer.
func TestLegend(t *testing.T) {
	for _, k := range []struct{ lines, figures int }{{legend, 1}, {legend + 1, 3}} {
		var b strings.Builder
		b.WriteString("operation,type,ranks,requested_algorithm,size,time,bus_bw,registration\n")
		for i := range k.lines { // an algorithm is one operation's alone
			fmt.Fprintf(&b, "%s,float32,2,way%d,8,1,1,explicit\n", []string{"all_gather", "all_reduce", "broadcast"}[i/6], i)
		}
		file := filepath.Join(t.TempDir(), "lines.csv")
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
		figures := figuresOf(t, file)
		require.Len(t, figures, k.figures, "%d lines", k.lines)
		looks := map[int]bool{}
		for _, f := range figures {
			for _, p := range f.Panels {
				for _, s := range p.Series {
					looks[s.Look] = true
				}
			}
		}
		require.Len(t, looks, k.lines)
	}
}

// Every experiment in configs is one figure, and few lines are in each panel of it.
func TestConfigs(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.toml")
	require.NoError(t, err)
	drawn := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.Contains(string(text), "[sweep]") {
			continue
		}
		drawn++
		figures := figuresOf(t, tableOf(t, string(text), 8))
		require.Len(t, figures, 1, file)
		require.Empty(t, figures[0].Name, file)
		for _, p := range figures[0].Panels {
			require.LessOrEqual(t, len(p.Series), 5, "%s: %s", file, p.Title)
			if filepath.Base(file) == "smoke.toml" {
				require.LessOrEqual(t, len(p.Series), 4, p.Title)
			}
		}
	}
	require.Positive(t, drawn)
}

// Where a line is missing, the others look as they do elsewhere: in the panels of one figure, and in several figures. The
// hardware's bound comes last.
func TestLooks(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks int
	}{{"one figure", 1}, {"several figures", 7}} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			b.WriteString("operation,contender,ranks,size,time,bus_bw\n")
			for ranks := range c.ranks {
				for _, l := range []string{"broadcast,openmpi", "broadcast,bound", "all_reduce,bound", "all_reduce,ours", "all_reduce,mpich", "alltoall,openmpi",
					"all_reduce,openmpi", "alltoall,ours"} {
					fmt.Fprintf(&b, "%s,%d,8,1,1\n", l, ranks+2)
				}
				for i := range 4 { // so that ranks are not lines
					fmt.Fprintf(&b, "all_reduce,other%d,%d,8,1,1\n", i, ranks+2)
				}
			}
			file := filepath.Join(t.TempDir(), "points.csv")
			require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
			figures := figuresOf(t, file)
			got := map[string]string{}
			for _, f := range figures {
				for _, p := range f.Panels {
					var looks []string
					for _, s := range p.Series {
						looks = append(looks, fmt.Sprint(s.Look, " ", s.Name))
					}
					op := regexp.MustCompile("all_reduce|alltoall|broadcast").FindString(f.Title + p.Title)
					require.Contains(t, []string{"", strings.Join(looks, ", ")}, got[op])
					got[op] = strings.Join(looks, ", ")
				}
			}
			if c.ranks > 1 {
				require.Greater(t, len(figures), 1)
			}
			require.Equal(t, map[string]string{
				"all_reduce": "0 MPICH, 1 Open MPI, 2 other0, 3 other1, 4 other2, 5 other3, 6 ubcoll, 7 the hardware's bound",
				"alltoall":   "1 Open MPI, 6 ubcoll",
				"broadcast":  "1 Open MPI, 7 the hardware's bound",
			}, got)
		})
	}
}

func TestNatural(t *testing.T) {
	for _, c := range []struct{ less, more string }{
		{"", "a"}, {"2", "10"}, {"int8", "int16"}, {"9", "a"}, {"float64", "int8"}, {"01", "1"}, {"99999999999999999998", "99999999999999999999"},
		{"a2b10", "a10b2"}, {"ring", "ring2"},
	} {
		require.Negative(t, natural(c.less, c.more), "%q before %q", c.less, c.more)
		require.Positive(t, natural(c.more, c.less), "%q after %q", c.more, c.less)
		require.Zero(t, natural(c.more, c.more))
	}
}
