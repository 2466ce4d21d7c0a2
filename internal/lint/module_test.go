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

// go get accepts this tree as a module: from a proxy that has only this tree and what this machine has fetched before,
// a program elsewhere gets the library and the tool, with the files that they embed.
func TestGoGet(t *testing.T) {
	testkit.Long(t)
	root := filepath.Join("..", "..")
	command := func(dir string, environ []string, name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), environ...)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		require.NoError(t, err, said.String())
		return string(out)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a repository: git says which files are the module's")
	}
	const version = "v0.0.1"
	proxy := t.TempDir()
	at := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	require.NoError(t, os.MkdirAll(at, 0o755))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o644))
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	write("list", version+"\n")
	write(version+".mod", string(mod))
	write(version+".info", `{"Version":"`+version+`","Time":"2026-01-01T00:00:00Z"}`)
	f, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	var nested []string // modules of their own
	files := strings.Split(strings.TrimRight(command(root, nil, "git", "ls-files", "-z", "-co", "--exclude-standard"), "\x00"), "\x00")
	for _, name := range files {
		if dir, ok := strings.CutSuffix(name, "/go.mod"); ok {
			nested = append(nested, dir+"/")
		}
	}
	for _, name := range files {
		info, err := os.Lstat(filepath.Join(root, name))
		if os.IsNotExist(err) || strings.HasPrefix(name, "vendor/") { // removed, but not committed yet
			continue
		}
		require.NoError(t, err)
		require.True(t, info.Mode().IsRegular(), "%s would be left out of the module: it is no ordinary file", name)
		inside := false
		for _, dir := range nested {
			inside = inside || strings.HasPrefix(name, dir)
		}
		if inside {
			continue
		}
		w, err := z.Create(module + "@" + version + "/" + name)
		require.NoError(t, err)
		in, err := os.Open(filepath.Join(root, name))
		require.NoError(t, err)
		_, err = io.Copy(w, in)
		require.NoError(t, err)
		require.NoError(t, in.Close())
	}
	require.NoError(t, z.Close())

	cache := strings.TrimSpace(command(".", nil, "go", "env", "GOMODCACHE"))
	elsewhere := t.TempDir()
	environ := []string{"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache", "download"), "GOSUMDB=off", "GOWORK=off",
		"GOFLAGS=-modcacherw -mod=mod", "GOMODCACHE=" + t.TempDir(), "GOTOOLCHAIN=local"}
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "go.mod"), []byte("module example\n\ngo 1.26.0\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "main.go"),
		[]byte("package main\n\nimport (\n\t_ \""+module+"/coll\"\n\t_ \""+module+"/graph\"\n)\n\nfunc main() {}\n"), 0o644))
	command(elsewhere, environ, "go", "get", module+"@"+version) // this checks names and sizes
	out := command(elsewhere, environ, "go", "list", "-deps", "-json=ImportPath,EmbedFiles,Error,DepsErrors", ".", module+"/cmd/ubcoll",
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
}
