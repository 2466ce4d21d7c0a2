//go:build linux && cgo && (amd64 || arm64)

package emulated

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// flags of the compiler. Kernels are optimized a little; without that, large data takes too long.
var flags = []string{"-std=c++17", "-O1", "-g", "-Wall", "-fPIC", "-shared", "-pthread", "-ftls-model=initial-exec",
	"-DUBC_EMULATE", "-Wl,-z,now,-Bsymbolic"}

// unavailable is why the library cannot be built here; the tests then skip.
type unavailable string

func (u unavailable) Error() string { return "no emulated GPU: " + string(u) }

// Library builds the emulated driver, if that has not been done before, and returns the folder with its libcuda.so.1,
// for LD_LIBRARY_PATH of other processes. It skips the test if there is no compiler.
func Library(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if no := unavailable(""); errors.As(err, &no) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// restart replaces this process by itself, with the emulated driver. It returns only if it could not.
func restart() error {
	dir, err := build()
	if no := unavailable(""); errors.As(err, &no) {
		fmt.Fprintln(os.Stderr, err)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "emulated GPU: these tests show nothing about a GPU's speed or memory ordering")
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), Environ(dir)...))
}

// Environ returns the variables that a process needs, in addition to this one's, to use the library in that folder.
func Environ(dir string) []string {
	path := dir
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		path += ":" + old
	}
	return []string{"LD_LIBRARY_PATH=" + path, started + "=1"}
}

// build makes the library once, however many test programs need it: a hash of all its sources names its folder.
var build = sync.OnceValues(func() (string, error) {
	cxx := compiler()
	if cxx == nil {
		return "", unavailable("no C++ compiler: set CXX")
	}
	home, err := home()
	if err != nil {
		return "", err
	}
	var sources, made []string // to compile; to hash
	own := filepath.Join("internal", "gpu", "emulated", "testdata")
	for _, pattern := range []string{own + "/*.cc", own + "/*.h", "hw/cuda/driver.h", "internal/gpu/kernels/src/*"} {
		found, err := filepath.Glob(filepath.Join(home, pattern))
		if err != nil {
			return "", err
		}
		made = append(made, found...)
	}
	for _, name := range made {
		if filepath.Ext(name) == ".cc" && filepath.Dir(name) == filepath.Join(home, own) ||
			strings.HasPrefix(filepath.Base(name), "emulate") && filepath.Ext(name) == ".cc" {
			sources = append(sources, name)
		}
	}
	command := append(slices.Concat(cxx, flags), "-o")
	sum := sha256.New()
	fmt.Fprintln(sum, command)
	for _, name := range made {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, name, len(b))
		sum.Write(b)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprint("cache-", os.Getuid()))
	}
	dir := filepath.Join(cache, "ubcoll-emulated-gpu", fmt.Sprintf("%x", sum.Sum(nil)[:12]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("emulated GPU: %w", err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("emulated GPU: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("emulated GPU: %s: %w", lock.Name(), err)
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	if _, err := os.Stat(lib); err == nil {
		return dir, nil
	}
	command = append(append(command, lib+".new"), sources...)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("emulated GPU: %s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return dir, os.Rename(lib+".new", lib)
})

// compiler returns the command of the C++ compiler, perhaps with flags, or nil.
func compiler() []string {
	for _, cxx := range []string{os.Getenv("CXX"), "c++", "g++", "clang++"} {
		if words := strings.Fields(cxx); len(words) > 0 {
			if path, err := exec.LookPath(words[0]); err == nil {
				return append([]string{path}, words[1:]...)
			}
		}
	}
	return nil
}

// home returns the root of the source tree: as seen from this file where it was compiled, else above the working
// directory, which for a test is its package's.
func home() (string, error) {
	good := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "internal", "gpu", "emulated", "testdata", "fiber.cc"))
		return err == nil
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		// This file is three folders below the root.
		if dir := filepath.Join(filepath.Dir(file), "..", "..", ".."); good(dir) {
			return dir, nil
		}
	}
	at, err := os.Getwd()
	for err == nil {
		if good(at) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	return "", unavailable("the source tree is not here")
}
