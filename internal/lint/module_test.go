package lint

import (
	"archive/zip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// release is the version that these tests give this tree, as tags would.
const release = "v0.0.1-rc.1"

// command runs a command that must succeed, and returns its output.
func command(t *testing.T, dir string, environ []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environ...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	return string(out)
}

// proxy writes a module proxy of files, which has this tree's modules in that version, and returns the variables with
// which the go command knows only these and what this machine has fetched before.
func proxy(t *testing.T) (environ []string) {
	t.Helper()
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a repository: git says which files are the module's")
	}
	files := strings.Split(strings.TrimRight(command(t, root, nil, "git", "ls-files", "-z", "-co", "--exclude-standard"), "\x00"), "\x00")
	dirs := []string{""} // of the modules, the innermost last
	for _, name := range files {
		if dir, ok := strings.CutSuffix(name, "/go.mod"); ok {
			dirs = append(dirs, dir+"/")
		}
	}
	of := map[string][]string{}
	for _, name := range files {
		info, err := os.Lstat(filepath.Join(root, name))
		if os.IsNotExist(err) || strings.HasPrefix(name, "vendor/") { // removed, but not committed yet
			continue
		}
		require.NoError(t, err)
		require.True(t, info.Mode().IsRegular(), "%s would be left out of the module: it is no ordinary file", name)
		in := ""
		for _, dir := range dirs {
			if strings.HasPrefix(name, dir) {
				in = dir
			}
		}
		of[in] = append(of[in], strings.TrimPrefix(name, in))
	}
	where := t.TempDir()
	for dir, names := range of {
		mod, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
		require.NoError(t, err)
		path, _, _ := strings.Cut(strings.TrimPrefix(string(mod), "module "), "\n")
		if path != strings.TrimSuffix(module+"/"+dir, "/") {
			continue // an example, which is not to be had by version
		}
		serve(t, filepath.Join(where, filepath.FromSlash(path), "@v"), path, filepath.Join(root, dir), string(mod), names)
	}
	cache, proxies, _ := strings.Cut(strings.TrimSpace(command(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY")), "\n")
	return []string{"GOPROXY=file://" + where + ",file://" + filepath.Join(cache, "cache", "download") + "," + proxies, "GOSUMDB=off", "GOWORK=off",
		"GOFLAGS=-modcacherw -mod=mod -trimpath", "GOMODCACHE=" + t.TempDir(), "GOTOOLCHAIN=local"}
}

// serve writes a module's files of a proxy to the folder at.
func serve(t *testing.T, at, path, root, mod string, names []string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(at, 0o755))
	for name, text := range map[string]string{"list": release + "\n", release + ".mod": mod,
		release + ".info": `{"Version":"` + release + `","Time":"2026-01-01T00:00:00Z"}`} {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o644))
	}
	f, err := os.Create(filepath.Join(at, release+".zip"))
	require.NoError(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	for _, name := range names {
		w, err := z.Create(path + "@" + release + "/" + name)
		require.NoError(t, err)
		in, err := os.Open(filepath.Join(root, name))
		require.NoError(t, err)
		_, err = io.Copy(w, in)
		require.NoError(t, err)
		require.NoError(t, in.Close())
	}
	require.NoError(t, z.Close())
}

// go get accepts this tree as a module: a program elsewhere gets the library and the tools, with the files that they
// embed, and go install takes the tools by version, which it refuses where a go.mod has a replace directive. Run in full,
// it builds and runs them, too.
func TestGoGet(t *testing.T) {
	testkit.Long(t)
	environ, elsewhere := proxy(t), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "go.mod"), []byte("module example\n\ngo 1.26.0\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "main.go"),
		[]byte("package main\n\nimport (\n\t_ \""+module+"/coll\"\n\t_ \""+module+"/graph\"\n)\n\nfunc main() {}\n"), 0o644))
	command(t, elsewhere, environ, "go", "get", module+"@"+release) // this checks names and sizes
	out := command(t, elsewhere, environ, "go", "list", "-deps", "-json=ImportPath,EmbedFiles,Error,DepsErrors", ".", module+"/cmd/ubcoll",
		module+"/cmd/allreduce_ub")
	embedded := 0
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var p struct {
			ImportPath string
			EmbedFiles []string
			Error      any
		}
		require.NoError(t, d.Decode(&p))
		require.Nil(t, p.Error, p.ImportPath)
		if strings.HasPrefix(p.ImportPath, module) {
			embedded += len(p.EmbedFiles)
		}
	}
	require.Positive(t, embedded, "the programs embed files")

	bin := t.TempDir()
	environ = append(environ, "GOBIN="+bin)
	build, install := []string{"build", "-o", "program", "."}, []string{"install"}
	if !testkit.Full() { // a fresh module cache has other paths, so that all would be compiled anew
		build, install = append([]string{"build", "-n"}, build[1:]...), append(install, "-n")
	}
	command(t, elsewhere, environ, "go", build...)
	for _, tool := range []string{"cmd/ubcoll", "cmd/ubcoll-plot"} { // each of a module and with a version of its own
		command(t, elsewhere, environ, "go", append(install, module+"/"+tool+"@"+release)...)
	}
	if !testkit.Full() {
		return
	}
	command(t, elsewhere, nil, "./program")
	out = command(t, elsewhere, nil, filepath.Join(bin, "ubcoll"), "version")
	require.True(t, strings.HasPrefix(out, "ubcoll "+release+"\n"), out)
	require.Contains(t, command(t, elsewhere, nil, "go", "version", "-m", filepath.Join(bin, "ubcoll-plot")),
		"\tmod\t"+module+"/cmd/ubcoll-plot\t"+release+"\t")
	require.Contains(t, command(t, elsewhere, nil, filepath.Join(bin, "ubcoll-plot"), "-h"), "Usage: ubcoll-plot")
}
