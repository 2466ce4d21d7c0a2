package ubcoll_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

const (
	openRanks   = "UBCOLL_TEST_OPEN_RANKS"
	driverCache = "CUDA_CACHE_PATH" // where the driver keeps assembled kernels
)

// BenchmarkOpenDevice is what it takes to open a communicator of goroutine ranks that share one GPU, each time in a process
// of its own: init-ms is cuInit, context-ms the device's context, open-ms what Local takes beyond these until all ranks
// have opened. first-call-ms is how much longer than its second a type's first reduction takes, at most. open-MiB and
// split-MiB are how much memory of the device the first communicator and one of Split take for each rank. The driver's
// cache of assembled kernels is empty or filled.
func BenchmarkOpenDevice(b *testing.B) {
	if gputest.Sharers(b, 1) == 0 {
		testkit.Missing(b, "cuda", cuda.Have().Err)
	}
	for _, ranks := range []int{1, 2, 4, 8} {
		for _, cache := range []string{"empty", "filled"} {
			b.Run(fmt.Sprintf("ranks=%d/cache=%s", ranks, cache), func(b *testing.B) {
				sums := map[string]float64{}
				filled := b.TempDir()
				for i := range b.N + 1 {
					dir := filled
					if cache == "empty" {
						dir = b.TempDir()
					} else if i > 0 {
						b.StartTimer()
					}
					cmd := testkit.Child("open", openRanks+"="+strconv.Itoa(ranks), driverCache+"="+dir, env.CUDA.Name+"=share",
						"CUDA_VISIBLE_DEVICES=0")
					cmd.Stderr = os.Stderr
					out, err := cmd.Output()
					if err != nil {
						b.Fatal(err)
					}
					if i == 0 { // fills the cache, and the system's
						continue
					}
					got := map[string]float64{}
					if err := json.Unmarshal(out, &got); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
					for k, v := range got {
						sums[k] += v / float64(b.N)
					}
				}
				for k, v := range sums {
					b.ReportMetric(v, k)
				}
			})
		}
	}
}

func childOpen() error {
	ranks, err := strconv.Atoi(os.Getenv(openRanks))
	if err != nil {
		return err
	}
	told := map[string]float64{}
	last := time.Now()
	lap := func(name string) {
		told[name] = time.Since(last).Seconds() * 1e3
		last = time.Now()
	}
	if err := cuda.Have().Err; err != nil {
		return err
	}
	lap("init-ms")
	dev, err := cuda.Primary(hw.CUDA(0))
	if err != nil {
		return err
	}
	lap("context-ms")
	used := func() float64 {
		free, total, e := dev.Available()
		err = errors.Join(err, e)
		return float64(total-free) / (1 << 20) / float64(ranks)
	}
	var arrived atomic.Int32
	meet := func() {
		for at := arrived.Add(1); int(arrived.Load()) < (int(at)+ranks-1)/ranks*ranks; {
			runtime.Gosched()
		}
	}
	before := used()
	last = time.Now()
	err = errors.Join(err, ubcoll.Local(context.Background(), ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if _, err := c.GPU(); err != nil {
			return err
		}
		meet()
		if c.Rank() == 0 {
			lap("open-ms")
			told["open-MiB"] = used() - before
			before = used()
		}
		meet()
		dups := 8 // they have some of the driver's allocations together
		if ranks > 1 {
			dups = 2 // there is no room for more of 8 ranks
		}
		for range dups {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			defer d.Close()
			if _, err := d.GPU(); err != nil {
				return err
			}
		}
		meet()
		if c.Rank() == 0 {
			told["split-MiB"] = (used() - before) / float64(dups)
		}
		for _, t := range []func() (time.Duration, error){
			func() (time.Duration, error) { return firstCall[float32](ctx, c) },
			func() (time.Duration, error) { return firstCall[float64](ctx, c) },
			func() (time.Duration, error) { return firstCall[int64](ctx, c) },
		} {
			d, err := t()
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				told["first-call-ms"] = max(told["first-call-ms"], d.Seconds()*1e3)
			}
		}
		return nil
	}), dev.Close())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

// firstCall returns how much longer the first all-reduce of a type takes than the second.
func firstCall[T dtype.Elem](ctx context.Context, c *ubcoll.Comm) (time.Duration, error) {
	dev, err := c.GPU()
	if err != nil {
		return 0, err
	}
	m, err := ubcoll.Alloc[T](c, dev, 1000)
	if err != nil {
		return 0, err
	}
	var took [2]time.Duration
	for i := range took {
		start := time.Now()
		if err := coll.AllReduce(ctx, c, m.Vec(), m.Vec(), ubcoll.Sum); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	return took[0] - took[1], m.Free()
}
