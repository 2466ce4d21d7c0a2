package messages

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Circle has each of three ranks send to the next one what waits for its receive: their errors say so, and what helps. It
// ends the communicator.
func Circle(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() != 3 {
		return conform.Fail(c, "this suite is for three ranks")
	}
	set := make(chan struct{})
	go func() { // no rank's time is up before all have said what they are in
		defer close(set)
		begin := time.Now()
		for r := 0; r < c.Size() && c.Err() == nil && time.Since(begin) < testkit.Limit/2; {
			if strings.HasPrefix((*inside.Comm)(c).View().WaitsIn(r), "send #1") {
				r++
				continue
			}
			time.Sleep(time.Millisecond)
		}
		(*inside.Comm)(c).View().SetTimeout(time.Millisecond)
	}()
	defer func() { <-set }()
	err := p2p.Send(ctx, c, (c.Rank()+1)%c.Size(), ubcoll.Of(make([]byte, 16<<10)))
	if !errors.Is(err, ubcoll.ErrTimeout) {
		return conform.Fail(c, "everybody sends: %v", err)
	}
	for _, want := range []string{"a circle of sends (0 -> 1 -> 2 -> 0)", "SendRecv or a Group", "UBCOLL_TIMEOUT",
		"rank 0 in send #1 to rank 1, rank 1 in send #1 to rank 2, rank 2 in send #1 to rank 0"} {
		if !strings.Contains(err.Error(), want) {
			return conform.Fail(c, "everybody sends: no %q in: %v", want, err)
		}
	}
	return nil
}
