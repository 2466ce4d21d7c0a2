// Command 06-channel plays ping-pong: pairs of ranks write a counter into each other's memory.
//
//	NTHREADS=4 go run ./examples/06-channel
package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/p2p"
)

const rounds = 1000

// Places in each rank's memory, in bytes. Packets are twice as long as the data that they carry.
const (
	outbox  = 0
	inbox   = 8
	packets = 16
	end     = 32
)

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	// Ranks 0 and 1 play, and 2 and 3, and so on. If the number of ranks is odd, the last one only waits at the end.
	peer := c.Rank() ^ 1
	played := []int64{0}
	if peer < c.Size() {
		if err := play(ctx, c, peer); err != nil {
			return err
		}
		played[0] = 1
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(played), ubcoll.Of(played), ubcoll.Sum); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d of %d ranks played %d rounds with signals and %d with packets\n", played[0], c.Size(), rounds, rounds)
	}
	return nil
}

// play connects with the peer, plays both games, and takes the connection down.
func play(ctx context.Context, c *ubcoll.Comm, peer int) error {
	buf, err := ubcoll.Alloc[int64](c, ubcoll.Host, end/8)
	if err != nil {
		return err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	// A channel connects this rank's registered memory with the peer's, which connects at the same time.
	ch, err := p2p.Connect(ctx, c, peer, reg)
	if err != nil {
		return err
	}
	first := c.Rank() < peer // whether this rank serves

	// With signals: PutWithSignal copies bytes from this rank's memory to the peer's, and then signals. Wait takes a
	// signal; everything that was put before it has then arrived.
	put := func() error { return ch.PutWithSignal(ctx, inbox, outbox, 8) }
	wait := func() error { return ch.Wait(ctx) }
	if err := pingPong(buf.Slice(), first, put, wait); err != nil {
		return fmt.Errorf("with signals: %w", err)
	}
	clear(buf.Slice()[:packets/8]) // but not the place of packets: the peer may be writing there already
	// With packets: each of them carries data and a flag, which arrive together, so the receiver waits for nothing
	// else. This is the fastest way for few bytes.
	put = func() error { return ch.PutPackets(ctx, packets, outbox, 8, p2p.Packet16) }
	wait = func() error { return ch.GetPackets(ctx, inbox, packets, 8, p2p.Packet16) }
	if err := pingPong(buf.Slice(), first, put, wait); err != nil {
		return fmt.Errorf("with packets: %w", err)
	}

	// Close in the reverse order. Close of a channel is local, and does not lose what the peer has sent already.
	if err := ch.Close(); err != nil {
		return err
	}
	if err := reg.Close(); err != nil {
		return err
	}
	return buf.Free()
}

// pingPong passes a counter back and forth. Each rank adds 1 before it sends it on.
func pingPong(memory []int64, first bool, put, wait func() error) error {
	for i := range int64(rounds) {
		if first {
			memory[outbox/8] = 2*i + 1
			if err := put(); err != nil {
				return err
			}
		}
		if err := wait(); err != nil {
			return err
		}
		want := 2*i + 2
		if !first {
			want = 2*i + 1
		}
		if got := memory[inbox/8]; got != want {
			return fmt.Errorf("round %d: got %d, not %d", i, got, want)
		}
		if !first {
			memory[outbox/8] = want + 1
			if err := put(); err != nil {
				return err
			}
		}
	}
	return nil
}
