package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// Watch sees when processes die. It has one descriptor for each process, and looks at all of them with one system call.
// The zero Watch is ready for use. Its methods may be called from any goroutine.
type Watch struct {
	mu     sync.Mutex
	known  map[Process]*Watched
	living []*Watched
	fds    []unix.PollFd // one for each of living, in the same order
	closed bool
}

// Watched is a process that a Watch holds.
type Watched struct{ dead atomic.Bool }

// Dead reports whether the process had ended when its Watch last looked. It is false for nil.
func (p *Watched) Dead() bool { return p != nil && p.dead.Load() }

// Add watches p too, by a pidfd (pidfd_open(2), Linux 5.3). Adding a process again costs nothing more. The error wraps
// fault.ErrPeerLost if p has ended, and os.ErrPermission if this process cannot see p: then ask p for a descriptor that
// it makes with OwnPIDFD, and use Adopt.
func (w *Watch) Add(p Process) (*Watched, error) {
	return w.add(p, func() (int, error) {
		if err := p.visible(); err != nil {
			return -1, err
		}
		fd, err := openPID(p)
		if err != nil {
			return -1, err
		}
		if err := p.Check(); err != nil { // only now: the process id may have been reused before pidfd_open
			closeFD(fd)
			return -1, err
		}
		return fd, nil
	})
}

// Adopt watches p by fd, which p made with OwnPIDFD. It takes fd over.
func (w *Watch) Adopt(p Process, fd int) (*Watched, error) {
	took := false
	one, err := w.add(p, func() (int, error) {
		took = true
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return -1, os.NewSyscallError("fcntl", err)
		}
		return fd, nil
	})
	if !took {
		err = errors.Join(err, closeFD(fd))
	}
	return one, err
}

// OwnPIDFD returns a pidfd of this process, for a peer that cannot make one. The caller closes it.
func OwnPIDFD() (int, error) {
	self, err := Self()
	if err != nil {
		return -1, err
	}
	return openPID(self)
}

func openPID(p Process) (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	switch err {
	case nil:
		fdtrace.Open(fd, "pidfd")
		return fd, nil
	case unix.ESRCH:
		return -1, fmt.Errorf("%v is gone: %w", p, fault.ErrPeerLost)
	case unix.ENOSYS:
		return -1, fmt.Errorf("pidfd_open (needs Linux 5.3): %w", hw.ErrNotSupported)
	}
	return -1, limit("pidfd_open", 0, err)
}

func (w *Watch) add(p Process, open func() (int, error)) (*Watched, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("watch: %w", fault.ErrClosed)
	}
	if one := w.known[p]; one != nil {
		return one, nil
	}
	fd, err := open()
	if err != nil {
		return nil, err
	}
	if w.known == nil {
		w.known = map[Process]*Watched{}
	}
	one := &Watched{}
	w.known[p] = one
	w.living = append(w.living, one)
	w.fds = append(w.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	return one, nil
}

// Look notes which of the processes have ended since the last look. It makes one system call and does not wait. If
// another goroutine is looking already, it returns at once.
func (w *Watch) Look() {
	if !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	if len(w.fds) == 0 {
		return
	}
	if n, err := unix.Poll(w.fds, 0); err != nil || n == 0 {
		return
	}
	for i := len(w.fds) - 1; i >= 0; i-- {
		if w.fds[i].Revents == 0 {
			continue
		}
		w.living[i].dead.Store(true)
		closeFD(int(w.fds[i].Fd)) // it has nothing more to say
		last := len(w.fds) - 1
		w.fds[i], w.living[i] = w.fds[last], w.living[last]
		w.fds, w.living = w.fds[:last], w.living[:last]
	}
}

// Close ends the watch. A Look afterwards sees nothing.
func (w *Watch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, f := range w.fds {
		errs = append(errs, closeFD(int(f.Fd)))
	}
	w.known, w.living, w.fds, w.closed = nil, nil, nil, true
	return errors.Join(errs...)
}
