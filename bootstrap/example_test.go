package bootstrap_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// Two goroutine ranks exchange their names.
func ExampleLocal() {
	names := []string{"alice", "bob"}
	var wg sync.WaitGroup
	for _, b := range bootstrap.Local(2) {
		wg.Go(func() {
			defer b.Close()
			all, err := b.AllGather(context.Background(), []byte(names[b.Rank()]))
			if err != nil {
				b.Abort(1)
				return
			}
			if b.Rank() == 0 {
				fmt.Printf("%s\n", all)
			}
		})
	}
	wg.Wait()
	// Output: [alice bob]
}
