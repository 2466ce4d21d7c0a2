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

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Agent runs the ranks of one host, as the launcher orders over in and out. It returns when all have ended. If in ends,
// the launcher is gone, however it died: then the ranks get SIGTERM, and SIGKILL after the grace period. If the agent
// dies, the kernel kills its ranks.
func Agent(in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // for Pdeathsig, a rank's parent is the thread that started it
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	a := agent{out: json.NewEncoder(out), ended: make(chan int)}
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
	a.startAll(s)
	var kill <-chan time.Time
	leave := func() {
		a.signal(syscall.SIGTERM)
		kill = time.After(s.Grace)
	}
	for a.running() {
		select {
		case i := <-a.ended:
			a.pids[i] = 0
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
		}
	}
	return nil
}

// agent has the ranks of one host. Only its own goroutine touches pids.
type agent struct {
	mu    sync.Mutex
	out   *json.Encoder
	pids  []int // 0 = the rank has ended, or never started
	ended chan int
}

func (a *agent) send(v any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.Encode(v)
}

func (a *agent) running() bool {
	return slices.ContainsFunc(a.pids, func(pid int) bool { return pid != 0 })
}

// signal sends s to the ranks and to the processes that they have started.
func (a *agent) signal(s syscall.Signal) {
	for _, pid := range a.pids {
		if pid != 0 {
			_ = syscall.Kill(-pid, s) // the rank may have ended just now
		}
	}
}

// startAll starts the ranks. A rank that cannot start is reported as ended, with a reason.
func (a *agent) startAll(s start) {
	err := os.Chdir(s.Dir)
	for i := range s.Ranks {
		rank := s.First + i
		pid := 0
		if err == nil {
			pid, err = a.start(i, rank, s)
		}
		if err != nil {
			_ = a.send(event{Rank: rank, Ended: true, Code: startCode(err), Fault: err.Error()}) // there is nobody else to tell
		}
		a.pids = append(a.pids, pid)
	}
}

// startCode returns a shell's exit code: 127 if there is no such program, 126 if it cannot be run.
func startCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

func (a *agent) start(i, rank int, s start) (pid int, err error) {
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Env = append(append(slices.DeleteFunc(os.Environ(), ofJob), s.Env...),
		bootstrap.EnvVars(rank, s.Size, s.Rendezvous, s.Secret)...)
	// A process group of its own: signals reach all processes that the rank starts, and the terminal's signals go to
	// the launcher only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var ours, theirs [2]*os.File
	for k := range ours {
		if ours[k], theirs[k], err = os.Pipe(); err != nil {
			return 0, err
		}
		defer theirs[k].Close()
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(err, ours[0].Close(), ours[1].Close())
	}
	var readers sync.WaitGroup
	readers.Go(func() { a.pass(ours[0], func(text []byte) event { return event{Rank: rank, Out: text} }) })
	readers.Go(func() { a.pass(ours[1], func(text []byte) event { return event{Rank: rank, Err: text} }) })
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for _, f := range ours { // processes that left the group may still hold the other end
			_ = f.SetReadDeadline(time.Now().Add(lastWords))
		}
		readers.Wait()
		e := event{Rank: rank, Ended: true, Code: cmd.ProcessState.ExitCode()}
		if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			e.Code, e.Signal = 128+int(w.Signal()), w.Signal().String()
		}
		_ = a.send(e)
		a.ended <- i
	}()
	return cmd.Process.Pid, nil
}

const (
	lastWords = time.Second // to read what a rank wrote before it ended
	longest   = 1 << 20     // longest line that is passed on whole
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
