package p2p

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// PacketWidth is the size of a packet in bytes. One half is data, the other half a flag.
type PacketWidth int

// The widths. A packet of 8 bytes is one word; of 16, two. Source: MSCCL++'s LL8Packet and LL16Packet.
const (
	Packet8  PacketWidth = 8
	Packet16 PacketWidth = 16
)

// packets counts the calls, so that flags, which both ends compute, tell one call's packets from the next call's. The
// salts tell them from those of other channels over the same memory.
type packets struct {
	out, in         uint64 // calls so far
	saltOut, saltIn uint64
}

func newPackets(end *onesided.Channel) *packets {
	return &packets{saltOut: end.Salt(true), saltIn: end.Salt(false)}
}

// flag is the flag of call k. It is never 0, the content of fresh memory.
func flag(w PacketWidth, salt, k uint64) uint64 {
	f := salt + k
	if w == Packet8 {
		f &= 1<<32 - 1
	}
	return max(f, 1)
}

// size is how many bytes n bytes of data take as packets.
func (w PacketWidth) size(n int) int { return onesided.PacketBytes(int(w), n) }

func (w PacketWidth) check(n int, p unsafe.Pointer) error {
	switch {
	case w != Packet8 && w != Packet16:
		return fmt.Errorf("packets of %d bytes (8 or 16): %w", w, fault.ErrArgument)
	case n < 0 || n > 1<<46:
		return fmt.Errorf("%d bytes as packets: %w", n, fault.ErrArgument)
	case uintptr(p)%uintptr(w) != 0:
		return fmt.Errorf("packets at %p, which is no multiple of %d: %w", p, w, fault.ErrArgument)
	}
	return nil
}

// PutPackets copies n bytes at srcOff of this rank's memory to dstOff of the peer's as packets. These take twice the
// space, but need no signal: the peer's GetPackets takes each packet as it arrives. The k-th PutPackets matches the
// peer's k-th GetPackets, of the same size and width. The bytes at dstOff should hold nothing but packets, and none
// that the peer has not taken yet. Local; it takes the time of the copy, and does not tell whether the peer takes the
// packets. ErrArgument for a range outside either memory, and for packets not aligned to their width; ErrStale if
// either rank has closed its registration, except after all packets have arrived, because a peer that has taken them
// may close at once; ErrClosed; or the reason why the communicator broke.
func (ch *Channel) PutPackets(ctx context.Context, dstOff, srcOff, n int, w PacketWidth) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.asSteps() {
		return ch.launch(ctx, gpuend.Step{Kind: gpuend.StepPutPackets, Dst: dstOff, Src: srcOff, N: n, Width: int(w)})
	}
	if ch.stream != nil {
		return ch.do(ctx, func(ctx context.Context) error { return ch.putPackets(ctx, dstOff, srcOff, n, w) })
	}
	return ch.putPackets(ctx, dstOff, srcOff, n, w)
}

func (ch *Channel) putPackets(ctx context.Context, dstOff, srcOff, n int, w PacketWidth) error {
	const op = "put_packets"
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error(op, err)
	}
	defer ch.end.End()
	if err := w.check(n, nil); err != nil {
		return ch.end.Error(op, err)
	}
	src, claim, err := ch.local.Range(srcOff, n)
	if err != nil {
		return ch.end.Error(op, err)
	}
	defer claim.Release()
	if ch.end.Far() {
		if err := ch.end.PutPackets(ctx, dstOff, src, n, int(w), flag(w, ch.packets.saltOut, ch.packets.out+1)); err != nil {
			return ch.end.Error(op, err)
		}
		ch.packets.out++
		return nil
	}
	dst, err := ch.end.Reach(dstOff, w.size(n))
	if err != nil {
		return ch.end.Error(op, err)
	}
	if err = w.check(n, dst); err == nil {
		ch.packets.out++
		f := flag(w, ch.packets.saltOut, ch.packets.out)
		for done := 0; done < n && err == nil; {
			piece := min(packPiece, n-done)
			onesided.Pack(int(w), unsafe.Add(dst, w.size(done)), unsafe.Add(src, done), piece, f)
			if done += piece; done < n { // after the last packet the peer may close at once
				err = ch.end.Live() // a peer that takes its memory back waits for this
			}
		}
	}
	ch.end.Done()
	if err != nil {
		return ch.end.Error(op, err)
	}
	ch.end.Count(n)
	return nil
}

// GetPackets takes n bytes that the peer puts as packets at srcOff of this rank's memory, and copies them to dstOff of
// this rank's memory, which must not overlap the packets. Blocking until the last packet has arrived; errors as in Wait
// and PutPackets. After an error the same call may be made again.
func (ch *Channel) GetPackets(ctx context.Context, dstOff, srcOff, n int, w PacketWidth) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.asSteps() {
		return ch.launch(ctx, gpuend.Step{Kind: gpuend.StepGetPackets, Dst: dstOff, Src: srcOff, N: n, Width: int(w)})
	}
	if ch.stream != nil {
		return ch.do(ctx, func(ctx context.Context) error { return ch.getPackets(ctx, dstOff, srcOff, n, w) })
	}
	return ch.getPackets(ctx, dstOff, srcOff, n, w)
}

func (ch *Channel) getPackets(ctx context.Context, dstOff, srcOff, n int, w PacketWidth) error {
	const op = "get_packets"
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error(op, err)
	}
	defer ch.end.End()
	if err := w.check(n, nil); err != nil {
		return ch.end.Error(op, err)
	}
	src, claim, err := ch.local.Range(srcOff, w.size(n))
	if err != nil {
		return ch.end.Error(op, err)
	}
	defer claim.Release()
	dst, other, err := ch.local.Range(dstOff, n)
	if err != nil {
		return ch.end.Error(op, err)
	}
	defer other.Release()
	if err = ch.local.Writable(); err == nil {
		err = w.check(n, src)
	}
	if err == nil && dstOff < srcOff+w.size(n) && srcOff < dstOff+n {
		err = fmt.Errorf("packets [%d,+%d) overlap their destination [%d,+%d): %w", srcOff, w.size(n), dstOff, n,
			fault.ErrArgument)
	}
	if err == nil {
		err = unpack(ctx, ch.end, w, dst, src, n, flag(w, ch.packets.saltIn, ch.packets.in+1))
	}
	if err != nil {
		return ch.end.Error(op, err)
	}
	ch.packets.in++
	return nil
}

// packPiece is how many bytes PutPackets writes between two checks of the peer's grant.
const packPiece = 1 << 20

// unpack reads n bytes that arrive as packets.
func unpack(ctx context.Context, end *onesided.Channel, w PacketWidth, dst, src unsafe.Pointer, n int, f uint64) error {
	half := int(w) / 2
	at, mask := 8, uint64(1<<64-1) // place and mask of the flag in a packet
	if w == Packet8 {
		at, mask, f = 0, 0xffffffff<<32, f<<32
	}
	for n > 0 {
		word := (*uint64)(unsafe.Add(src, at))
		v := atomic.LoadUint64(word)
		if v&mask != f {
			if err := end.WaitWord(ctx, word, mask, f, "packets"); err != nil {
				return err
			}
			v = atomic.LoadUint64(word)
		}
		if w == Packet16 {
			v = *(*uint64)(src)
		}
		switch {
		case n < half:
			copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(unsafe.Pointer(&v)), half))
		case w == Packet8:
			*(*uint32)(dst) = uint32(v)
		default:
			*(*uint64)(dst) = v
		}
		n -= half
		dst, src = unsafe.Add(dst, half), unsafe.Add(src, w)
	}
	return nil
}
