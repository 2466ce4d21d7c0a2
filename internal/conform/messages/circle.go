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

// Circle makes each of three ranks send a message to the next one that waits for its receive. Their errors say so, and
// what helps. The communicator does not survive.
func Circle(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() != 3 {
		return conform.Fail(c, "this suite is for three ranks")
	}
	set := make(chan struct{})
	go func() { // lets no rank time out before all have told what they wait in
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
