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
	"syscall"
	"time"
)

// runs is where each run has its folder, with its hosts file and its socket. The process that made the folder holds a
// lock on it (flock), which ends with that process. Nothing else of a run outlives its processes: namespaces and links
// belong to them, and none of them outlives the first process of the login node.
const runs = "/run/ubcoll-hosts"

const (
	agentName = "agent" // launchers find this program by this name
	runVar    = "HOSTS_RUN"
)

const apart = syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC

// run makes the login node, which does the rest, and cleans up after it.
func run(p *plan) error {
	if os.Geteuid() != 0 {
		return exit{cannot, errors.New("making hosts needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")}
	}
	for _, tool := range []string{"ip", "tc", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return exit{cannot, fmt.Errorf("%w: install iproute2 and util-linux", err)}
		}
	}
	if err := os.MkdirAll(runs, 0o700); err != nil {
		return exit{cannot, err}
	}
	held, err := claim(runs, p.ID)
	if err != nil {
		return err
	}
	defer held.Close()
	dir := held.Name()
	defer os.RemoveAll(dir)
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	cmd := exec.Command("/proc/self/exe", "login", dir, string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: apart | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return exit{cannot, fmt.Errorf("this machine makes no namespaces: %w", err)}
	}
	ended := make(chan struct{})
	defer close(ended)
	caught := make(chan syscall.Signal, 1)
	go func() {
		for {
			select {
			case s := <-signals:
				select {
				case caught <- s.(syscall.Signal):
					time.AfterFunc(patience+time.Second, func() { cmd.Process.Kill() })
				default:
				}
				cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait() // ends when all processes of all hosts have
	select {
	case s := <-caught:
		return exit{128 + int(s), fmt.Errorf("%v: all hosts are removed", s)}
	default:
	}
	var e *exec.ExitError
	if errors.As(err, &e) {
		if e.ExitCode() < 0 {
			return fmt.Errorf("the login node: %w", err)
		}
		return exit{e.ExitCode(), nil} // it has said why
	}
	return err
}

// claim makes the folder of a run, locked, and removes those that killed runs have left. Only one process does this at
// a time, so nobody sees a folder before it is locked.
func claim(in, id string) (*os.File, error) {
	all, err := lock(in, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	entries, err := os.ReadDir(in)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if left, err := lock(filepath.Join(in, e.Name()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			os.RemoveAll(left.Name())
			left.Close()
		}
	}
	dir := filepath.Join(in, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the name is taken: %w", err)
	}
	return lock(dir, syscall.LOCK_EX|syscall.LOCK_NB)
}

// lock opens a folder and locks it until it is closed.
func lock(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
