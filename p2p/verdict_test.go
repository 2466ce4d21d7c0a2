package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestVerdicts: the sender of a large message learns how that message went and nothing else, however many small
// messages, good and bad, follow it, and however soon these are received. TEST_ROUNDS says how many rounds.
func TestVerdicts(t *testing.T) {
	rounds := testkit.Often(10000)
	if s := os.Getenv("TEST_ROUNDS"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	seed := testkit.Seed(t)
	for _, behind := range []int{7, 8, 40} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("behind=%d/direct=%v", behind, direct), func(t *testing.T) {
				require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
					v := ubcoll.Of(make([]byte, 4000))
					if direct {
						b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4000)
						if err != nil {
							return err
						}
						v = b.Vec()
					}
					return verdicts(ctx, c, v, rounds, behind, rand.New(rand.NewPCG(seed, uint64(behind))))
				}))
			})
		}
	}
}

// verdicts sends the large message v and small ones behind it, rounds times. r decides, alike on both ranks, which of
// them get a receive with too little room.
func verdicts(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec, rounds, behind int, r *rand.Rand) error {
	var g p2p.Exchange
	g.Send(1, v)
	for range behind {
		g.Send(1, v.Slice(0, 8))
	}
	for round := range rounds {
		bad := r.IntN(2) == 0
		smalls := r.IntN(3) // which small messages are bad: none, all, or any
		if c.Rank() == 0 {
			if err := g.Do(ctx, c); errors.Is(err, ubcoll.ErrMismatch) != bad || !bad && err != nil {
				return fmt.Errorf("round %d, bad %v: the sender gets %v", round, bad, err)
			}
		}
		for i := range behind + 1 {
			n := v.Len()
			odd := i == 0 && bad || i > 0 && (smalls == 1 || smalls == 2 && r.IntN(2) == 0)
			if i > 0 {
				n = 8
			}
			if odd {
				n--
			}
			if c.Rank() == 0 {
				continue
			}
			if _, err := p2p.Recv(ctx, c, 0, v.Slice(0, n)); errors.Is(err, ubcoll.ErrMismatch) != odd || !odd && err != nil {
				return fmt.Errorf("round %d, message %d, bad %v: the receiver gets %v", round, i, odd, err)
			}
		}
	}
	return nil
}
