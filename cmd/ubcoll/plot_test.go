package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

const (
	plotResults = "../../internal/chart/testdata/sweep"
	plotPage    = "../../internal/chart/testdata/page.md"
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

	// Figures of several operations have these in their files' names.
	csv, several := at("several.csv"), at("several.svg")
	require.NoError(t, os.WriteFile(csv, []byte("operation,size,time,bus_bw\nbroadcast,8,1,1\nall_gather,8,1,1\n"), 0o644))
	stdout, stderr, code = testkit.Program(t, environ, "plot", "-o", several, csv)
	require.Equal(t, 0, code, stderr)
	several = strings.TrimSuffix(several, ".svg")
	require.Equal(t, several+"-broadcast.svg\n"+several+"-all_gather.svg\n", stdout)

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
	require.NoError(t, os.WriteFile(old, []byte("#!/bin/sh\necho too old >&2\nexit 6\n"), 0o755))
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
		cmd := exec.CommandContext(ctx, browser, append(args, "file://"+page)...)
		var out, err strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &err
		require.NoError(t, cmd.Run(), "%s", &err)
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
	for _, series := range []string{"run, 4 ranks, the library's choice", "run, 4 ranks, ring"} {
		want = append(want, series+" 1 KiB", series+" 64 KiB", series+" 1 MiB")
	}
	for _, series := range []string{"page, ubcoll, 2 ranks", "page, Open MPI, 2 ranks", "page, the hardware's bound, 2 ranks"} {
		want = append(want, series+" 1 KiB", series+" 4 KiB")
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
