package p2p_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// Two ranks make a semaphore together. Then each makes a channel over it by itself, to memory that it has imported.
func ExampleNewSemaphore() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		if err != nil {
			return err
		}
		defer s.Close()
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 128)
		if err != nil {
			return err
		}
		r, err := b.Register(c)
		if err != nil {
			return err
		}
		defer r.Close()
		mine, err := r.MarshalBinary()
		if err != nil {
			return err
		}
		handle := make([]byte, len(mine)) // all handles have the same length
		if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(handle), peer, ubcoll.Of(mine)); err != nil {
			return err
		}
		m, err := c.Import(handle)
		if err != nil {
			return err
		}
		defer m.Close()
		ch, err := s.Channel(r, m)
		if err != nil {
			return err
		}
		n := copy(b.Slice(), fmt.Sprintf("hello from rank %d", c.Rank()))
		if err := ch.PutWithSignal(ctx, 64, 0, n); err != nil { // to the second half of the peer's memory
			return err
		}
		if err := s.Wait(ctx); err != nil { // as good as a Wait on the channel
			return err
		}
		if c.Rank() == 1 {
			fmt.Printf("%s\n", b.Slice()[64:64+n])
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: hello from rank 0
}
