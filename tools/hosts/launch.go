//go:build linux

package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// enter returns the command that runs another one on a host, in this folder; argv[0] is nsenter.
func (n *node) enter(h, pid int, command ...string) []string {
	args := []string{"nsenter", "-t", fmt.Sprint(pid), "-n", "-u", "-i", "-m"}
	if !n.Shared {
		args = append(args, "-p")
	}
	args = append(args, "--")
	if n.Cores {
		args = append(args, "taskset", "-c", fmt.Sprint(h%runtime.NumCPU()))
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	return append(append(args, "sh", "-c", `cd "$0" && exec "$@"`, dir), command...)
}

// settings returns a host's variables.
func (n *node) settings(h int) (vars []string) {
	for _, s := range n.Set {
		if at, v, _ := strings.Cut(s, ":"); at == letter(h) {
			vars = append(vars, v)
		}
	}
	return vars
}

// commands returns what to start on the login node: a launcher or, without one, each process of the job.
func (n *node) commands() ([]*exec.Cmd, error) {
	text, err := json.Marshal(n.plan)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "plan"), text, 0o600); err != nil { // read by agents
		return nil, err
	}
	switch n.MPI {
	case "openmpi":
		return []*exec.Cmd{n.openmpi()}, nil
	case "mpich":
		return []*exec.Cmd{n.mpich()}, nil
	case "none":
		return []*exec.Cmd{exec.Command(n.Command[0], n.Command[1:]...)}, nil
	}
	return n.env(), nil
}

// rendezvous is the port of rank 0 in jobs without MPI. The network is the run's own, so the port is free.
const rendezvous = 7077

func (n *node) env() (cmds []*exec.Cmd) {
	var secret [16]byte
	rand.Read(secret[:])
	order := n.order()
	for r, h := range order {
		argv := n.enter(h, n.holders[h].Process.Pid, n.Command...)
		c := exec.Command(argv[0], argv[1:]...)
		c.Env = append(os.Environ(), fmt.Sprint("UBCOLL_RANK=", r), fmt.Sprint("UBCOLL_SIZE=", len(order)),
			fmt.Sprintf("UBCOLL_RENDEZVOUS=%s:%d", n.hostname(order[0]), rendezvous),
			"UBCOLL_SECRET="+hex.EncodeToString(secret[:]))
		c.Env = append(c.Env, n.settings(h)...)
		cmds = append(cmds, c)
	}
	return cmds
}

// mpirun returns the launcher of an MPI: $MPIRUN, or Debian's name for it.
func mpirun(name string) string {
	if s := os.Getenv("MPIRUN"); s != "" {
		return s
	}
	return "mpirun." + name
}

// openmpi returns the command for Open MPI's mpirun with the agent instead of ssh. Its own traffic uses the first
// network.
func (n *node) openmpi() *exec.Cmd {
	var hosts []string
	for h, k := range n.Ranks {
		if k > 0 {
			hosts = append(hosts, fmt.Sprintf("%s:%d", n.hostname(h), k))
		}
	}
	order := "slot"
	if n.Cyclic {
		order = "node"
	}
	const net = "10.77.0.0/24"
	args := []string{"--mca", "plm", "rsh", "--mca", "plm_rsh_agent", filepath.Join(n.dir, agentName),
		"--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net,
		"--mca", "pml", "ob1", "--bind-to", "none", "--map-by", order, "--host", strings.Join(hosts, ","), "-n", fmt.Sprint(len(n.order()))}
	c := exec.Command(mpirun("openmpi"), append(args, n.Command...)...)
	c.Env = os.Environ()
	for _, v := range []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_btl=tcp,vader,self",
		"OMPI_MCA_btl_vader_single_copy_mechanism=none"} {
		c.Env = preset(c.Env, v)
	}
	if !n.Cores {
		c.Env = preset(c.Env, "OMPI_MCA_mpi_yield_when_idle=1")
	}
	return c
}

// mpich is the same for Hydra. With UCX its ranks use TCP, also within a host.
func (n *node) mpich() *exec.Cmd {
	var hosts []string
	for _, h := range n.order() {
		hosts = append(hosts, n.hostname(h)+":1")
	}
	args := []string{"-launcher", "ssh", "-launcher-exec", filepath.Join(n.dir, agentName),
		"-hosts", strings.Join(hosts, ","), "-n", fmt.Sprint(len(hosts))}
	c := exec.Command(mpirun("mpich"), append(args, n.Command...)...)
	c.Env = os.Environ()
	for _, v := range []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0", "MPIR_CVAR_NOLOCAL=1"} {
		c.Env = preset(c.Env, v)
	}
	return c
}

// preset adds a variable unless it is set.
func preset(env []string, v string) []string {
	name, _, _ := strings.Cut(v, "=")
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return env
		}
	}
	return append(env, v)
}

// agent is what launchers call instead of ssh: [options] host command. The words of the command make one line for the
// shell.
func agent(args []string) error {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	dir := os.Getenv(runVar)
	if len(args) < 2 || dir == "" {
		return errors.New("agent: want HOST COMMAND, and " + runVar)
	}
	n := &node{plan: &plan{}, dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, "plan"))
	if err == nil {
		err = json.Unmarshal(text, n.plan)
	}
	if err != nil {
		return err
	}
	pids, err := os.ReadFile(filepath.Join(dir, "pids"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(pids)) {
		var name string
		var pid, h int
		if _, err := fmt.Sscan(line, &name, &pid, &h); err != nil || name != args[0] {
			continue
		}
		argv := n.enter(h, pid, "sh", "-c", strings.Join(args[1:], " "))
		path, err := exec.LookPath(argv[0])
		if err != nil {
			return err
		}
		return syscall.Exec(path, argv, append(os.Environ(), n.settings(h)...))
	}
	return fmt.Errorf("agent: no host %q", args[0])
}
