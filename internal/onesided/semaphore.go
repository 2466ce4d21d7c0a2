package onesided

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Semaphore is one end of signals that several channels may share. Each channel uses it until it is closed, so that the
// semaphore ends after its channels.
type Semaphore struct {
	Side
	channels map[*Channel]bool // open ones; guarded by Space.mu
	made     uint64            // channels so far; guarded by Space.mu
}

// NewSemaphore makes a semaphore with peer, which must call it, too, on dev: the host, or this rank's device. The
// timeout for the other end is its only deadline. The caller closes the semaphore.
func (sp *Space) NewSemaphore(ctx context.Context, peer int, dev hw.Device) (*Semaphore, error) {
	const op = "new_semaphore"
	ctx = engine.Context(ctx)
	if err := sp.checkPeer(op, peer); err != nil {
		return nil, err
	}
	s := &Semaphore{}
	s.Side = newSide(sp, peer, s)
	watch(s, sp.c)
	err := s.match(ctx, op, semaphoreWords(!dev.IsHost()), sp.checkPlace(dev), func(_ *channelEnd, slot int) error {
		if dev.IsHost() {
			return nil
		}
		return s.openDevice(ctx, slot)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// checkPlace returns why this rank can have no semaphore on dev, or nil.
func (sp *Space) checkPlace(dev hw.Device) error {
	if dev.IsHost() {
		return nil
	}
	if err := sp.c.CheckDevice(dev); err != nil {
		return err
	}
	return sp.noDevice()
}

// Channel makes a channel over s, from and to remote; mine is this rank's memory, of which the caller uses ranges. The
// caller closes the channel.
func (s *Semaphore) Channel(mine *engine.Registration, remote *Remote) (*Channel, error) {
	if err := s.BeginLook(); err != nil {
		return nil, err
	}
	defer end(s)
	if err := s.checkMemory(mine, remote); err != nil {
		return nil, err
	}
	ch := &Channel{Side: Side{signals: s.signals}, remote: remote, over: s}
	ch.self = ch
	watch(ch, s.c)
	if err := s.add(ch); err != nil {
		return nil, err
	}
	defer end(ch)
	if s.device != nil {
		if err := ch.shareDevice(mine); err != nil {
			shut(ch, true)
			return nil, err
		}
	}
	return ch, nil
}

var errNoRemote = fmt.Errorf("nil remote memory (Comm.Import makes it): %w", fault.ErrArgument)

// checkMemory checks the memories for a channel over s.
func (s *Semaphore) checkMemory(mine *engine.Registration, remote *Remote) error {
	if err := s.sp.checkMemory(mine, remote, s.peer); err != nil {
		return err
	}
	if remote == nil {
		return errNoRemote
	}
	claim, err := mine.Acquire()
	if err != nil {
		return err
	}
	onDevice := !claim.Memory().Device.IsHost()
	claim.Release()
	if want := s.device != nil; onDevice != want || remote.GPU != want {
		return fmt.Errorf("%s, the registration is of %s memory and the remote memory is %s: %w", s.mine.export.what(),
			whereIs[onDevice], whereIs[remote.GPU], fault.ErrArgument)
	}
	defer s.c.Polls.Leave()
	if !s.c.Polls.Enter() {
		return engine.ErrCommClosed
	}
	return remote.Live()
}

// add gives ch a slot, makes it known to s and to the communicator, and begins its use of s and a use of it.
func (s *Semaphore) add(ch *Channel) error {
	sp := s.sp
	sp.mu.Lock()
	defer sp.mu.Unlock()
	switch {
	case sp.c.Closing():
		return engine.ErrCommClosed
	case s.Closed():
		return closedError(s)
	}
	var slot int
	var err error
	if s.far != nil {
		if slot = sp.freeSlot(false); slot < 0 || slot >= maxEnds {
			return errNoEnd
		}
		sp.used[slot] = ch
		ch.words = new(channelEnd)
	} else {
		slot, err = sp.take(ch, false) // it needs no place on the device
		if err != nil {
			if slot >= 0 {
				sp.used[slot] = nil
			}
			return err
		}
		ch.words = &sp.table.ends[slot]
	}
	s.made++ // if the device refuses ch, its number is not used again
	ch.number = s.made
	ch.words.grant.Store(ch.remote.Grant.Generation)
	ch.words.key.Store(copiesKey(s.peer))
	if s.channels == nil {
		s.channels = map[*Channel]bool{}
	}
	s.channels[ch] = true
	sp.put(ch)
	s.Enter()
	ch.Enter()
	return nil
}

// leave ends the use of s by ch.
func (s *Semaphore) leave(ch *Channel) {
	s.sp.mu.Lock()
	delete(s.channels, ch)
	s.sp.mu.Unlock()
	end(s)
}

// ending implements closable. It also ends the waits of channels on a device.
func (s *Semaphore) ending() (all []closable) {
	s.sp.mu.Lock()
	defer s.sp.mu.Unlock()
	if e, near := s.device.(*gpuend.End); near { // those of a far end look whether this is closed
		e.EndWaits()
	}
	for ch := range s.channels {
		all = append(all, ch)
	}
	return all
}

// busy implements closable. A channel that nobody uses does not count.
func (s *Semaphore) busy() bool {
	s.sp.mu.Lock()
	defer s.sp.mu.Unlock()
	return s.Uses() > int64(len(s.channels))
}

func (s *Semaphore) name() string { return "the semaphore " + between(s.c, s.peer) }

// Err returns why this rank's waits on the semaphore must end, or nil.
func (s *Semaphore) Err() error {
	if s.Closed() || s.c.Closing() {
		return closedDuringWait(s)
	}
	return nil
}

func (s *Semaphore) giveUp(quick bool) error {
	var err error
	if s.device != nil {
		err = s.device.Close(quick)
	}
	s.mine.state.Store(team.StateClosed)
	s.tell(callClosed)
	s.sp.remove(s)
	return err
}
