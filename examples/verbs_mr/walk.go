package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/hw/verbs"
)

// walker is A.
type walker struct {
	*end
	link  *link
	mine  *verbs.MR        // A's region, one page
	peers map[string]grant // B's regions
	id    uint64           // ID of the last work request
}

// walk takes all steps of the walk, from the first registration to the close of everything.
func (a *walker) walk() error {
	for _, step := range []func() error{a.meet, a.oneSided, a.atomics, a.messages, a.refusals, a.gone, a.part} {
		if err := step(); err != nil {
			return err
		}
	}
	a.say("done")
	return nil
}

// part closes everything. Before a region is closed, all work on it must have completed. A queue pair closes before its
// completion queue, regions before their domain, and the device last.
func (a *walker) part() error { return errors.Join(a.shut(), a.ask("close")) }

// meet registers A's memory, and connects with B. Over TCP they tell each other where B's regions are, their rkeys, and
// the addresses of the queue pairs.
func (a *walker) meet() (err error) {
	// LOCAL_WRITE allows A's own device to write here what it has read. Peers get no access.
	if a.mine, err = a.register(0, verbs.LocalWrite); err != nil {
		return err
	}
	// Peers must not be allowed to write what this process may not: no device registers that.
	if _, err := a.pd.Register(uintptr(a.mine.Address()), page, verbs.RemoteWrite); err == nil {
		return errors.New("REMOTE_WRITE without LOCAL_WRITE was registered")
	}
	a.say("REMOTE_WRITE without LOCAL_WRITE is refused")
	r, err := a.request(request{Do: "open"})
	if err != nil {
		return err
	}
	a.peers = r.Regions
	if err := a.connectWith(r.QP); err != nil {
		return err
	}
	a.say("knows B's addresses and rkeys; the queue pairs are connected")
	return nil
}

// connectWith connects both queue pairs; b is the address of B's.
func (a *walker) connectWith(b []byte) error {
	mine, err := a.address()
	if err != nil {
		return err
	}
	if err := a.connect(b, "B"); err != nil {
		return err
	}
	_, err = a.request(request{Do: "connect", QP: mine})
	return err
}

// oneSided writes to B's memory and reads it. A names its own memory by address and lkey, and B's by address and rkey.
func (a *walker) oneSided() error {
	n := copy(a.memory, "written by A\x00")
	if err := a.must(a.work(verbs.Write, n, "open", 0)); err != nil {
		return err
	}
	a.say("WRITE %q to B's open page", a.text(0))
	if err := a.ask("show"); err != nil {
		return err
	}
	clear(a.memory[:page])
	if err := a.must(a.work(verbs.Read, n, "open", 0)); err != nil {
		return err
	}
	a.say("READ it back: %q", a.text(0))
	clear(a.memory[:page])
	if err := a.must(a.work(verbs.Read, page, "read", 0)); err != nil {
		return err
	}
	a.say("READ B's page for reading: %q", a.text(0))
	return nil
}

// atomics updates a number of B's that other peers could update at the same time. The old number comes back.
func (a *walker) atomics() error {
	if a.device.Limits().Atomics == verbs.AtomicsNone {
		a.say("has a device without atomic operations")
		return nil
	}
	for _, w := range []verbs.Work{
		{Op: verbs.FetchAdd, Add: 40},
		{Op: verbs.FetchAdd, Add: 2},
		{Op: verbs.CompareSwap, Add: 42, Swap: 100}, // Add is the value that must be there
		{Op: verbs.CompareSwap, Add: 42, Swap: 200}, // it is not any more: nothing happens
	} {
		full := a.work(w.Op, 8, "open", counter)
		full.Add, full.Swap = w.Add, w.Swap
		if err := a.must(full); err != nil {
			return err
		}
		old := binary.NativeEndian.Uint64(a.memory)
		if w.Op == verbs.FetchAdd {
			a.say("FETCH_ADD %d: it was %d", w.Add, old)
		} else {
			a.say("CMP_SWAP %d by %d: it was %d", w.Add, w.Swap, old)
		}
	}
	return a.ask("show")
}

// messages shows work that B takes part in: B has posted a receive, which says where a SEND goes. A names no address
// and no rkey.
func (a *walker) messages() error {
	if err := a.ask("receive"); err != nil {
		return err
	}
	n := copy(a.memory, "sent by A\x00")
	if err := a.must(a.work(verbs.Send, n, "", 0)); err != nil {
		return err
	}
	a.say("SEND %q", a.text(0))
	if err := a.ask("received"); err != nil {
		return err
	}

	// A write with an immediate number takes a receive, too, which tells B that the write has come. Its data go where A
	// says.
	if err := a.ask("receive"); err != nil {
		return err
	}
	n = copy(a.memory, "written, and told of\x00")
	w := a.work(verbs.WriteImmediate, n, "open", 0)
	w.Value = 7
	if err := a.must(w); err != nil {
		return err
	}
	a.say("WRITE_WITH_IMM %q, 7", a.text(0))
	if err := a.ask("received"); err != nil {
		return err
	}
	return a.ask("show")
}

// refusals asks for what B has not granted. A learns of the refusal by the status of the completion. B's memory does
// not change, and B's program does not notice. Then the connection has failed, and both ends connect again.
func (a *walker) refusals() error {
	wrong := a.work(verbs.Write, 8, "open", 0)
	wrong.Peer ^= 0x5a5a5a00
	for _, r := range []struct {
		what string
		work verbs.Work
	}{
		{"WRITE with a wrong rkey", wrong},
		{"WRITE beyond the region's end", a.work(verbs.Write, 8, "open", page-4)},
		{"WRITE before its beginning", a.work(verbs.Write, 8, "open", -8)},
		{"READ beyond the region's end", a.work(verbs.Read, 16, "open", page-8)},
		{"WRITE without REMOTE_WRITE", a.work(verbs.Write, 8, "read", 0)},
		{"READ without REMOTE_READ", a.work(verbs.Read, 8, "write", 0)},
		{"FETCH_ADD without REMOTE_ATOMIC", a.work(verbs.FetchAdd, 8, "write", 0)},
	} {
		if r.work.Op == verbs.FetchAdd && a.device.Limits().Atomics == verbs.AtomicsNone {
			continue
		}
		if err := a.refused(r.what, r.work); err != nil {
			return err
		}
	}
	// The same holds for this process's own memory: the device does not touch memory that is not registered under that
	// lkey. Devices differ in the status. It is a whole page, since Post copies shorter data into the work request, and
	// then nobody checks the lkey.
	w := a.work(verbs.Write, page, "open", 0)
	w.Key ^= 0x5a5a5a00
	return a.refused("WRITE with a wrong lkey", w)
}

// gone asks for memory that B had granted, and then deregistered.
func (a *walker) gone() error {
	n := copy(a.memory, "written at last\x00")
	w := a.work(verbs.Write, n, "open", 0)
	if err := a.must(w); err != nil {
		return err
	}
	a.say("WRITE %q: the connection is as good as new", a.text(0))
	if err := a.ask("show"); err != nil {
		return err
	}
	if err := a.ask("deregister"); err != nil {
		return err
	}
	return a.refused("WRITE to what is not registered any more", w)
}

// refused posts work that must fail, and connects again.
func (a *walker) refused(what string, w verbs.Work) error {
	if err := a.ask("remember"); err != nil {
		return err
	}
	before := slices.Clone(a.memory)
	err := a.do(w)
	var failed *verbs.CompletionError
	switch {
	case err == nil:
		return fmt.Errorf("%s: it was done, and should have been refused", what)
	case !errors.As(err, &failed):
		return err
	case w.Key != a.mine.LKey():
		a.say("%s: refused on A", what)
	case failed.Status != verbs.RemoteAccess:
		return fmt.Errorf("%s: want a remote access error: %w", what, err)
	default:
		a.say("%s: %s", what, failed.Text)
	}
	if !slices.Equal(before, a.memory) {
		return fmt.Errorf("%s: A's memory has changed", what)
	}
	if err := a.ends(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := a.ask("unchanged"); err != nil {
		return err
	}
	r, err := a.request(request{Do: "address"})
	if err != nil {
		return err
	}
	return a.connectWith(r.QP)
}

// ends waits until the queue pair is in the error state. Software RoCE tells of the failure just before.
func (a *walker) ends() error {
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		switch state, err := a.qp.State(); {
		case err != nil || state == verbs.StateError:
			return err
		case time.Since(begun) > time.Second:
			return fmt.Errorf("the queue pair is in state %d after that, not ERR", state)
		}
	}
}

// work returns a work request between the beginning of A's page and a place in one of B's regions.
func (a *walker) work(op verbs.Op, n int, region string, offset int) verbs.Work {
	a.id++
	b := a.peers[region]
	return verbs.Work{ID: a.id, Op: op, Flags: verbs.Signaled, Length: uint32(n), Local: a.mine.Address(), Key: a.mine.LKey(),
		Remote: b.Address + uint64(offset), Peer: b.Key}
}

// do posts work and waits for its completion. Until then its memory belongs to the device.
func (a *walker) do(w verbs.Work) error {
	if _, err := a.qp.Post(w); err != nil {
		return err
	}
	c, err := a.completion()
	if err != nil {
		return err
	}
	return a.cq.Failure(&c)
}

// must is do for work that is allowed: that it fails is an error of A.
func (a *walker) must(w verbs.Work) error {
	if err := a.do(w); err != nil {
		return fmt.Errorf("A: %w", err)
	}
	return nil
}

// ask asks B to do something.
func (a *walker) ask(what string) error {
	_, err := a.request(request{Do: what})
	return err
}

func (a *walker) request(q request) (r reply, err error) {
	if err := a.link.send(q); err != nil {
		return r, fmt.Errorf("A: asking B to %s: %w", q.Do, err)
	}
	if err := a.link.receive(&r); err != nil {
		return r, fmt.Errorf("A: B, asked to %s, is gone: %w", q.Do, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("B, asked to %s: %s", q.Do, r.Error)
	}
	return r, nil
}

// shut closes what is still open.
func (a *walker) shut() (err error) {
	if a.mine != nil {
		err = a.mine.Close()
	}
	a.mine = nil
	if err = errors.Join(err, a.close()); err == nil && a.undo != nil {
		a.say("deregistered its page, and closed all")
	}
	a.undo = nil
	return err
}
