package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

const (
	plotResults = "../../internal/chart/testdata/sweep"
	plotPage    = "../../internal/chart/testdata/page.md"
	plotTable   = "../../internal/chart/testdata/grid.csv"
)

// withDrawer builds the program that draws, and gives the environment in which ubcoll finds it.
func withDrawer(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join("..", drawer)
	// go test does not see what the go command reads: so it learns of the program's text.
	sources, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, s := range sources {
		if i, err := os.Stat(s); err == nil && i.Mode().IsRegular() {
			_, err := os.ReadFile(s)
			require.NoError(t, err)
		}
	}
	download := exec.Command("go", "mod", "download")
	download.Dir = dir
	if out, err := download.CombinedOutput(); err != nil { // scripts/test has tried it, and fails then
		t.Skipf("what %s is made of cannot be had here: %v: %s", drawer, err, out)
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin+"/", ".")
	build.Dir = dir
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")}
}

func TestPlot(t *testing.T) {
	testkit.Long(t)
	environ := withDrawer(t)
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	both := at("both")
	stdout, stderr, code := testkit.Program(t, environ, "plot", plotResults, "-o", both, "-bound", "NVLink=45", "-title", "A <title>")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, both+".svg\n"+both+".png\n", stdout)
	require.Contains(t, stderr, "wrong elements in 1 of the points")
	for _, want := range []string{">A &lt;title&gt;<", ">ring<", ">NVLink 45 GB/s<", ">Time of a call<"} {
		require.Contains(t, read(both+".svg"), want)
	}
	require.True(t, strings.HasPrefix(read(both+".png"), "\x89PNG"))

	// Several operations are one picture, and the order of their measurements is not seen in it.
	lines := strings.Split(strings.TrimSpace(read(plotTable)), "\n")
	slices.Reverse(lines[1:])
	csv, grid, reversed := at("grid.csv"), at("grid"), at("reversed")
	require.NoError(t, os.WriteFile(csv, []byte(strings.Join(lines, "\n")), 0o644))
	for file, name := range map[string]string{plotTable: grid, csv: reversed} {
		stdout, stderr, code = testkit.Program(t, environ, "plot", file, "-o", name)
		require.Equal(t, 0, code, stderr)
		require.Equal(t, name+".svg\n"+name+".png\n", stdout)
	}
	require.Contains(t, read(grid+".svg"), ">all_reduce, 2 ranks<")
	require.Contains(t, read(grid+".svg"), ">broadcast, 10 ranks<")
	require.Equal(t, read(grid+".svg"), read(reversed+".svg"))
	require.Equal(t, read(grid+".png"), read(reversed+".png"))

	// What is more than a page is several files, named by what is constant in each. Their titles say it too. A report says
	// each title once, above the picture.
	lines = []string{"operation,type,in_place,size,time,bus_bw"}
	for i := range 36 {
		lines = append(lines, fmt.Sprintf("%s,type%d,%t,8,1,1", []string{"broadcast", "all_gather"}[i/18], i/2%9, i%2 == 0))
	}
	many, report := at("many.svg"), at("many.html")
	require.NoError(t, os.WriteFile(csv, []byte(strings.Join(lines, "\n")), 0o644))
	stdout, stderr, code = testkit.Program(t, environ, "plot", "-o", many, "-o", report, csv, "-title", "A title")
	require.Equal(t, 0, code, stderr)
	many = strings.TrimSuffix(many, ".svg")
	require.Equal(t, many+"-all_gather.svg\n"+many+"-broadcast.svg\n"+report+"\n", stdout)
	require.Contains(t, read(many+"-all_gather.svg"), ">A title: all_gather<")
	for _, title := range []string{"<h1>A title<", ">all_gather<", ">broadcast<"} {
		require.Equal(t, 1, strings.Count(read(report), title), title)
	}

	// The description needs no drawer, all else says how to get it, and nothing is written by halves.
	none := []string{"PATH=" + t.TempDir()}
	description, picture := at("d.json"), at("p.svg")
	_, stderr, code = testkit.Program(t, none, "plot", plotPage, "-o", description)
	require.Equal(t, 0, code, stderr)
	require.JSONEq(t, read("../ubcoll-plot/testdata/page.json"), read(description))
	_, stderr, code = testkit.Program(t, none, "plot", plotPage, "-o", at("d.json"), "-o", picture)
	require.Equal(t, exitSupport, code)
	require.Contains(t, stderr, "ubcoll-plot, which draws, is neither beside ubcoll nor in PATH")
	require.Contains(t, stderr, "go install github.com/ubcoll/ubcoll/cmd/ubcoll-plot@latest")
	require.Contains(t, stderr, "go install -C cmd/ubcoll-plot .")
	require.NoFileExists(t, picture)
	// What the drawer says reaches the user.
	old := filepath.Join(t.TempDir(), drawer)
	testkit.WriteProgram(t, old, "#!/bin/sh\necho too old >&2\nexit 6\n")
	_, stderr, code = testkit.Program(t, []string{"PATH=" + filepath.Dir(old)}, "plot", plotPage, "-o", picture)
	require.NotEqual(t, 0, code)
	require.Contains(t, stderr, "exit status 6: too old")
}

// A browser shows the report, has nothing to say about it, and is kept from loading anything: the page's own policy, which
// makes every attempt an error on the console, forbids it.
func TestReportInBrowser(t *testing.T) {
	testkit.Long(t)
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("no chromium to look at the report with: scripts/setup chromium installs it")
	}
	show := func(page string, args ...string) (dom, said string) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
		defer cancel()
		args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
			"--disable-background-networking", "--user-data-dir=" + t.TempDir(), "--enable-logging=stderr"}, args...)
		var out, err strings.Builder
		for turn := 0; ; turn++ {
			cmd := exec.CommandContext(ctx, browser, append(args, "file://"+page)...)
			cmd.Stdout, cmd.Stderr = &out, &err
			e := cmd.Run()
			if crashed := cmd.ProcessState != nil && cmd.ProcessState.ExitCode() < 0; crashed && ctx.Err() == nil && turn < 2 {
				t.Logf("the browser was killed by a signal (%v), as it was once on a loaded machine: it is started again", e)
				out.Reset()
				err.Reset()
				continue
			}
			require.NoError(t, e, "%s", &err)
			break
		}
		for line := range strings.Lines(err.String()) {
			if strings.Contains(line, "CONSOLE") {
				said += line
			}
		}
		return out.String(), said
	}
	report := filepath.Join(t.TempDir(), "report.html")
	_, stderr, code := testkit.Program(t, withDrawer(t), "plot", "run="+plotResults, plotPage, "-o", report)
	require.Equal(t, 0, code, stderr)

	dom, said := show(report, "--dump-dom")
	require.Empty(t, said)
	rows := regexp.MustCompile(`<tr><td>([^<]*)</td><td>([^<]*)</td>`).FindAllStringSubmatch(dom, -1)
	var got []string
	for _, r := range rows {
		got = append(got, r[1]+" "+r[2])
	}
	var want []string
	for _, series := range []string{"page, Open MPI", "page, ubcoll", "page, the hardware's bound"} {
		want = append(want, series+" 1 KiB", series+" 4 KiB")
	}
	for _, series := range []string{"run, the library's choice", "run, ring"} {
		want = append(want, series+" 1 KiB", series+" 64 KiB", series+" 1 MiB")
	}
	require.Equal(t, want, got)
	require.Equal(t, 1, strings.Count(dom, "<svg "))
	require.Contains(t, dom, "Wrong elements in 1 of the points")

	for _, mode := range []string{"light", "dark"} {
		shot := filepath.Join(t.TempDir(), mode+".png")
		args := []string{"--screenshot=" + shot, "--window-size=1000,1400"}
		if mode == "dark" {
			args = append(args, "--blink-settings=preferredColorScheme=0")
		}
		_, said = show(report, args...)
		require.Empty(t, said)
		require.FileExists(t, shot)
	}

	// What the report must not do is seen where it is done.
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	for what, tag := range map[string]string{"loads": `<img src="http://127.0.0.1:9/x.png">`, "runs": `<script>1</script>`} {
		bad := filepath.Join(t.TempDir(), "bad.html")
		require.NoError(t, os.WriteFile(bad, []byte(strings.Replace(string(text), "<h1>", tag+"<h1>", 1)), 0o644))
		_, said := show(bad, "--dump-dom")
		require.Contains(t, said, "Content Security Policy", fmt.Sprintf("a page that %s something", what))
	}
}
