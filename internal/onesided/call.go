package onesided

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// A call is a head, of which each kind uses what it needs, and perhaps data. The peer's calls and writes are served in
// their order.

// callKind says what a call is for.
type callKind uint64

const (
	callEnd          callKind = 1 + iota // the peer has made end ID, of words A to D
	callMet                              // it has found this rank's end
	callClosed                           // it has closed it
	callSignal                           // it has signalled A times
	callWindow                           // request: which grant do window ID's peers use?
	callWindowSignal                     // the peer has signalled A times
	callWindowClosed                     // it has closed its part
	callGet                              // request: write A bytes of the grant's memory
	callAtomic                           // request: do B with A to the grant's word; B is 0 to add
	callCheck                            // request: is the grant good, and how is it reached by RDMA?
	callFlush                            // request: has all before this landed?
	callAccumulate                       // combine the data, or C bytes of staged data, with the grant's memory; A is the type, B the operation
	callPackets                          // the data, or C bytes of staged data, as packets to the grant's memory; A is the flag, B the width
	callRefused                          // the grant is revoked; with an ID it is a request
	callDone                             // the answer to request ID: code A, and a result
	callMark                             // answer with a callMarked of ID
	callMarked
	callWords // request: connect a queue pair for atomics, whose address Offset, B, C and D are, for window A
	callPut   // the data, or C bytes of staged data, to the grant's memory, which is on a device; with A a request: C bytes of slot A-1
	callLand  // request: make slots for puts
	callKinds
)

// call is the head of a call. It travels as words of 8 bytes, little endian, in this order.
type call struct {
	Kind       callKind
	ID         uint64
	Slot       uint64 // of the grant
	Generation uint64
	Offset     uint64 // in its memory
	A, B, C, D uint64
}

const (
	callHead = int(unsafe.Sizeof(call{}))
	callData = (transport.MaxCall - callHead) &^ 15 // bytes of data in one call
)

func (k *call) grant() mem.Location {
	return mem.Location{Slot: uint32(k.Slot), Generation: k.Generation}
}

// send makes a call.
func (f *far) send(k *call, data []byte) {
	var b [transport.MaxCall]byte
	n := 0
	for _, v := range [...]uint64{uint64(k.Kind), k.ID, k.Slot, k.Generation, k.Offset, k.A, k.B, k.C, k.D} {
		binary.LittleEndian.PutUint64(b[n:], v)
		n += 8
	}
	n += copy(b[n:], data)
	f.called.Add(1)
	f.pair.Call(b[:n])
}

// Called implements transport.Server.
func (f *far) Called(b []byte) {
	var k call
	if len(b) < callHead {
		f.damaged("call", uint64(len(b)))
		return
	}
	for i, v := range [...]*uint64{(*uint64)(&k.Kind), &k.ID, &k.Slot, &k.Generation, &k.Offset, &k.A, &k.B, &k.C, &k.D} {
		*v = binary.LittleEndian.Uint64(b[8*i:])
	}
	data, whole := b[callHead:], true
	switch k.Kind {
	case callDone, callMarked:
	case callAccumulate, callPackets, callPut:
		switch {
		case len(data) > 0:
		case k.Kind == callPut && k.A != 0:
			if data, whole = f.landedData(&k); !whole {
				f.done(k.ID, fault.ErrTimeout, 0) // the peer has given it up
			}
		default:
			data, whole = f.stagedData(&k)
		}
		fallthrough
	default:
		if whole && f.defers(&k, data) {
			return
		}
	}
	if whole {
		f.serve(&k, data)
	}
	f.heard.Add(1)
}

// stagedData returns the staged data of a call, if all have come: not if the peer has given up.
func (f *far) stagedData(k *call) (data []byte, whole bool) {
	came := f.came
	if f.came = 0; came == 0 || uint64(came) != k.C {
		return nil, false
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f.staged[0])), came), true
}

// damaged notes what a correct peer never sends.
func (f *far) damaged(what string, v uint64) {
	f.sp.c.Log().Warn("one-sided: what a peer has sent is damaged, and ignored", "peer", f.pair.Rank, "what", what, "value", v)
}

func (f *far) serve(k *call, data []byte) {
	switch k.Kind {
	case callEnd, callMet, callClosed, callSignal:
		f.serveEnd(k)
	case callWindow, callWindowSignal, callWindowClosed:
		f.serveWindow(k)
	case callGet:
		f.serveGet(k)
	case callAtomic:
		f.serveAtomic(k)
	case callCheck:
		_, _, err := f.served(k.grant(), 0, 0, 0)
		answer := call{Kind: callDone, ID: k.ID, A: codeOf(err)}
		if err == nil {
			f.tells(k.grant())
			if r := f.sp.c.Domain().Served(k.grant()); r != nil {
				g := r.Region()
				answer.C, answer.D = g.Address, uint64(g.Key)
			}
		}
		f.send(&answer, nil)
	case callWords:
		f.serveWords(k)
	case callFlush:
		f.done(k.ID, nil, 0)
	case callAccumulate, callPackets:
		f.serveData(k, data)
	case callPut:
		f.servePut(k, data)
	case callLand:
		f.serveLand(k)
	case callRefused:
		f.refuse(k.grant())
		if k.ID != 0 {
			f.done(k.ID, nil, 0)
		}
	case callDone:
		f.answered(k)
	case callMark:
		f.send(&call{Kind: callMarked, ID: k.ID}, nil)
	case callMarked:
		f.marks.Store(k.ID)
		f.catchUp()
	default:
		f.damaged("kind of call", uint64(k.Kind))
	}
}

// done answers a request. What result is depends on the request.
func (f *far) done(id uint64, err error, result uint64) {
	f.send(&call{Kind: callDone, ID: id, A: codeOf(err), B: result}, nil)
}

// codeOf is the code of an answer.
func codeOf(err error) uint64 {
	if err == nil {
		return 0
	}
	code := reason.Code(err)
	if code == 0 {
		code = codeStale
	}
	return uint64(code)
}

// served returns the registration that a grant is for, and the address of n bytes of its memory.
func (f *far) served(g mem.Location, off uint64, n int, need engine.Access) (*engine.Registration, unsafe.Pointer, error) {
	r := f.sp.c.Domain().Served(g)
	if r == nil {
		return nil, nil, staleError(f.sp.c.Rank())
	}
	by := engine.TCP
	if f.pair.RDMA() {
		by |= engine.RDMA
	}
	p, err := r.Reach(int(min(off, transport.MaxOffset)), n, need, by)
	return r, p, err
}

// exported returns the address of n bytes of a grant's memory, which is the host's.
func (f *far) exported(g mem.Location, off uint64, n int, need engine.Access) (unsafe.Pointer, error) {
	r, p, err := f.served(g, off, n, need)
	if err == nil && r.OnDevice() {
		return nil, fmt.Errorf("memory of a device: %w", fault.ErrNotSupported)
	}
	return p, err
}

// Reach implements transport.Server.
func (f *far) Reach(t transport.Target, n int) unsafe.Pointer {
	switch t.Slot {
	case answerSlot:
		return f.answer(t, n)
	case dataSlot:
		return f.stage(t, n)
	case landSlot:
		return f.landAt(t, n)
	}
	g := mem.Location{Slot: t.Slot, Generation: t.Key}
	p, err := f.exported(g, t.Offset, n, engine.RemoteWrite)
	if err != nil {
		f.refuses(g)
		return nil
	}
	return p
}

// Denied implements transport.Server.
func (f *far) Denied(t transport.Target) { f.refuse(mem.Location{Slot: t.Slot, Generation: t.Key}) }

// stage returns where n bytes of data go for the next call.
func (f *far) stage(t transport.Target, n int) unsafe.Pointer {
	if n > dataBytes || t.Offset > uint64(dataBytes-n) {
		return nil
	}
	if f.staged == nil {
		f.staged = make([]uint64, dataBytes/8)
	}
	if t.Offset == 0 {
		f.came = 0
	}
	f.came += n
	return unsafe.Add(unsafe.Pointer(&f.staged[0]), int(t.Offset))
}

// refuses tells the peer that a grant is no good.
func (f *far) refuses(g mem.Location) {
	f.send(&call{Kind: callRefused, Slot: uint64(g.Slot), Generation: g.Generation}, nil)
}

// serveGet answers with data and then whether they are all.
func (f *far) serveGet(k *call) {
	if f.onDevice(k.grant()) {
		f.serveDeviceGet(k)
		return
	}
	p, err := f.exported(k.grant(), k.Offset, int(min(k.A, getPiece)), engine.RemoteRead)
	if n := int(min(k.A, getPiece)); err == nil && n > 0 {
		to := transport.Target{Slot: answerSlot, Key: k.ID}
		f.pair.Write(to, p, n, true)
		f.mu.Lock()
		sent := f.pair.Sent()
		for len(f.serving) > 0 && f.serving[0].until <= sent {
			f.serving = f.serving[1:]
		}
		if until := f.pair.Queued(); until > sent {
			f.serving = append(f.serving, reply{k.grant(), to, until})
		}
		f.mu.Unlock()
	}
	f.done(k.ID, err, 0)
}

func (f *far) serveAtomic(k *call) {
	p, err := f.exported(k.grant(), k.Offset, 8, engine.RemoteAtomic)
	if err == nil {
		err = unaligned(p, int(k.Offset), 8)
	}
	var was uint64
	if err == nil {
		op := AtomicOp{Name: "atomic", Add: k.A, Swap: k.B != 0, Old: k.C, New: k.D}
		if w := f.sp.byDevice(k.grant()); w != nil {
			go f.changeFor(w, k.ID, int(k.Offset), op)
			return
		}
		was = op.apply(p)
	}
	f.done(k.ID, err, was)
}

// serveData accumulates, or writes packets.
func (f *far) serveData(k *call, data []byte) {
	src := unsafe.Pointer(&data[0])
	if uintptr(src)%16 != 0 {
		src = unsafe.Pointer(&f.scratch)
		copy(unsafe.Slice((*byte)(src), len(data)), data)
	}
	n, need := len(data), engine.RemoteAtomic
	if k.Kind == callPackets {
		if k.B != 8 && k.B != 16 {
			f.damaged("width of packets", k.B)
			return
		}
		n, need = PacketBytes(int(k.B), n), engine.RemoteWrite
	}
	p, err := f.exported(k.grant(), k.Offset, n, need)
	if err != nil {
		f.refuses(k.grant())
		return
	}
	if k.Kind == callPackets {
		if uintptr(p)%uintptr(k.B) == 0 {
			Pack(int(k.B), p, src, len(data), k.A)
		}
		return
	}
	t, red := dtype.Type(k.A), team.Reduction(k.B)
	v := team.Vec{Type: t}
	size := t.Size()
	if size == 0 || checkAccumulate(&v, red) != nil || uintptr(p)%uintptr(size) != 0 || n%size != 0 {
		f.damaged("accumulate", k.A)
		return
	}
	accumulate(t, red, p, src, n/size)
}

// accumulate combines n elements.
func accumulate(t dtype.Type, red team.Reduction, dst, src unsafe.Pointer, n int) {
	if red == team.Replace {
		cpu.AtomicCopy(t, dst, src, n)
	} else {
		cpu.AtomicReduce(t, red.Op(), dst, src, n)
	}
}

// end returns the words of an end, which it makes. The caller holds mu.
func (f *far) end(id uint64) *farEnd {
	e := f.ends[id]
	if e == nil {
		e = &farEnd{}
		e.theirs.state.Store(team.StateOpen)
		f.ends[id] = e
	}
	return e
}

func (f *far) serveEnd(k *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.ends[k.ID]
	if k.Kind == callEnd && e == nil && k.ID < f.made+2*tableEnds {
		e = f.end(k.ID)
	}
	if e == nil {
		return // this rank has forgotten it, since both ends were closed
	}
	switch them := &e.theirs; k.Kind {
	case callEnd:
		them.export = exportWords{bytes: k.A, slot: k.B, generation: k.C}
		them.export.at.Offset = k.D
		them.key.Store(1)
	case callMet:
		them.met.Store(1)
		them.state.Store(endMet)
	case callClosed:
		them.state.Store(team.StateClosed)
	case callSignal:
		w := &them.signals[0].Uint64
		spin.Release(w, max(w.Load(), k.A))
	}
}
