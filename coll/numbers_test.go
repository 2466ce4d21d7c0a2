package coll

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/net"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// TestNumbers compares numbers that texts repeat with the code's.
func TestNumbers(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	var eager int
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(_ context.Context, c *ubcoll.Comm) error {
		eager = (*inside.Comm)(c).View().Mail.EagerLimit()
		return nil
	}))
	packets := func(l kernels.Layout) int { return l.Data() / kib }
	first, small := packets(kernels.First(2)), packets(kernels.Small(2))
	opened := func(ranks int) int { return (kernels.First(ranks).Bytes() + 2*mib - 1) / (2 * mib) * 2 } // MiB
	staged := func(ranks int) int {
		return opened(ranks) + (kernels.StagingBytes+(ranks-1)*kernels.FIFOBytes)/mib
	}
	box := func(ranks int) float64 { return float64(mail.AreaBytes(ranks)/ranks) / kib }
	limits := tuning.MessageRoom()
	perPair := func(ranks int) []any {
		return []any{float64(hosts.Sum(mail.MemoryBetween(ranks, 1))) / kib, float64(hosts.Sum(mail.MemoryBetween(ranks, 16))) / kib}
	}
	many := tuning.DefaultGPU().OneShotMany / kib
	timeout, err := time.ParseDuration(env.Timeout.Default)
	require.NoError(t, err)
	for _, c := range []struct {
		document string
		format   string
		numbers  []any
	}{
		{"p2p/sendrecv.go", "at most %d KiB (less for more than 16 ranks) is copied and does not wait for its Recv, unless " +
			"%d such messages", []any{eager / kib, mail.SendSlots}},
		{"p2p/sendrecv.go", "To another host up to %d KiB are copied, and up to %d KiB if", []any{mail.EagerFar / kib, mail.MediumFar / kib}},
		{"docs/from-mpi.md", "to another host up to %d KiB", []any{mail.EagerFar / kib}},
		{"docs/errors.md", "longer than %d KiB, and perhaps from %d KiB on", []any{mail.MediumFar / kib, mail.EagerFar / kib}},
		{"docs/architecture/hosts.md", "up to %d KiB, travel in *batches*", []any{mail.EagerFar / kib}},
		{"docs/architecture/hosts.md", "up to %d KiB, travel alone in batches", []any{mail.MediumFar / kib}},
		{"docs/clusters.md", "Messages cost a rank %.0f KiB for each rank of another host", []any{float64(hosts.Sum(mail.MemoryBetween(0, 1))) / kib}},
		{"docs/architecture/hosts.md", "| 64 | %.0f KiB | %.0f KiB |", perPair(64)},
		{"docs/architecture/hosts.md", "| 1024 | %.0f KiB | %.0f KiB |", perPair(1024)},
		{"docs/architecture/hosts.md", "| 4095 | %.0f KiB | %.0f KiB |", perPair(4095)},
		{"p2p/sendrecv.go", "For device memory the limits are %d KiB", []any{kernels.EagerBytes / kib}},
		{"docs/from-mpi.md", "up to %d KiB of host memory (less with more than 16 ranks), and %d of them to a rank",
			[]any{eager / kib, mail.SendSlots}},
		{"docs/from-mpi.md", "more than %d ranks (on one host %d in V operations)", []any{team.MaxRanks, maxVectorRanks}},
		{"docs/from-mpi.md", "After `Options.Timeout`, %.0f minutes by default", []any{timeout.Minutes()}},
		{"docs/from-nccl.md", "After `Options.Timeout`, %.0f minutes by default", []any{timeout.Minutes()}},
		{"README.md", "`UBCOLL_TIMEOUT` (`%s`)", []any{env.Timeout.Default}},
		{"README.md", "%d ranks at most, on one host %d in the operations with count vectors", []any{team.MaxRanks, maxVectorRanks}},
		{"README.md", "one for each rank, %d at most", []any{kernels.MaxRanks}},
		{"README.md", "takes %d MiB of each, %d once it staged bulk (8 ranks: %d, %d)",
			[]any{opened(2), staged(2), opened(8), staged(8)}},
		{"internal/env/env.go", "takes %d MiB of each (8 ranks: %d)", []any{opened(2), opened(8)}},
		{"internal/env/env.go", "%d addresses at most; empty: the first %d", []any{net.MaxAddrs, net.MaxAddrs}},
		{"docs/clusters.md", "at most %d addresses in all", []any{net.MaxAddrs}},
		{"coll/coll.go", "for 2^%d elements or more, and for more than %d ranks on one host in the operations with counts",
			[]any{bits.Len(team.MaxCount), maxVectorRanks}},
		{"comm.go", "a device of its own, up to %d ranks", []any{kernels.MaxRanks}},
		{"docs/troubleshooting.md", "devices work together for up to %d", []any{kernels.MaxRanks}},
		{"docs/troubleshooting.md", "`N ranks, more than %d`", []any{team.MaxRanks}},
		{"docs/tuning.md", "up to %d all-reduces of one type become one kernel, of up to %d ranks: with 2 ranks up to %d KiB " +
			"each and %d KiB together, with more than 4 ranks up to %d KiB each and %d KiB together",
			[]any{kernels.MaxGroup, kernels.Narrow, gpu.GroupedMost / kib, first, many, packets(kernels.First(8))}},
		{"docs/tuning.md", "`eager_few` | host memory, up to 16 ranks | %d |", []any{limits.EagerHost(16)}},
		{"docs/tuning.md", "`eager_some` | host memory, 17 to 128 ranks | %d |", []any{limits.EagerHost(128)}},
		{"docs/tuning.md", "`eager_many` | host memory, more than 128 ranks | %d |", []any{limits.EagerHost(129)}},
		{"docs/tuning.md", "`eager_device` | device memory | %d |", []any{limits.EagerDevice}},
		{"docs/tuning.md", "up to %d KiB of a rank's data and %d calls at once", []any{team.EagerBytes / kib, team.MaxFused}},
		{"docs/architecture/devices.md", "fit into a row: %d KiB with 2 ranks, %d KiB with 3, %d KiB with 4 to 8",
			[]any{first, packets(kernels.First(3)), packets(kernels.First(8))}},
		{"options.go", "up to %d KiB with 2 ranks, %d KiB with 3, %d KiB with 4 to 8, and %d KiB with more; after Split and " +
			"Dup up to %d KiB with 2 ranks, and %d KiB with more", []any{first, packets(kernels.First(3)),
			packets(kernels.First(4)), packets(kernels.First(9)), small, packets(kernels.Small(3))}},
		{"p2p/channel.go", "at most %d open channels and semaphores (ErrLimit); in a communicator that Split or Dup made, at most %d over " +
			"device memory", []any{kernels.MaxChannels, kernels.Small(2).Channels}},
		{"p2p/semaphore.go", "among the %d channels and semaphores that a rank can have", []any{kernels.MaxChannels}},
		{"p2p/exchange.go", "more than %d messages, or more than %d pairs of a peer and a direction",
			[]any{kernels.MaxMessages, kernels.MaxLanes}},
		{"docs/architecture/host.md", "n x (%v to %v) KiB", []any{box(team.MaxRanks), box(2)}},
	} {
		text, err := os.ReadFile("../" + c.document)
		require.NoError(t, err)
		words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\n//", "\n")), " ")
		words = strings.ReplaceAll(words, " // ", " ") // of fields and constants, whose comments are indented
		if want := fmt.Sprintf(c.format, c.numbers...); !strings.Contains(words, want) {
			t.Errorf("%s does not say: %s", c.document, want)
		}
	}
}
