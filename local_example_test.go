package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// mean is a part of a program. It takes its communicator as an argument, so it need not know who starts the ranks.
func mean(ctx context.Context, c *ubcoll.Comm, x float64) (float64, error) {
	all := []float64{x}
	err := coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(all), ubcoll.Avg)
	return all[0], err
}

// Local is for tests of your own program, too: `go test` then needs no launcher, and -race sees all ranks. In a test,
// ctx would be t.Context(), and an error would go to t.Fatal(err).
func ExampleLocal_test() {
	for _, n := range []int{1, 2, 4} {
		err := ubcoll.Local(context.Background(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			got, err := mean(ctx, c, float64(c.Rank()))
			if want := float64(n-1) / 2; err == nil && got != want {
				err = fmt.Errorf("rank %d of %d: mean is %v, not %v", c.Rank(), n, got, want)
			}
			return err // Local returns the first rank's error, and the others' calls end
		})
		fmt.Println(n, "ranks:", err)
	}
	// Output:
	// 1 ranks: <nil>
	// 2 ranks: <nil>
	// 4 ranks: <nil>
}
