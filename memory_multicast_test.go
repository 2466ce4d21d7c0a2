package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// With UBCOLL_NVLS=on device memory can be bound to a multicast object, all of it; a build or a device without multicast
// says that it cannot.
func TestAllocForMulticast(t *testing.T) {
	emulated.Only(t)
	const warning = "memory of Alloc on devices is not rounded to what multicast takes"
	for _, x := range []struct {
		name     string
		ranks    int
		asked    bool
		env      map[string]string
		unit     uintptr // where the build has multicast
		warnings bool    // also there
	}{
		{"not asked for", 2, false, map[string]string{"UBCOLL_EMULATE_MULTICAST_GRANULARITY": "8388608"}, 2 * mib, false},
		{"as fine as memory", 2, true, nil, 2 * mib, false},
		{"coarser than memory", 2, true, map[string]string{"UBCOLL_EMULATE_MULTICAST_GRANULARITY": "8388608"}, 8 * mib, false},
		{"devices without", 2, true, map[string]string{"UBCOLL_EMULATE_MULTICAST": "0"}, 2 * mib, true},
		{"a failure", 1, true, map[string]string{"UBCOLL_EMULATE_FAIL": "cuMemGetAllocationGranularity:2"}, 2 * mib, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			gputest.Enough(t, x.ranks)
			if x.asked {
				emulated.NVLS(t)
			}
			for name, value := range x.env {
				t.Setenv(name, value)
			}
			unit, warns := x.unit, x.warnings
			built := cuda.HaveMulticast().Err == nil
			if !built {
				unit, warns = 2*mib, x.asked
			}
			logger, log := testkit.Logs(slog.LevelWarn)
			gputest.Run(t, x.ranks, ubcoll.Options{Logger: logger}, func(_ context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				first, err := ubcoll.Alloc[byte](c, dev, 1) // so that the next address is not coarse by chance
				if err != nil {
					return err
				}
				b, err := ubcoll.Alloc[byte](c, dev, 3*mib)
				if err != nil {
					return errors.Join(err, first.Free())
				}
				v := b.Vec()
				m, err := cuda.Inspect(cuda.Addr(uintptr((*inside.Vec)(&v).Team().Ptr)))
				if err == nil && (uintptr(m.Base)%unit != 0 || uintptr(m.Size) != max(unit, 4*mib)) {
					err = fmt.Errorf("%d bytes at %#x, in units of %d", m.Size, uintptr(m.Base), unit)
				}
				return errors.Join(err, b.Free(), first.Free())
			})
			require.Equal(t, warns, strings.Contains(log.String(), warning), log)
			if warns && !built && x.env["UBCOLL_EMULATE_FAIL"] == "" {
				require.Contains(t, log.String(), "this build has no multicast")
			}
		})
	}
}
