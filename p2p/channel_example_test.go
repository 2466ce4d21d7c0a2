package p2p_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// Two ranks write into each other's memory.
func ExampleConnect() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 128)
		if err != nil {
			return err
		}
		r, err := b.Register(c)
		if err != nil {
			return err
		}
		defer r.Close()
		ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
		if err != nil {
			return err
		}
		defer ch.Close()
		n := copy(b.Slice(), fmt.Sprintf("hello from rank %d", c.Rank()))
		if err := ch.PutWithSignal(ctx, 64, 0, n); err != nil { // to the second half of the peer's memory
			return err
		}
		if err := ch.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%s\n", b.Slice()[64:64+n])
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: hello from rank 1
}

// Two ranks send each other the handles of their memory, and rank 0 writes to rank 1's.
func ExampleNewChannel() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
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
		peer, handle := 1-c.Rank(), make([]byte, len(mine)) // all handles have the same length
		if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(handle), peer, ubcoll.Of(mine)); err != nil {
			return err
		}
		m, err := c.Import(handle)
		if err != nil {
			return err
		}
		defer m.Close()
		ch, err := p2p.NewChannel(ctx, c, r, m)
		if err != nil {
			return err
		}
		defer ch.Close()
		if c.Rank() == 0 {
			return ch.PutWithSignal(ctx, 64, 0, copy(b.Slice(), "hello"))
		}
		if err := ch.Wait(ctx); err != nil {
			return err
		}
		fmt.Printf("%s\n", b.Slice()[64:69])
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: hello
}
