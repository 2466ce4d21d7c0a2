//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/internal/procfs"
)

// reply is the answer to a request. A request is a list of words.
type reply struct{ Text, Err string }

// serve answers requests while the login node lives.
func (n *node) serve() error {
	l, err := net.Listen("unix", filepath.Join(n.dir, "control"))
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				continue
			}
			go func() {
				defer c.Close()
				var words []string
				if json.NewDecoder(c).Decode(&words) != nil || len(words) == 0 {
					return
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				text, err := n.do(words[0], words[1:])
				r := reply{Text: text}
				if err != nil {
					r.Err = err.Error()
				}
				_ = json.NewEncoder(c).Encode(r) // if it fails, the client has left
			}()
		}
	}()
	return nil
}

// ask sends a request to a run.
func ask(id string, words []string) error {
	c, err := net.Dial("unix", filepath.Join(runs, id, "control"))
	if err != nil {
		return fmt.Errorf("run %q: %w", id, err)
	}
	defer c.Close()
	if err := json.NewEncoder(c).Encode(words); err != nil {
		return err
	}
	var r reply
	if err := json.NewDecoder(c).Decode(&r); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("run %q has ended", id)
		}
		return err
	}
	fmt.Print(r.Text)
	if r.Err != "" {
		return errors.New(r.Err)
	}
	return nil
}

func (n *node) do(word string, args []string) (string, error) {
	switch word {
	case "cut", "restore":
		return n.cut(args, word == "cut")
	case "mtu":
		return n.mtu(args)
	case "bytes":
		return n.bytes()
	}
	if len(args) == 0 {
		return "", errors.New("which host?")
	}
	h, err := n.find(args[0])
	if err != nil {
		return "", err
	}
	switch word {
	case "kill":
		return "", n.kill(h)
	case "pids":
		var b strings.Builder
		for _, p := range n.processes(h) {
			if p.there > 0 {
				fmt.Fprintln(&b, p.there)
			}
		}
		return b.String(), nil
	case "signal":
		if len(args) < 2 {
			return "", errors.New("which signal?")
		}
		return "", n.signal(h, args[1], args[2:])
	}
	return "", fmt.Errorf("no command %q", word)
}

// kill is a power cut: it cuts the links first, so that no packet tells of the dying processes.
func (n *node) kill(h int) error {
	for net := range n.Nets {
		if err := n.ip(loginHost, "link set %s down\n", port(net, h)); err != nil {
			return err
		}
	}
	if _, err := n.send(h, syscall.SIGKILL, nil); err != nil {
		return err
	}
	return n.holders[h].Process.Kill()
}

// process is a process of a host, by its id on the login node and on the host. there is 0 for nsenter's own processes,
// which wait for processes of the host.
type process struct{ here, there int }

// processes returns the processes in the host's network, except the first, which is no part of the job.
func (n *node) processes(h int) (all []process) {
	first := n.holders[h].Process.Pid
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", first))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == first {
			continue
		}
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || own != network {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(status), "NSpid:")
		line, _, _ := strings.Cut(rest, "\n")
		ids := strings.Fields(line)
		p := process{here: pid}
		if n.Shared || len(ids) > 1 {
			p.there, _ = strconv.Atoi(ids[len(ids)-1])
		}
		all = append(all, p)
	}
	return all
}

var signalNames = map[string]syscall.Signal{"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
	"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1}

// effect tells whether a signal has had its effect on a process, where no process can prevent it.
var effect = map[syscall.Signal]func(pid int) bool{syscall.SIGSTOP: procfs.Stopped, syscall.SIGKILL: procfs.Gone}

// effectLimit is how long that may take on a busy machine.
const effectLimit = time.Minute

func (n *node) signal(h int, name string, pids []string) error {
	s, ok := signalNames[strings.TrimPrefix(strings.ToUpper(name), "SIG")]
	if !ok {
		return fmt.Errorf("no signal %q", name)
	}
	found, err := n.send(h, s, pids)
	if err == nil && !found {
		err = fmt.Errorf("no such process on host %s", letter(h))
	}
	return err
}

// send sends a signal to the process with this id on the host, or to all of the host, and reports whether there were
// any. If it stops or kills, send returns when none of them runs any more: those that they start meanwhile get it, too.
// An nsenter stops itself when the process that it waits for stops, and has to be continued. send waits until it has:
// after SIGCONT it would stop for good.
func (n *node) send(h int, s syscall.Signal, pids []string) (found bool, err error) {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		var running []process
		for _, p := range n.processes(h) {
			mine := p.there > 0 && (len(pids) == 0 || pids[0] == fmt.Sprint(p.there))
			found = found || mine
			nsenter := p.there == 0 && (s == syscall.SIGCONT || s == syscall.SIGSTOP && len(pids) == 0)
			if !mine && !nsenter || effect[s] != nil && effect[s](p.here) {
				continue
			}
			running = append(running, p)
			if nsenter && s == syscall.SIGSTOP {
				continue
			}
			if err := syscall.Kill(p.here, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return found, err
			}
		}
		if effect[s] == nil || len(running) == 0 {
			return found, nil
		}
		if time.Since(begin) > effectLimit {
			return found, fmt.Errorf("%v: still running after %v: %v", s, effectLimit, running)
		}
	}
}
