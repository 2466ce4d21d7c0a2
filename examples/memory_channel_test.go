package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// tutorial is the output in MSCCL++'s tutorial of memory channels.
const tutorial = `GPU 1: Preparing for bidirectional copy tests ...
GPU 0: Preparing for bidirectional copy tests ...
GPU 0: bytes 1024, elapsed 0.00654806 ms/iter, BW 0.156382 GB/s
GPU 0: bytes 1048576, elapsed 0.0092823 ms/iter, BW 112.965 GB/s
GPU 0: bytes 134217728, elapsed 0.388549 ms/iter, BW 345.433 GB/s
Succeed!
`

// measured is what differs between runs: the numbers before a unit.
var measured = regexp.MustCompile(`[0-9]+(\.[0-9]+)?(e[-+][0-9]+)? (ms/iter|GB/s)`)

// form is the output without what differs between runs. The first two lines come in any order.
func form(output string) []string {
	lines := strings.Split(measured.ReplaceAllString(output, "N $3"), "\n")
	slices.Sort(lines[:min(2, len(lines))])
	return lines
}

// memory_channel prints what the tutorial does, but for the numbers. It names ranks on host memory.
func TestMemoryChannel(t *testing.T) {
	_, err := os.ReadFile("memory_channel/main.go") // go test runs the test again when that has changed
	require.NoError(t, err)
	require.NoError(t, build(".", "./memory_channel"))
	bin := filepath.Join(programs, "memory_channel")
	// Elsewhere a rank says so that waits for more than 10 seconds, as the third one may on a busy machine.
	const quiet = "UBCOLL_LOG=error"
	onHost := form(strings.ReplaceAll(tutorial, "GPU ", "Rank "))
	for _, n := range testkit.Sample(2, []int{2, 3}) {
		stdout, stderr := run(t, []string{quiet, "NTHREADS=" + strconv.Itoa(n)}, bin)
		require.Empty(t, stderr)
		require.Equal(t, onHost, form(stdout))
	}
	if testing.Short() {
		return
	}
	environ := append(emulated.Environ(emulated.Library(t)), "UBCOLL_CUDA=share", "UBCOLL_EMULATE_DEVICES=1", "NTHREADS=2", quiet)
	stdout, stderr := run(t, environ, bin)
	require.Empty(t, stderr)
	require.Equal(t, form(tutorial), form(stdout))
}
