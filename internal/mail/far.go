package mail

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/hosts"
)

// Messages with a rank of another host travel in one of two ways. Both keep the numbers that messages of a lane have.
//
// Small and medium ones travel in batches, of two classes. A batch is a put to one of the peer's places for its class,
// which take turns. A small one has one message or as many as waited for a free place, a medium one has one. Whoever has
// taken all of a batch's messages grants its place anew. The peer learns how many batches were taken with the batches
// that go the other way, or else from a put without data, every few batches.
//
// A large message needs a grant of the receiver's memory, whose sequence says for which message it is. If the grant is
// there when the message's turn comes, its data go to the granted places at once. Otherwise the message is announced, in a
// small batch, and its data follow the grant; or the receiver refuses it. So a receiver that expects a large message
// grants before it comes. Medium messages for which there is no free place are announced, too.
const (
	EagerFar  = 8 << 10  // the largest small message
	MediumFar = 32 << 10 // the largest medium one: copying it takes about as long as a grant

	batchHead  = 24 // how many small and medium batches are taken, and the number of the first message
	recordHead = 8

	refusePlace = 0                       // of refusals, by the message's number
	grantPlace  = refusePlace + SendSlots // of data, by the message's number and the part's
	takenPlace  = grantPlace + SendSlots  // of a class: the count of its batches that are taken
	batchPlace  = takenPlace + classes
	placesFar   = batchPlace + smallBatches + mediumBatches
	bouncePlace = placesFar // of parts, by their number; only of messages that bounce

	// About as long are the parts of a large message, but there are at most SendSlots. Each that is there shows a wait that
	// something moves. Over several connections parts go side by side.
	partBytes     = 64 << 20
	sidePartBytes = 512 << 10
)

// The classes of batches.
const (
	small = iota
	medium
	classes

	smallBatches  = 16 // on the way to a peer, which has not taken them
	mediumBatches = 4
	mostOut       = 4
)

// class is what a class of batches has.
type class struct {
	place   int // the first one
	takenAt int // the place for the count of batches that are taken
	slots   int // places, and batches on the way
	bytes   int // of a slot
	tell    int // after so many batches that were taken the peer is told by a put of its own; SendSlots small ones stay
	out     int // batches that the network has not sent yet
}

// The bytes have 8 more than a batch, so that no record's data begins at the end.
var batchClasses = [classes]class{
	{batchPlace, takenPlace, smallBatches, batchHead + recordHead + EagerFar + 8, 4, 4},
	{batchPlace + smallBatches, takenPlace + 1, mediumBatches, batchHead + recordHead + MediumFar + 8, 2, 2}}

// far is one rank's side of the messages with a rank of another host.
type far struct {
	pair *hosts.Pair
	mu   sync.Mutex // held by goroutines that post, grant, put or revoke
	ways [classes]way

	// As the receiver of large messages, under Recv's lock.
	keys   [SendSlots]uint64 // what the places for data are granted for; 0: nothing
	taking bool              // some are being revoked
	brief  bool              // the last message was a small one: probably the next one is, too
}

// way is the batches of a class, in both directions.
type way struct {
	*class

	// As the sender, under Send's lock.
	sent   uint64 // batches
	outs   [mostOut]outBatch
	filled int // bytes of the batch that is being filled; 0: there is none

	// As the receiver, under Recv's lock.
	in   []byte
	at   int    // in the first batch that is not taken
	end  int    // of it; 0: it has not been looked into
	next uint64 // the number of the message there

	taken atomic.Uint64 // batches
	told  atomic.Uint64 // how many of them the peer has been told of with a batch
	free  atomic.Uint64 // of this rank's batches, how many the peer has taken
	asked uint64        // as told, by puts for that; under Recv's lock
}

// outBatch is the memory of a batch to be sent.
type outBatch struct {
	b     []byte
	until uint64 // Endpoint.Sent that says that b is free again
}

// newFar makes this rank's side of a pair, and lets the peer send its first batches.
func newFar(x *hosts.Pair) any {
	f, memory := &far{pair: x}, make([]byte, batchMemory())
	take := func(n int) (b []byte) {
		b, memory = memory[:n:n], memory[n:]
		return b
	}
	for i := range f.ways {
		w := &f.ways[i]
		w.class = &batchClasses[i]
		for k := range w.out {
			w.outs[k].b = take(w.bytes)
		}
		w.in = take(w.slots * w.bytes)
		for b := range w.slots {
			f.post(w, uint64(b+1))
		}
	}
	return f
}

// batchMemory is how many bytes all batches of a pair have.
func batchMemory() (n int) {
	for _, c := range batchClasses {
		n += (c.slots + c.out) * c.bytes
	}
	return n
}

// placeOf is where a batch lands.
func (w *way) placeOf(number uint64) int { return w.place + int(number%uint64(w.slots)) }

// nextOut is the memory of the next batch that this rank sends.
func (w *way) nextOut() *outBatch { return &w.outs[int(w.sent+1)%w.out] }

// batch is the memory where it does.
func (w *way) batch(number uint64) []byte {
	at := int(number%uint64(w.slots)) * w.bytes
	return w.in[at : at+w.bytes]
}

func (f *far) post(w *way, number uint64) {
	f.pair.Post(w.placeOf(number), number, unsafe.Pointer(&w.batch(number)[0]), w.bytes)
}

// A grant's sequence: the message's number 48 bits, how many places its data has less one 3, exactly 1, type 8.
func key(seq uint64, places int, exact bool, t dtype.Type) uint64 {
	k := seq<<16 | uint64(places-1)<<9 | uint64(t)
	if exact {
		k |= 1 << 8
	}
	return k
}

func keyPlaces(k uint64) int { return int(k>>9&7) + 1 }

// grant is the place of a part of a message's data.
func grant(seq uint64, part int) int { return grantPlace + int(seq+uint64(part))%SendSlots }

// refusal is the place where a message is refused, with the verdict in the lowest bits of the sequence.
func refusal(seq uint64) int { return refusePlace + int(seq%SendSlots) }

const verdictBits = 2

// parts returns the size of the parts in which n bytes of data travel over so many connections, and their number.
func parts(n, connections int) (size, number int) {
	size = partBytes
	if connections > 1 {
		size = sidePartBytes
	}
	number = min(max((n+size-1)/size, 1), SendSlots)
	return (n + number - 1) / number, number
}

// padded is the size of a record whose message has n bytes.
func padded(n int) int { return recordHead + (n+7)&^7 }

// record is a message in a batch.
type record struct {
	header
	way  *way
	data []byte // nil: it is an announcement
}

func uint64At(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
