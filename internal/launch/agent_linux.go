package launch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/procfs"
)

// Agent runs the ranks of one host, as the launcher orders over in and out. It returns when all have ended, and all
// processes that they started. If in ends, the job is over, or the launcher is gone, however it died: then all get
// SIGTERM, and SIGKILL after the grace period. If the agent dies, the kernel kills its ranks.
func Agent(in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // for Pdeathsig, a rank's parent is the thread that started it
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	children := make(chan os.Signal, 1) // one that waits stands for all
	signal.Notify(children, syscall.SIGCHLD)
	// What a rank has started, and has left its process group or lost its parent, is a descendant of the agent still.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}

	a := agent{out: json.NewEncoder(out), ranks: map[int]*process{}}
	listener, err := net.Listen("tcp", ":0") // reserves a port in case rank 0 needs it
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	if err := a.send(hello{version, host, len(cpu.Affinity()), addresses(), listener.Addr().(*net.TCPAddr).Port}); err != nil {
		return err
	}
	lines := json.NewDecoder(in)
	var s start
	if err := errors.Join(lines.Decode(&s), listener.Close()); errors.Is(err, io.EOF) {
		return nil // the launcher has given up
	} else if err != nil {
		return fmt.Errorf("the launcher's first line: %w", err)
	}
	orders := make(chan order)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(orders)
		for {
			var o order
			if lines.Decode(&o) != nil {
				return
			}
			select {
			case orders <- o:
			case <-done:
				return
			}
		}
	}()
	defer a.readers.Wait() // the launcher waits for what each rank said last
	a.startAll(s)
	var kill <-chan time.Time
	leave := func() {
		a.signal(syscall.SIGTERM)
		kill = time.After(s.Grace)
	}
	for a.reap() {
		select {
		case <-children:
		case o, ok := <-orders:
			if !ok {
				orders = nil
				leave()
				continue
			}
			a.signal(syscall.Signal(o.Signal))
		case got := <-signals:
			if got != syscall.SIGPIPE { // it only says that nobody reads the output
				leave()
			}
		case <-kill:
			a.signal(syscall.SIGKILL)
			kill = time.After(again)
		}
	}
	return nil
}

// again is the time until SIGKILL is sent once more, to what was started meanwhile.
const again = 50 * time.Millisecond

// agent has the ranks of one host. Only its own goroutine touches ranks, and waits for processes.
type agent struct {
	mu      sync.Mutex
	out     *json.Encoder
	ranks   map[int]*process // by process id; those that have ended are not there
	readers sync.WaitGroup
}

// process is a rank that runs.
type process struct {
	rank    int
	out     [2]*os.File // where it writes to
	readers sync.WaitGroup
}

func (a *agent) send(v any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.Encode(v)
}

// signal sends s to the ranks and to all processes that they have started.
func (a *agent) signal(s syscall.Signal) {
	for pid := range a.ranks {
		_ = syscall.Kill(-pid, s) // the rank may have ended just now
	}
	reached := map[int]bool{}
	for more := true; more; {
		more = false
		for _, pid := range procfs.Descendants(os.Getpid()) {
			group, _ := syscall.Getpgid(pid)
			if reached[pid] || a.ranks[group] != nil {
				continue
			}
			reached[pid] = true
			_ = syscall.Kill(pid, s)    // it may have ended just now
			more = s == syscall.SIGKILL // it may have started others since we looked
		}
	}
}

// reap asks for all children that have ended: ranks, and orphans that ranks have left behind. It reports whether there
// are others.
func (a *agent) reap() bool {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return false
		case pid == 0:
			return true
		}
		if p := a.ranks[pid]; p != nil {
			delete(a.ranks, pid)
			_ = syscall.Kill(-pid, syscall.SIGKILL) // the rest of its group, if there is one
			a.readers.Go(func() { a.ended(p, status) })
		}
	}
}

// ended says how a rank has ended, behind what it wrote.
func (a *agent) ended(p *process, status syscall.WaitStatus) {
	for _, f := range p.out { // processes that left the group may still hold the other end
		_ = f.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	p.readers.Wait()
	e := event{Rank: p.rank, Ended: true, Code: status.ExitStatus()}
	if status.Signaled() {
		e.Code, e.Signal = 128+int(status.Signal()), status.Signal().String()
	}
	_ = a.send(e) // if it fails, the launcher is gone
}

// startAll starts the ranks. A rank that cannot start is reported as ended, with a reason.
func (a *agent) startAll(s start) {
	err := os.Chdir(s.Dir)
	for i := range s.Ranks {
		rank := s.First + i
		if err == nil {
			err = a.start(rank, s)
		}
		if err != nil {
			_ = a.send(event{Rank: rank, Ended: true, Code: startCode(err), Fault: err.Error()}) // there is nobody else to tell
		}
	}
}

// startCode returns a shell's exit code: 127 if there is no such program, 126 if it cannot be run.
func startCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

func (a *agent) start(rank int, s start) (err error) {
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Env = append(append(slices.DeleteFunc(os.Environ(), ofJob), s.Env...),
		bootstrap.EnvVars(rank, s.Size, s.Rendezvous, s.Secret)...)
	// A process group of its own: signals reach all processes that the rank starts, and the terminal's signals go to
	// the launcher only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{rank: rank}
	var theirs [2]*os.File
	for k := range p.out {
		if p.out[k], theirs[k], err = os.Pipe(); err != nil {
			return err
		}
		defer theirs[k].Close()
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	if err := cmd.Start(); err != nil {
		return errors.Join(err, p.out[0].Close(), p.out[1].Close())
	}
	a.ranks[cmd.Process.Pid] = p
	p.readers.Go(func() { a.pass(p.out[0], func(text []byte) event { return event{Rank: rank, Out: text} }) })
	p.readers.Go(func() { a.pass(p.out[1], func(text []byte) event { return event{Rank: rank, Err: text} }) })
	return cmd.Process.Release() // reap waits for it
}

const (
	drainTimeout = time.Second // to read what a rank wrote before it ended
	longest      = 1 << 20     // longest line that is passed on whole
)

// pass sends on complete lines as they come, as many at once as there are. If the last line has no end, it gets one.
func (a *agent) pass(from *os.File, as func([]byte) event) {
	defer from.Close()
	r := bufio.NewReaderSize(from, 1<<16)
	var text []byte
	for {
		_, err := r.Peek(1)
		b, _ := r.Peek(r.Buffered())
		text = append(text, b...)
		_, _ = r.Discard(len(b)) // already in the buffer
		n := bytes.LastIndexByte(text, '\n') + 1
		if err != nil && n < len(text) {
			text, n = append(text, '\n'), len(text)+1
		}
		if n == 0 && len(text) >= longest {
			n = len(text)
		}
		if n > 0 {
			_ = a.send(as(text[:n])) // if it fails, the launcher is gone
			text = append(text[:0], text[n:]...)
		}
		if err != nil {
			return
		}
	}
}

// ofJob reports whether a variable belongs to the job around this one, if there is one.
func ofJob(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.Contains(ofRanks, name)
}

// addresses returns the addresses by which another host might reach this one.
func addresses() (list []string) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var six []string
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		of, _ := i.Addrs() // an interface that has just disappeared has none
		for _, a := range of {
			n, ok := a.(*net.IPNet)
			switch {
			case !ok || n.IP.IsLinkLocalUnicast():
			case n.IP.To4() != nil:
				list = append(list, n.IP.String())
			default:
				six = append(six, n.IP.String())
			}
		}
	}
	return append(list, six...)
}

// apart makes the terminal's signals go to the launcher only, which passes them on.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
