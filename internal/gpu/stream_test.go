package gpu

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
)

func TestNoStreamWithoutDevice(t *testing.T) {
	if cuda.Have().Err == nil {
		t.Skip("there are devices")
	}
	_, err := OpenStream(hw.CUDA(0))
	require.ErrorIs(t, err, fault.ErrNotSupported)
}

// user is a communicator, or a channel end, that has only an error.
type user struct {
	c   *engine.Comm
	err error
}

func (u *user) Comm() *engine.Comm       { return u.c }
func (u *user) Collect() []error         { return []error{u.err} }
func (u *user) FailDevice(string, error) {}
func (u *user) Closed(*Stream)           {}

// Errors of communicators come before errors of channels, because an error may have ended the channel.
func TestOrderOfErrors(t *testing.T) {
	g := &Domain{streams: map[*Stream]bool{}}
	s := streamOn(hw.CUDA(0), &Stream{})
	end := func(name string) *user { return &user{nil, errors.New(name)} }
	comm := func(name string) *user { return &user{&engine.Comm{}, errors.New(name)} }
	first := end("end 1")
	users := []*user{first, comm("comm 1"), end("end 2"), comm("comm 2"), comm("comm 3"), end("end 3"), first}
	for _, u := range users {
		s.Enter(u, g)
	}
	require.EqualError(t, s.takeErrors(), "comm 1\ncomm 2\ncomm 3\nend 1\nend 2\nend 3")
	first.err = errors.New("end 1 again")
	s.Leave(first)
	s.Leave(users[1]) // which has nothing new to say
	require.EqualError(t, s.takeErrors(), "end 1 again\ncomm 2\ncomm 3\nend 2\nend 3", "what has left said it before")
}

// Once a user may queue on a stream, because it or another goroutine has entered, the domain waits for the stream.
func TestNobodyQueuesBeforeTheDomainKnows(t *testing.T) {
	g := &Domain{streams: map[*Stream]bool{}}
	s, u := streamOn(hw.CUDA(0), &Stream{}), &user{c: &engine.Comm{}}
	entered := make(chan bool, 2)
	g.mu.Lock()
	for range 2 {
		go func() {
			s.Enter(u, g)
			entered <- true
		}()
	}
	select {
	case <-entered:
		t.Error("entered, and the domain does not know yet")
		entered <- true
	case <-time.After(50 * time.Millisecond):
	}
	g.mu.Unlock()
	for range 2 {
		<-entered
	}
	require.True(t, g.streams[s])
}
