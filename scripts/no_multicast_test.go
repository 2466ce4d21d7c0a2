//go:build linux

package scripts

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The names of the calls that make a multicast object, in two parts, so that no program of tests contains them.
var multicastCalls = []string{"cuMulticast" + "Create", "cuMulticast" + "AddDevice", "cuMulticast" + "BindMem", "cuMulticast" + "BindAddr"}

func TestNoMulticast(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		return filepath.Join(dir, name)
	}
	clean := file("clean", "\x00\x7fELF cuMulticastGetGranularity cuMemCreate\x00")
	for _, x := range []struct {
		name  string
		files []string
		code  int
		says  string
	}{
		{"clean", []string{clean}, 0, ""},
		{"create", []string{clean, file("a", "\x00x"+multicastCalls[0]+"\x00")}, 1, "built with tag nvls, and not run here: " + dir + "/a\n"},
		{"add a device", []string{file("b", "\x00"+multicastCalls[1]+"\x00"), clean}, 1, dir + "/b"},
		{"bind memory", []string{file("c", "\x00"+multicastCalls[2]+"\x00")}, 1, dir + "/c"},
		{"bind an address", []string{file("d", "\x00"+multicastCalls[3]+"\x00")}, 1, dir + "/d"},
		{"no file", []string{filepath.Join(dir, "none"), clean}, 2, "none"},
	} {
		t.Run(x.name, func(t *testing.T) {
			out, code := outcome(t, exec.Command("./no-multicast", x.files...))
			require.Equal(t, x.code, code, "%s", out)
			require.Contains(t, out, x.says)
		})
	}
}

// No program that a build without tag nvls makes, and no program of tests that scripts carry to another machine, contains
// the calls; the tests of hw/cuda with the tag do, so the search finds what it looks for.
func TestNoMulticastInPrograms(t *testing.T) {
	testkit.Long(t) // it links
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("no CUDA for this processor")
	}
	if cgo, err := exec.Command("go", "env", "CGO_ENABLED").Output(); err != nil || strings.TrimSpace(string(cgo)) != "1" {
		t.Skip("no CUDA without cgo")
	}
	dir := t.TempDir()
	// build makes the programs of some packages, and returns those with one of the calls.
	build := func(folder string, args ...string) (found []string) {
		t.Helper()
		to := filepath.Join(dir, folder)
		require.NoError(t, os.MkdirAll(to, 0o755))
		cmd := exec.Command("go", append(args[:1:1], append([]string{"-o", to + "/"}, args[1:]...)...)...)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		all, err := os.ReadDir(to)
		require.NoError(t, err)
		require.NotEmpty(t, all)
		for _, f := range all {
			b, err := os.ReadFile(filepath.Join(to, f.Name()))
			require.NoError(t, err)
			for _, call := range multicastCalls {
				if bytes.Contains(b, []byte(call)) {
					found = append(found, f.Name()+" "+call)
				}
			}
		}
		return found
	}
	require.Empty(t, build("default", "build", "./cmd/...", "./tools/benchstats", "./internal/conform/job"))
	require.Empty(t, build("tests", "test", "-c", "-vet=off", "./hw/cuda", "./internal/gpu/emulated"))
	var want []string
	for _, call := range multicastCalls {
		want = append(want, "cuda.test "+call)
	}
	require.Equal(t, want, build("nvls", "test", "-c", "-vet=off", "-tags", "nvls", "./hw/cuda"))
}

// Nothing in the project permits multicast on a real driver: one function of the tests does on the emulated one, and one of
// the commands where the user's flag or file says so. No script, configuration or test says so, but of the tests that of the
// flag over the emulated driver, and that of builds without multicast, which refuse.
func TestMulticastStaysOff(t *testing.T) {
	own := regexp.MustCompile(`Setenv\([^\n]*NVLS|"UBCOLL_NVLS=o` + `n"|"-{1,2}nvls(=|", ")o` + `n"|nvls *= *\\?['"]o` + `n`)
	flag := regexp.MustCompile(`-nvls[= ]+["']?o` + `n|nvls *= *\[?[^\n]*["']o` + `n`)
	var found []string
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, "../")
		top, _, _ := strings.Cut(name, "/")
		switch {
		case d.IsDir() && (d.Name() == ".git" || name == "bin" || name == "build"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) == ".md":
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(name) == ".go" {
			if own.Match(b) {
				found = append(found, name)
			}
			return nil
		}
		switch top {
		case "scripts", ".ci", "configs", "tools", "examples", "Makefile":
			if strings.Contains(string(b), "UBCOLL_"+"NVLS") || flag.Match(b) {
				found = append(found, name)
			}
		}
		return nil
	}))
	require.Equal(t, []string{"cmd/ubcoll/nvls_test.go", "cmd/ubcoll/nvls_without_test.go", "internal/experiment/nvls.go",
		"internal/gpu/emulated/primary.go"}, found)
}
