package onesided

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/words"
)

// What this rank does with the memory of a rank of another host.

const (
	// answerSlot is the slot of targets for answers to gets; the key is the request's number. No heap has so many slots.
	answerSlot = 1<<32 - 1
	dataSlot   = 1<<32 - 2 // of targets for data of calls, with more than these have room for; the key only serves to withdraw
	dataBytes  = 32 << 10
	getPiece   = 1 << 20 // bytes that one request asks for
	getPieces  = 4       // requests of one get that are under way

	// What this rank sends without waiting until the kernel has taken it, so much of it that the peer has not served is
	// under way at most, by marks of markBytes each. Then calls wait, and signals are sent later.
	markBytes = 256 << 10
	mostMarks = 8
	callBytes = 64 // what a call or a short write costs besides its data, about
)

// request is a call that the peer answers.
type request struct {
	to   unsafe.Pointer // where the data of an answer go
	n    int            // bytes
	came int            // of them
	past uint64         // far.given before it
	k    call           // the answer
	over atomic.Bool
}

// ask begins a request.
func (f *far) ask(k *call, r *request) {
	k.ID = f.next()
	r.past = f.given.Load()
	f.mu.Lock()
	f.asked[k.ID] = r
	f.mu.Unlock()
	f.send(k, nil)
}

// forget ends a request that is not answered. Afterwards nothing is written to its memory.
func (f *far) forget(id uint64) {
	f.mu.Lock()
	delete(f.asked, id)
	f.mu.Unlock()
	f.pair.Refuse(transport.Target{Slot: answerSlot, Key: id})
}

// answer returns where n bytes of an answer go.
func (f *far) answer(t transport.Target, n int) unsafe.Pointer {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.asked[t.Key]
	if r == nil || n > r.n || t.Offset > uint64(r.n-n) {
		return nil
	}
	r.came += n
	return unsafe.Add(r.to, int(t.Offset))
}

// answered takes an answer.
func (f *far) answered(k *call) {
	f.mu.Lock()
	r := f.asked[k.ID]
	delete(f.asked, k.ID)
	f.mu.Unlock()
	if r == nil {
		return // its call has given up
	}
	raise(&f.taken, r.past) // it serves in order
	r.k = *k
	r.over.Store(true)
}

// refusal is the error of an answer, which it remembers if it says that a grant is revoked.
func (f *far) refusal(answer *call, g mem.Location) error {
	err := f.errorOf(int(min(answer.A, 1<<16)))
	if errors.Is(err, fault.ErrStale) && g.Generation != 0 {
		f.refuse(g)
	}
	return err
}

// result asks the peer, waits for the answer, and returns it.
func (f *far) result(ctx context.Context, op string, of closable, k *call) (call, error) {
	r := &request{}
	f.ask(k, r)
	if err := f.wait(ctx, op, "answer", of, r.over.Load); err != nil {
		f.forget(k.ID)
		return call{}, err
	}
	return r.k, f.refusal(&r.k, k.grant())
}

// flush waits until the peer has served all that this rank has written and called.
func (f *far) flush(ctx context.Context, of closable) error {
	_, err := f.result(ctx, "flush", of, &call{Kind: callFlush})
	return err
}

// behind reports whether the peer's process has perhaps not put into its memory all that this rank has sent it: devices, which do
// not ask it, may overtake that. Without devices nothing can.
func (f *far) behind() bool { return f.taken.Load() < f.given.Load() && f.pair.RDMA() }

// takes waits until it has.
func (f *far) takes(ctx context.Context, of closable) error {
	if !f.behind() {
		return nil
	}
	return f.flush(ctx, of)
}

// paced counts n bytes that are sent without a wait, and reports whether there is room for more.
func (f *far) paced(n int) (room bool) {
	f.pacing.Lock()
	defer f.pacing.Unlock()
	if f.since += n + callBytes; f.since >= markBytes {
		f.since = 0
		f.marked++
		f.send(&call{Kind: callMark, ID: f.marked}, nil)
	}
	return f.marked-f.marks.Load() <= mostMarks
}

// pace is paced for a call that waits for room.
func (f *far) pace(ctx context.Context, op string, of closable, n int) error {
	if f.paced(n) {
		return nil
	}
	return f.wait(ctx, op, "the data before", of, func() bool {
		f.pacing.Lock()
		defer f.pacing.Unlock()
		return f.marked-f.marks.Load() <= mostMarks
	})
}

// later makes the signals of s, which are not sent yet, leave with the next mark.
func (f *far) later(s *signals) {
	f.mu.Lock()
	if !s.late.Swap(true) { // else it is among them: a peer that does not answer must not cost memory for each signal
		f.late = append(f.late, s)
	}
	f.mu.Unlock()
	f.pacing.Lock()
	none := f.marked == f.marks.Load()
	f.pacing.Unlock()
	if none { // there is none: the last one has come meanwhile
		f.catchUp()
	}
}

// catchUp sends the signals that were not sent.
func (f *far) catchUp() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, s := range late {
		if s.late.Swap(false) {
			f.send(&call{Kind: callSignal, ID: s.number, A: s.out.Load()}, nil)
		}
	}
}

// at names n bytes of the remote memory, for a call that needs a right. Another communicator may have imported it.
func (f *far) at(m *Remote, off, n int, need engine.Access) (transport.Target, error) {
	t := transport.Target{Slot: m.Grant.Slot, Key: m.Grant.Generation, Offset: uint64(off)}
	if err := m.check(off, n, need); err != nil {
		return t, err
	}
	return t, f.good(m)
}

// good returns why the remote memory must not be used any more, or nil.
func (f *far) good(m *Remote) error {
	if err := m.Live(); err != nil || m.far == f {
		return err
	}
	return f.live(m.Grant)
}

// callAt is a call about n bytes of the remote memory.
func (f *far) callAt(kind callKind, m *Remote, off, n int, need engine.Access) (*call, error) {
	t, err := f.at(m, off, n, need)
	return &call{Kind: kind, Slot: uint64(t.Slot), Generation: t.Key, Offset: t.Offset}, err
}

// put writes n bytes. When it returns, the source may be changed. more says that the caller sends something else at once.
func (f *far) put(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int, more func()) error {
	if m.GPU {
		done, err := f.writeDevice(ctx, op, of, m, off, local, n)
		if !done && err == nil {
			err = f.putDevice(ctx, op, of, m, off, local, n)
		}
		if err == nil && more != nil {
			more()
		}
		return err
	}
	t, err := f.at(m, off, n, engine.RemoteWrite)
	if err != nil {
		return err
	}
	if n > transport.MaxCall {
		if err := f.reach(ctx, op, of, m, &t); err != nil {
			return err
		}
	}
	if n > 0 && !f.pair.Write(t, local, n, more != nil) {
		f.given.Add(1)
	}
	if more != nil {
		more()
	}
	if n == 0 {
		return nil
	}
	if n <= transport.MaxCall { // it counts as sent when it is copied
		if err := f.pace(ctx, op, of, n); err != nil {
			return err
		}
	}
	return f.sent(ctx, op, of, t)
}

// writeDevice is put of memory of a device, or to such, if RDMA devices do it. It reports whether they do; without an error it has else
// done nothing.
func (f *far) writeDevice(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int) (bool, error) {
	if n <= transport.MaxCall || !f.pair.RDMA() {
		return false, nil
	}
	t, err := f.at(m, off, n, engine.RemoteWrite)
	if err == nil {
		err = f.reach(ctx, op, of, m, &t)
	}
	if err != nil || !f.pair.WriteDevice(t, local, n) {
		return false, err
	}
	return true, f.sent(ctx, op, of, t)
}

// readDevice is get to memory of a device, likewise.
func (f *far) readDevice(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int) (bool, error) {
	t, err := f.at(m, off, n, engine.RemoteRead)
	if err != nil || n == 0 {
		return false, err
	}
	return f.read(ctx, op, of, m, t, local, n)
}

// get reads n bytes.
func (f *far) get(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int) error {
	t, err := f.at(m, off, n, engine.RemoteRead)
	if err != nil || n == 0 {
		return err
	}
	if done, err := f.read(ctx, op, of, m, t, local, n); done || err != nil {
		return err
	}
	most := getPiece
	if m.GPU {
		most = devicePiece
	}
	var open [getPieces]struct {
		id uint64
		r  *request
	}
	begun, ended := 0, 0
	for done := 0; err == nil && (done < n || ended < begun); {
		if done < n && begun-ended < getPieces {
			k, e := f.callAt(callGet, m, off+done, min(most, n-done), engine.RemoteRead)
			if err = e; err == nil {
				r := &request{to: unsafe.Add(local, done), n: min(most, n-done)}
				k.A = uint64(r.n)
				f.ask(k, r)
				open[begun%getPieces].id, open[begun%getPieces].r = k.ID, r
				begun++
				done += r.n
			}
			continue
		}
		r := open[ended%getPieces].r
		if err = f.wait(ctx, op, "the data", of, r.over.Load); err == nil {
			ended++
			if err = f.refusal(&r.k, m.Grant); err == nil && r.came < r.n {
				err = staleError(m.Rank)
			}
		}
	}
	for ; ended < begun; ended++ {
		f.forget(open[ended%getPieces].id)
	}
	return err
}

// read is get by RDMA. It reports whether all has been read; if not, and there is no error, it is to be asked for.
func (f *far) read(ctx context.Context, op string, of closable, m *Remote, t transport.Target, local unsafe.Pointer, n int) (bool, error) {
	if err := f.reach(ctx, op, of, m, &t); err != nil || t.Region.Key == 0 {
		return false, err
	}
	if f.behind() && n <= transport.MaxCall {
		return false, nil // one question is less than two
	}
	if err := f.takes(ctx, of); err != nil {
		return false, err
	}
	r := &transport.Result{}
	if !f.pair.Read(t, local, n, r) {
		return false, nil
	}
	over := func() bool { over, _ := r.Ended(); return over }
	if err := f.wait(ctx, op, "the data", of, over); err != nil {
		f.pair.Withdraw(t)
		return false, err
	}
	_, done := r.Ended()
	return done, f.good(m) // else the memory may have been given to somebody else
}

// atomicAt is a call for an atomic on a word.
func (f *far) atomicAt(m *Remote, off int) (*call, error) {
	k, err := f.callAt(callAtomic, m, off, 8, engine.RemoteAtomic)
	if err == nil {
		err = m.unalignedFar(off, 8)
	}
	return k, err
}

// atomic does op to a word, and returns what that was.
func (f *far) atomic(ctx context.Context, of closable, m *Remote, off int, op *AtomicOp) (uint64, error) {
	k, err := f.atomicAt(m, off)
	if err != nil {
		return 0, err
	}
	k.A, k.C, k.D = op.Add, op.Old, op.New
	if op.Swap {
		k.B = 1
	}
	done, err := f.result(ctx, op.Name, of, k)
	if err != nil && (errors.Is(err, fault.ErrPeerLost) || errors.Is(err, fault.ErrAborted) || reason.TimedOut(err) ||
		errors.Is(err, context.Canceled)) {
		return 0, &words.Unknown{Err: err}
	}
	return done.B, err
}

// unalignedFar is unaligned for remote memory.
func (m *Remote) unalignedFar(off, size int) error {
	if (m.At.Offset+uint64(off))%uint64(size) == 0 {
		return nil
	}
	return fmt.Errorf("offset %d of rank %d's memory is no multiple of %d: %w", off, m.Rank, size, fault.ErrArgument)
}

// sendData makes calls about n bytes of data; size is that of an element, and each byte takes `takes` bytes there. What is
// more than a call has room for is written to the peer's staging memory first, which the call then empties.
func (f *far) sendData(ctx context.Context, op string, of closable, m *Remote, k *call, data unsafe.Pointer, n, size, takes int) error {
	most := dataBytes / size * size
	inline := n <= callData
	to := transport.Target{Slot: dataSlot, Key: f.next()}
	for done := 0; done < n; done += most {
		if err := f.good(m); err != nil {
			return err
		}
		p := unsafe.Add(data, done)
		piece := min(most, n-done)
		if inline {
			f.send(k, unsafe.Slice((*byte)(p), piece))
			f.given.Add(1)
		} else {
			k.C = uint64(piece)
			f.staging.Lock()
			f.pair.Write(to, p, piece, true)
			f.send(k, nil)
			f.given.Add(1)
			f.staging.Unlock()
			if k.Kind == callPut { // a peer's device may be slower than the network
				if err := f.pace(ctx, op, of, piece); err != nil {
					f.pair.Withdraw(to)
					return err
				}
			}
		}
		k.Offset += uint64(piece * takes)
	}
	if inline {
		if err := f.pace(ctx, op, of, n); err != nil {
			return err
		}
	} else if err := f.sent(ctx, op, of, to); err != nil {
		return err
	}
	return nil // a peer that has got it all may close its registration at once
}

// next is a number for what this rank sends.
func (f *far) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number++
	return f.number
}

// sent waits until the kernel has taken all that this rank has written. Otherwise it takes back what was written to a
// target.
func (f *far) sent(ctx context.Context, op string, of closable, to transport.Target) error {
	queued := f.pair.Queued()
	if f.pair.Sent() >= queued {
		return nil
	}
	err := f.wait(ctx, op, "its kernel takes the data", of, func() bool { return f.pair.Sent() >= queued })
	if err != nil {
		f.pair.Withdraw(to)
	}
	return err
}

// accumulate combines v with the memory at off.
func (f *far) accumulate(ctx context.Context, of closable, m *Remote, off int, v *team.Vec, red team.Reduction) error {
	k, err := f.callAt(callAccumulate, m, off, v.Bytes(), engine.RemoteAtomic)
	if err == nil {
		err = m.unalignedFar(off, v.Type.Size())
	}
	if err != nil {
		return err
	}
	k.A, k.B = uint64(v.Type), uint64(red)
	return f.sendData(ctx, "accumulate", of, m, k, v.Ptr, v.Bytes(), v.Type.Size(), 1)
}

// packets writes n bytes as packets.
func (f *far) packets(ctx context.Context, of closable, m *Remote, off int, local unsafe.Pointer, n, width int, flag uint64) error {
	k, err := f.callAt(callPackets, m, off, PacketBytes(width, n), engine.RemoteWrite)
	if err != nil {
		return err
	}
	if (m.At.Offset+uint64(off))%uint64(width) != 0 {
		return fmt.Errorf("packets at offset %d of rank %d's memory, which is no multiple of %d: %w", off, m.Rank, width, fault.ErrArgument)
	}
	k.A, k.B = flag, uint64(width)
	return f.sendData(ctx, "put_packets", of, m, k, local, n, width/2, 2)
}

// checkFar asks the peer whether the memory is still registered.
func (m *Remote) checkFar(ctx context.Context, op string) error {
	_, err := m.far.regionOf(ctx, op, nil, m)
	return err
}

// regionOf asks the peer whether memory is still registered, and how it is reached by RDMA.
func (f *far) regionOf(ctx context.Context, op string, of closable, m *Remote) (transport.Region, error) {
	k := &call{Kind: callCheck, Slot: uint64(m.Grant.Slot), Generation: m.Grant.Generation}
	a, err := f.result(ctx, op, of, k)
	if err != nil {
		return transport.Region{}, err
	}
	g := transport.Region{Address: a.C, Key: uint32(a.D)}
	m.region.Store(&g)
	return g, nil
}

// reach adds to a target how it is reached by RDMA, if it is, which it asks the first time.
func (f *far) reach(ctx context.Context, op string, of closable, m *Remote, t *transport.Target) (err error) {
	if !f.pair.RDMA() {
		return nil
	}
	if g := m.region.Load(); g != nil {
		t.Region = *g
		return nil
	}
	t.Region, err = f.regionOf(ctx, op, of, m)
	return err
}
