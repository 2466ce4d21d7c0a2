// Package verbstest runs tests of code that uses hw/verbs where there is no RDMA device, over a double of libibverbs:
// NICs of one process, whose queue pairs move data in memory. The double produces what soft-RoCE, the kernel's own
// emulation, cannot, and enforces rules that soft-RoCE does not. The tests of hw/verbs run on both as far as both can.
// The double says nothing about the speed of a device, or about waiting for one.
//
// testdata/double.h says what the double does, and has its knobs. It needs Linux, a C compiler (CC, cc, gcc or clang)
// and this source tree. It is built at the first use and kept in the user's cache folder.
//
// A process loads one library, whose knobs are environment variables. So a test names its knobs and runs itself over
// the double in a process of its own:
//
//	func TestMemlock(t *testing.T) {
//		verbstest.Over(t, verbstest.Knobs{"MEMLOCK": "65536"}, func(t *testing.T) {
//			... // over a double that registers 64 KiB
//		})
//	}
package verbstest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Knobs are the double's knobs, by their names without VERBSTEST_ ("FAIL", "LINK"). One more, "WITHOUT", lists
// functions that the library lacks, separated by commas ("ibv_reg_dmabuf_mr,_ibv_query_gid_table").
type Knobs map[string]string

// Variables that tell the process over the double what to do.
const (
	libraryVar = "UBCOLL_TEST_LIBRARY" // the library that hw/verbs's own tests load
	overVar    = "UBCOLL_TEST_OVER"    // the test that runs over the double
	prefix     = "VERBSTEST_"
)

var flags = []string{"-std=gnu11", "-O2", "-g", "-Wall", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"}

// Library builds the double without the functions named in without, unless it has been built before, and returns its
// path. The file is named libibverbs.so.1, so that its folder can stand in LD_LIBRARY_PATH. Without a compiler it skips
// the test, or fails it if UBCOLL_REQUIRE has verbs.
func Library(t testing.TB, without ...string) string {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join(home(t), "hw/verbs/verbstest/testdata/*.c"))
	if err != nil {
		t.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, func(name string) bool { return filepath.Base(name) == "walk.c" })
	command := slices.Concat(compiler(t), flags, []string{"-shared", "-Wl,-z,now,-soname,libibverbs.so.1"})
	sum, text := sha256.New(), ""
	for _, name := range append(sources, filepath.Join(home(t), "hw/verbs/abi.h"), filepath.Join(filepath.Dir(sources[0]), "double.h")) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	for _, name := range without {
		if bare := strings.TrimPrefix(name, "ibv_"); !strings.Contains(text, "\tF(") || !strings.Contains(text, ", "+bare+", (") &&
			!strings.Contains(text, " "+name+"(") {
			t.Fatalf("the double has no %s to leave out", name)
		}
		command = append(command, "-D"+name+"=without_"+name)
	}
	fmt.Fprintln(sum, command, text)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprint("cache-", os.Getuid()))
	}
	dir := filepath.Join(cache, "ubcoll-verbstest", fmt.Sprintf("%x", sum.Sum(nil)[:12]))
	lib := filepath.Join(dir, "libibverbs.so.1")
	if _, err := os.Stat(lib); err == nil {
		return lib
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// Processes that build it at the same time build the same file, and rename is atomic.
	part := fmt.Sprintf("%s.%d", lib, os.Getpid())
	command = append(append(command, "-o", part), sources...)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	if err := os.Rename(part, lib); err != nil {
		t.Fatal(err)
	}
	return lib
}

// compiler returns the C compiler, perhaps with flags.
func compiler(t testing.TB) []string {
	t.Helper()
	for _, cc := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if words := strings.Fields(cc); len(words) > 0 {
			if path, err := exec.LookPath(words[0]); err == nil {
				return append([]string{path}, words[1:]...)
			}
		}
	}
	missing(t, "no C compiler for the double of libibverbs: set CC")
	return nil
}

func missing(t testing.TB, what string) {
	t.Helper()
	if env.Requires("verbs") {
		t.Fatal(what + ", and UBCOLL_REQUIRE has verbs")
	}
	t.Skip(what)
}

// home returns the root of the source tree. It searches upwards from the working directory, which for a test is its
// package's folder.
func home(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "hw", "verbs", "verbstest", "testdata", "double.h")); err == nil {
			return at
		}
	}
	missing(t, "no double of libibverbs: the source tree is not here")
	return ""
}

// Environ returns the environment for a process over the double with these knobs and no others. It is this process's
// environment, with a LD_LIBRARY_PATH that finds the double first: a program that loads libibverbs.so.1 by its name
// gets it.
func Environ(t testing.TB, knobs Knobs) []string {
	t.Helper()
	without := strings.FieldsFunc(knobs["WITHOUT"], func(r rune) bool { return r == ',' })
	lib := Library(t, without...)
	path := filepath.Dir(lib)
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		path += ":" + old
	}
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, prefix) })
	environ = append(environ, "LD_LIBRARY_PATH="+path, libraryVar+"="+lib, testkit.NoSleep)
	for _, name := range slices.Sorted(maps.Keys(knobs)) {
		if name != "WITHOUT" {
			environ = append(environ, prefix+name+"="+knobs[name])
		}
	}
	return environ
}

// Again runs this test program over the double with these arguments ("-test.run=^TestX$"), and returns its output. If
// the program fails, so does t. In that process Again skips its test.
func Again(t testing.TB, knobs Knobs, args ...string) string {
	t.Helper()
	if os.Getenv(libraryVar) != "" {
		t.Skip("this is over the double already")
	}
	return again(t, Environ(t, knobs), args...)
}

func again(t testing.TB, environ []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{"-test.v", "-test.timeout=" + testkit.Limit.String()},
		args...)...)
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("over the double: %v\n%s", err, out)
	}
	return string(out)
}

// over has the names of the tests that have called Over.
var over sync.Map

// Over runs f over the double with these knobs, in another process. That process runs the calling test from its
// beginning; f gets that test's t there. Its output and its failure become this test's. A test calls Over once; its
// subtests may, too.
func Over(t *testing.T, knobs Knobs, f func(t *testing.T)) {
	t.Helper()
	if _, twice := over.LoadOrStore(t.Name(), true); twice {
		t.Fatal("verbstest.Over is for once a test: make these subtests")
	}
	t.Cleanup(func() { over.Delete(t.Name()) })
	switch os.Getenv(overVar) {
	case "":
	case t.Name():
		f(t)
		return
	default: // that process runs f of another test
		return
	}
	var levels []string
	for _, level := range strings.Split(t.Name(), "/") {
		levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
	}
	out := again(t, append(Environ(t, knobs), overVar+"="+t.Name()), "-test.run="+strings.Join(levels, "/"))
	if strings.Contains(out, "--- SKIP: "+t.Name()+" ") {
		t.Skip(out)
	}
	if !strings.Contains(out, "--- PASS: "+t.Name()+" ") {
		t.Fatalf("it did not run over the double:\n%s", out)
	}
	t.Log(out)
}

// Sysfs makes a folder that stands for /sys/class/infiniband, with counters of these devices, or of double0. It returns
// its path for the knob SYSFS: the double counts there.
func Sysfs(t testing.TB, devices ...string) string {
	t.Helper()
	root := t.TempDir()
	if len(devices) == 0 {
		devices = []string{"double0"}
	}
	for _, device := range devices {
		for _, name := range []string{"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_packets",
			"counters/port_rcv_packets", "counters/link_downed", "hw_counters/rnr_nak_retry_err",
			"hw_counters/local_ack_timeout_err", "hw_counters/req_remote_access_errors",
			"hw_counters/resp_remote_access_errors"} {
			path := filepath.Join(root, device, "ports", "1", name)
			if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("0\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}
