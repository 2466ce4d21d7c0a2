// Command memory_channel measures copies in both directions at once over a channel between ranks 0 and 1. The channel is
// made of a semaphore and of two registered memories, as in MSCCL++'s tutorial of memory channels, and the output has the
// tutorial's form. Further ranks only wait at the end.
//
//	NTHREADS=2 go run ./examples/memory_channel
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/p2p"
)

// sizes are the bytes of a copy.
var sizes = []int{1 << 10, 1 << 20, 128 << 20}

// Each rank's memory has room for what it sends, and for what it gets.
const bufferBytes = 2 * 128 << 20

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() < 2 {
		return errors.New("a channel needs two ranks")
	}
	if c.Rank() < 2 {
		if err := test(ctx, c); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Println("Succeed!")
	}
	return nil
}

// test makes the channel of ranks 0 and 1, and copies over it.
func test(ctx context.Context, c *ubcoll.Comm) error {
	// Either all ranks of a host have a GPU, or none has. The output names GPUs, as the tutorial's does. Where there are
	// none, the memory is the host's, and the output names ranks: "Rank 0" instead of "GPU 0".
	label := fmt.Sprintf("GPU %d", c.Rank())
	device, err := c.GPU()
	if errors.Is(err, ubcoll.ErrNotSupported) {
		label, device = fmt.Sprintf("Rank %d", c.Rank()), ubcoll.Host
	} else if err != nil {
		return err
	}

	// The semaphore: both ranks make it at the same time. Several channels of the two ranks may share it. On a
	// communicator of several hosts it is not supported yet, and this is the program's error.
	peer := 1 - c.Rank()
	semaphore, err := p2p.NewSemaphore(ctx, c, peer, device)
	if err != nil {
		return err
	}

	// The memory: each rank registers its own, sends its handle to the peer, and imports the peer's.
	buf, err := ubcoll.Alloc[uint64](c, device, bufferBytes/8)
	if err != nil {
		return err
	}
	local, err := buf.Register(c)
	if err != nil {
		return err
	}
	handle, err := local.MarshalBinary()
	if err != nil {
		return err
	}
	theirs := make([]byte, len(handle)) // all handles have the same length
	if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(theirs), peer, ubcoll.Of(handle)); err != nil {
		return err
	}
	remote, err := c.Import(theirs)
	if err != nil {
		return err
	}

	// The channel: a local call, since the semaphore is there already.
	channel, err := semaphore.Channel(local, remote)
	if err != nil {
		return err
	}
	fmt.Printf("%s: Preparing for bidirectional copy tests ...\n", label)
	stream, err := ubcoll.NewStream(device)
	if err != nil {
		return err
	}
	host := make([]uint64, bufferBytes/8)
	for round, n := range sizes {
		// Rank r sends part r of its memory to part r of the peer's. The data are new in each round.
		fill(host[c.Rank()*n/8:][:n/8], c.Rank(), round)
		clear(host[peer*n/8:][:n/8])
		if err := buf.CopyFrom(ctx, host[:2*n/8]); err != nil {
			return err
		}
		elapsed, err := copies(ctx, channel.On(stream), stream, c.Rank()*n, n)
		if err != nil {
			return err
		}
		if err := buf.CopyTo(ctx, host[:2*n/8]); err != nil {
			return err
		}
		for r := range 2 { // part 0 is rank 0's on both ranks
			if i := differs(host[r*n/8:][:n/8], r, round); i >= 0 {
				return fmt.Errorf("%d bytes from rank %d: word %d is wrong", n, r, i)
			}
		}
		if c.Rank() == 0 {
			// Bytes in one direction, as in the tutorial.
			fmt.Printf("%s: bytes %d, elapsed %.6g ms/iter, BW %.6g GB/s\n", label, n, elapsed.Seconds()*1e3,
				float64(n)/elapsed.Seconds()/1e9)
		}
	}

	// The channel goes before its semaphore; if it did not, the semaphore's Close would close it. The peer may still be
	// reading its own memory, but not this rank's.
	for _, end := range []func() error{stream.Close, channel.Close, semaphore.Close, remote.Close, local.Close, buf.Free} {
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// copies puts n bytes at off to the peer, often, while the peer does the same. It returns how long one round takes.
func copies(ctx context.Context, channel *p2p.Channel, stream *ubcoll.Stream, off, n int) (time.Duration, error) {
	iterations := max(2, min(1000, 256<<20/n))
	if err := rounds(ctx, channel, stream, off, n, 1); err != nil { // the first touches the memory
		return 0, err
	}
	start := time.Now()
	if err := rounds(ctx, channel, stream, off, n, iterations); err != nil {
		return 0, err
	}
	return max(1, time.Since(start)/time.Duration(iterations)), nil
}

// rounds does so many rounds on the stream, and waits for them.
func rounds(ctx context.Context, channel *p2p.Channel, stream *ubcoll.Stream, off, n, rounds int) error {
	for range rounds {
		if err := channel.Batch(ctx, func(b *p2p.Channel) error {
			// The peer must be here before its memory is written. This signal announces no data.
			if err := b.RelaxedSignal(ctx); err != nil {
				return err
			}
			if err := b.Wait(ctx); err != nil {
				return err
			}
			if err := b.Put(ctx, off, off, n); err != nil {
				return err
			}
			// The peer's data have come once its signal has.
			if err := b.Signal(ctx); err != nil {
				return err
			}
			return b.Wait(ctx)
		}); err != nil {
			return err
		}
	}
	return stream.Sync(ctx)
}

// word is word i of what a rank sends in a round.
func word(rank, round, i int) uint64 {
	return uint64(i+1) * (0x9e3779b97f4a7c15 + uint64(4*round+2*rank))
}

func fill(words []uint64, rank, round int) {
	for i := range words {
		words[i] = word(rank, round, i)
	}
}

// differs returns the first word that is not what the rank sends, or -1.
func differs(words []uint64, rank, round int) int {
	for i, w := range words {
		if w != word(rank, round, i) {
			return i
		}
	}
	return -1
}
