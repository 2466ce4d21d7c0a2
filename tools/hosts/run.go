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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runs is where each run has its folder: who made it, its hosts file, its socket. Nothing else of a run outlives its
// processes: namespaces and links are nobody's but theirs, and none of them outlives the login node's first.
const runs = "/run/ubcoll-hosts"

const (
	agentName = "agent" // the name by which launchers find this program
	runVar    = "HOSTS_RUN"
)

const apart = syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC

// run makes the login node, which does the rest, and tidies up behind it.
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
	sweep()
	dir := filepath.Join(runs, p.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("the name is taken: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "owner"), []byte(identity(os.Getpid())), 0o600); err != nil {
		return err
	}
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
		return exit{e.ExitCode(), nil} // which has said why
	}
	return err
}

// sweep removes what runs have left that were killed.
func sweep() {
	dirs, _ := os.ReadDir(runs)
	for _, d := range dirs {
		name := filepath.Join(runs, d.Name())
		b, err := os.ReadFile(filepath.Join(name, "owner"))
		if err != nil { // made just now, or being removed
			if i, err := d.Info(); err != nil || time.Since(i.ModTime()) < time.Minute {
				continue
			}
		}
		pid, _ := strconv.Atoi(strings.Fields(string(b) + " 0")[0])
		if pid == 0 || identity(pid) != string(b) {
			os.RemoveAll(name)
		}
	}
}

// identity is a process's id and when it began, which no other process has.
func identity(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if err != nil || !ok || len(f) < 20 {
		return ""
	}
	return fmt.Sprint(pid, " ", f[19])
}
