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
// Small ones travel in batches. A batch is a put to one of the peer's places for them, which take turns, and has one
// message or as many as waited for a free place. An announcement of a large message is one of them. Whoever has taken all
// of a batch's messages grants its place anew. The peer learns how many batches were taken with the batches that go the
// other way, or else from a put without data, every few batches.
//
// A large message needs a grant of the receiver's memory, whose sequence says for which message it is. If the grant is
// there when the message's turn comes, its data go to the granted places at once. Otherwise the message is announced, and
// its data follow the grant; or the receiver refuses it. So a receiver that expects a large message grants before it
// comes.
const (
	eagerFar = 8 << 10 // of messages that travel in batches

	batchSlots = 16                                    // batches on the way to a peer, which has not taken them
	tellEvery  = 4                                     // batches that are taken before the peer is told by a put of its own; at least SendSlots stay
	batchBytes = batchHead + recordHead + eagerFar + 8 // so that no record's data begins at the end
	batchHead  = 16
	recordHead = 8
	outBatches = 4 // batches that the network has not sent yet

	takenPlace  = batchSlots              // the count of batches that are taken
	refusePlace = takenPlace + 1          // of refusals, by the message's number
	grantPlace  = refusePlace + SendSlots // of data, by the message's number and the part's
	placesFar   = grantPlace + SendSlots

	partBytes = 512 << 10 // about as long are the parts of a large message, but there are at most SendSlots
)

// far is one rank's side of the messages with a rank of another host.
type far struct {
	pair *hosts.Pair
	mu   sync.Mutex // held by goroutines that post, grant, put or revoke

	// As the sender, under Send's lock.
	sent uint64 // batches
	out  [outBatches]struct {
		b     []byte
		until uint64 // Endpoint.Sent that says that b is free again
	}
	filled int // bytes of the batch that is being filled; 0: there is none

	// As the receiver, under Recv's lock.
	in     []byte
	at     int               // in the first batch that is not taken
	end    int               // of it; 0: it has not been looked into
	next   uint64            // the number of the message there
	keys   [SendSlots]uint64 // what the places for data are granted for; 0: nothing
	taking bool              // some are being revoked
	small  bool              // the last message was small: probably the next one is, too

	taken atomic.Uint64 // batches
	told  atomic.Uint64 // how many of them the peer has been told of with a batch
	free  atomic.Uint64 // of this rank's batches, how many the peer has taken
	asked uint64        // as told, by puts for that; under Recv's lock
}

// newFar makes this rank's side of a pair, and lets the peer send its first batches.
func newFar(x *hosts.Pair) any {
	f := &far{pair: x, in: make([]byte, batchSlots*batchBytes)}
	for b := range uint64(batchSlots) {
		f.post(b + 1)
	}
	return f
}

// batch is where a batch lands.
func (f *far) batch(number uint64) []byte {
	at := int(number%batchSlots) * batchBytes
	return f.in[at : at+batchBytes]
}

func (f *far) post(number uint64) {
	f.pair.Post(int(number%batchSlots), number, unsafe.Pointer(&f.batch(number)[0]), batchBytes)
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

// parts returns the size of the parts in which n bytes of data travel, and their number.
func parts(n int) (size, number int) {
	number = min(max((n+partBytes-1)/partBytes, 1), SendSlots)
	return (n + number - 1) / number, number
}

// padded is the size of a record whose message has n bytes.
func padded(n int) int { return recordHead + (n+7)&^7 }

// record is a message in a batch.
type record struct {
	header
	data []byte // nil: it is an announcement
}

func (f *far) uint64At(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
