//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a command has to end after a signal.
const patience = 3 * time.Second

// node is the login node. The switches of all networks are in its network namespace, and the hosts' processes in its
// pid namespace: when its first process ends, all end.
type node struct {
	*plan
	dir     string
	exe     string
	mu      sync.Mutex // held while a request is answered
	holders []*exec.Cmd
}

// login is the first process of the login node.
func login(args []string) error {
	n := &node{plan: &plan{}, dir: args[0]}
	if err := json.Unmarshal([]byte(args[1]), n.plan); err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := n.make(); err != nil {
		if _, ok := errors.AsType[exit](err); ok {
			return err
		}
		return exit{cannot, fmt.Errorf("this machine cannot make the hosts: %w", err)}
	}
	cmds, err := n.commands()
	if err != nil {
		return err
	}
	type ending struct {
		cmd *exec.Cmd
		err error
	}
	endings := make(chan ending, len(cmds))
	for _, c := range cmds {
		if c.Env == nil {
			c.Env = os.Environ()
		}
		c.Env = append(c.Env, runVar+"="+n.dir)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if len(cmds) == 1 {
			c.Stdin = os.Stdin
		}
		if err := c.Start(); err != nil {
			return err
		}
		go func() { endings <- ending{c, c.Wait()} }()
	}
	var first error
	var late <-chan time.Time
	for left := len(cmds); left > 0; {
		select {
		case e := <-endings:
			left--
			if e.err != nil && first == nil {
				first = e.err
			}
		case s := <-signals:
			if late != nil {
				break
			}
			late = time.After(patience)
			for _, c := range cmds {
				c.Process.Signal(s)
			}
		case <-late:
			return errors.New("the command does not end")
		}
	}
	n.mu.Lock() // a request that has ended the command is answered first
	if n.Bytes != "" {
		text, err := n.bytes()
		if err == nil {
			err = os.WriteFile(n.Bytes, []byte(text), 0o644)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	var e *exec.ExitError
	if errors.As(first, &e) {
		if s := e.Sys().(syscall.WaitStatus); s.Signaled() {
			return exit{128 + int(s.Signal()), nil}
		}
		if e.ExitCode() == cannot {
			return fmt.Errorf("the command has ended with exit code %d, which here is for machines that make no hosts", cannot)
		}
		return exit{e.ExitCode(), nil}
	}
	return first
}

// make makes all hosts and their networks.
func (n *node) make() error {
	var err error
	if n.exe, err = os.Readlink("/proc/self/exe"); err != nil {
		return err
	}
	if err := os.Symlink(n.exe, filepath.Join(n.dir, agentName)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "hosts"), []byte(n.hostsFile()), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "resolv.conf"), nil, 0o644); err != nil {
		return err
	}
	if err := setUp(n.dir, n.loginname(), true); err != nil {
		return err
	}
	if err := n.makeHolders(); err != nil {
		return err
	}
	if err := n.makeNetworks(); err != nil {
		return err
	}
	return n.serve()
}

// makeHolders starts each host's first process.
func (n *node) makeHolders() error {
	var pids strings.Builder
	for h := range n.Hosts {
		c := exec.Command("/proc/self/exe", "host", n.dir, n.hostname(h), fmt.Sprint(n.Shared))
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: apart}
		if !n.Shared {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
		}
		c.Stderr = os.Stderr
		ready, err := c.StdoutPipe()
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		if k, err := ready.Read(make([]byte, 1)); k != 1 {
			return fmt.Errorf("host %s: %v: %w", letter(h), c.Wait(), err)
		}
		n.holders = append(n.holders, c)
		fmt.Fprintln(&pids, n.hostname(h), c.Process.Pid, h)
	}
	return os.WriteFile(filepath.Join(n.dir, "pids"), []byte(pids.String()), 0o600)
}

func (n *node) hostsFile() string {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1 localhost\n::1 localhost\n%s %s\n", address(0, loginHost), n.loginname())
	for h := range n.Hosts {
		at := address(0, h)
		for _, r := range n.Resolve {
			if name, to, _ := strings.Cut(r, "="); name == letter(h) {
				at = to
			}
		}
		fmt.Fprintf(&b, "%s %s host%s\n", at, n.hostname(h), letter(h))
	}
	return b.String()
}

// setUp sets up what a host has of its own besides its network, in the namespaces whose first process this is.
func setUp(dir, name string, ownPIDs bool) error {
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if ownPIDs {
		if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("/proc: %w", err)
		}
	}
	if err := syscall.Mount("shm", "/dev/shm", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("/dev/shm: %w", err)
	}
	if err := syscall.Mount(filepath.Join(dir, "hosts"), "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("/etc/hosts: %w", err)
	}
	// Names are not looked up at a server that these hosts cannot reach. A machine without the file has no server to
	// ask.
	_ = syscall.Mount(filepath.Join(dir, "resolv.conf"), "/etc/resolv.conf", "", syscall.MS_BIND, "")
	return nil
}

// host is the first process of a host: it holds the namespaces, and reaps dead processes.
func host(args []string) error {
	dir, name, shared := args[0], args[1], args[2] == "true"
	if err := setUp(dir, name, !shared); err != nil {
		return err
	}
	os.Stdout.WriteString(".")
	os.Stdout.Close()
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, syscall.SIGCHLD)
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	for range dead {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}
