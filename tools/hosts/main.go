//go:build linux

// Command hosts makes several hosts on this machine, runs a command across them, and removes them again. A host is a
// set of namespaces: its own network, host name, processes, IPC, /dev/shm and /etc/hosts. scripts/hosts builds and
// starts it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/usage"
)

const usageText = `usage: hosts N [options] -- COMMAND [ARGS]
       hosts cut ID HOST [in|out|HOST] [NET]      lose its link, or one direction, or what it sends to another host
       hosts restore ID HOST [in|out|HOST] [NET]
       hosts mtu ID HOST BYTES [NET]              what the switch takes from its link and sends over it
       hosts kill ID HOST                         as by a power cut: no packet tells of it
       hosts signal ID HOST SIGNAL [PID]          to a process, by its id on that host, or to all of the host; returns when
                                                  those that STOP stops, or KILL kills, no longer run
       hosts bytes ID                             lines of host, interface, bytes received, bytes sent
       hosts pids ID HOST                         the processes of a host, by their ids there

The hosts are a, b, c and so on, their names ID-hosta and so on; NET is 0, or 1 for the second network. Who runs the
command is the login node, which is on the networks and has no ranks. Addresses are 10.77.NET.1 and on, fd77:0:0:NET+1::1 and
on. An ID is taken from this process unless -name gives one. The exit code is the command's. 77 says that this machine
cannot do it, and nothing else: a command's own 77 becomes 1.

`

// cannot is the exit code on a machine that cannot make hosts.
const cannot = 77

// plan is what to make and run.
type plan struct {
	ID      string
	Hosts   int
	MPI     string
	Ranks   []int
	Cyclic  bool
	Nets    int
	Rates   []string // of each network; nil: as fast as they go
	Queue   time.Duration
	Burst   int
	Delay   time.Duration
	Loss    float64
	MTU     int
	Cores   bool
	Shared  bool
	Before  []string
	Set     []string // HOST:NAME=VALUE
	Resolve []string // HOST=ADDRESS
	Bytes   string
	Verbose bool
	Command []string
}

func init() {
	runtime.LockOSThread() // Pdeathsig is sent when the thread that made the child ends: the main thread does not
}

func main() {
	if filepath.Base(os.Args[0]) == agentName {
		os.Exit(end(agent(os.Args[1:])))
	}
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usageText, "hosts: how many hosts? -h lists the options, too\n")
		os.Exit(2)
	}
	switch word := os.Args[1]; word {
	case "login": // pid 1 of the login node
		os.Exit(end(login(os.Args[2:])))
	case "host": // pid 1 of a host
		os.Exit(end(host(os.Args[2:])))
	case "cut", "restore", "mtu", "kill", "signal", "bytes", "pids":
		if len(os.Args) < 3 {
			fmt.Fprintf(os.Stderr, "%shosts: %s of which run? Its ID is the one of -name\n", usageText, word)
			os.Exit(2)
		}
		if strings.HasPrefix(os.Args[2], "-") { // -h
			break
		}
		os.Exit(end(ask(os.Args[2], append([]string{word}, os.Args[3:]...))))
	}
	p, err := parse(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "hosts: %v\n", err)
		os.Exit(2)
	}
	os.Exit(end(run(p)))
}

// exit is an error with an exit code.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string { return fmt.Sprint(e.err) }

func end(err error) int {
	var e exit
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &e):
		e = exit{1, err}
	}
	if e.err != nil {
		fmt.Fprintf(os.Stderr, "hosts: %v\n", e.err)
	}
	return e.code
}

// parse parses "N [options] -- COMMAND [ARGS]". If the user asks for help, parse writes the usage and the options to help
// and returns flag.ErrHelp.
func parse(args []string, help io.Writer) (*plan, error) {
	p := &plan{ID: "ub" + strconv.FormatInt(int64(os.Getpid()), 36)} // at most 2^22: 5 digits
	f := flag.NewFlagSet("hosts", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&p.ID, "name", p.ID, "the `ID` of the run: letters and digits, 7 at most")
	f.StringVar(&p.MPI, "mpi", "env", "openmpi, mpich, env (the processes of a job without MPI), or none: on the login node, once")
	ranks := f.String("ranks", "", "ranks of each host, as `2,2` (1 each)")
	mapping := f.String("map", "block", "block: the first host's ranks come first; or cyclic")
	f.IntVar(&p.Nets, "nets", 1, "how many networks each host is on: eth0, eth1")
	f.IntVar(&p.Burst, "burst", 0, "the bytes that -rate lets through at once (those of 4ms)")
	rates := f.String("rate", "", "of each link and direction, as tc has it: `1gbit`, or one for each network: 1gbit,100mbit")
	f.DurationVar(&p.Queue, "queue", 50*time.Millisecond, "how long a packet waits at most for what -rate lets through; others are lost")
	f.DurationVar(&p.Delay, "delay", 0, "of each link and direction")
	f.Float64Var(&p.Loss, "loss", 0, "the share of frames that each link and direction loses")
	f.IntVar(&p.MTU, "mtu", 1500, "of every link")
	f.BoolVar(&p.Cores, "cores", false, "a core for each host")
	f.BoolVar(&p.Shared, "shared-pids", false, "the hosts see each other's processes")
	list := func(to *[]string, name, doc string) {
		f.Func(name, doc, func(s string) error { *to = append(*to, s); return nil })
	}
	list(&p.Before, "before", "what happens to the hosts before anything runs, as `\"cut b in 1\"`; may be repeated")
	list(&p.Set, "set", "a variable for one host, as `b:NAME=VALUE`; may be repeated")
	list(&p.Resolve, "resolve", "another address for a host's name, as `b=10.77.0.9`; may be repeated")
	f.StringVar(&p.Bytes, "bytes", "", "a `file` for what the command bytes says when the command has ended")
	f.BoolVar(&p.Verbose, "v", false, "say what is made")
	count := ""
	if !strings.HasPrefix(args[0], "-") {
		count, args = args[0], args[1:]
	}
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(help, usageText)
		f.SetOutput(help)
		f.PrintDefaults()
		return nil, err
	}
	if err != nil {
		return nil, usage.Flag(f, err)
	}
	if count == "" {
		return nil, errors.New("how many hosts? The number comes before the options")
	}
	if p.Hosts, err = strconv.Atoi(count); err != nil || p.Hosts < 1 || p.Hosts > 26 {
		return nil, fmt.Errorf("%q: want a number of hosts from 1 to 26, or a command (-h lists them)", count)
	}
	p.Command, p.Cyclic = f.Args(), *mapping == "cyclic"
	for i, s := range strings.Split(*ranks, ",") {
		n, err := 1, error(nil)
		if *ranks != "" {
			n, err = strconv.Atoi(s)
		}
		if err != nil || n < 0 || i >= p.Hosts {
			return nil, fmt.Errorf("-ranks %s: want a number for each of %d hosts", *ranks, p.Hosts)
		}
		p.Ranks = append(p.Ranks, n)
	}
	for *ranks == "" && len(p.Ranks) < p.Hosts {
		p.Ranks = append(p.Ranks, 1)
	}
	total := 0
	for _, n := range p.Ranks {
		total += n
	}
	if *rates != "" {
		p.Rates = strings.Split(*rates, ",")
	}
	if len(p.Rates) == 1 {
		p.Rates = slices.Repeat(p.Rates, p.Nets)
	}
	slow := func(rate string) bool { return bitsPerSecond(rate) <= 0 }
	switch {
	case len(p.Command) == 0:
		return nil, errors.New("no command")
	case len(p.Ranks) != p.Hosts:
		return nil, fmt.Errorf("-ranks %s: want a number for each of %d hosts", *ranks, p.Hosts)
	case total == 0:
		return nil, fmt.Errorf("-ranks %s: want a rank", *ranks)
	case *mapping != "block" && *mapping != "cyclic":
		return nil, fmt.Errorf("-map %s: want block or cyclic", *mapping)
	case p.MPI != "openmpi" && p.MPI != "mpich" && p.MPI != "env" && p.MPI != "none":
		return nil, fmt.Errorf("-mpi %s: want openmpi, mpich, env or none", p.MPI)
	case p.Nets < 1 || p.Nets > 4:
		return nil, fmt.Errorf("-nets %d: want 1 to 4", p.Nets)
	case p.Burst != 0 && p.Burst < p.MTU+100:
		return nil, fmt.Errorf("-burst %d: want %d or more, a packet", p.Burst, p.MTU+100)
	case slices.ContainsFunc(p.Rates, slow):
		return nil, fmt.Errorf("-rate %s: want a number and kbit, mbit or gbit", *rates)
	case p.Rates != nil && len(p.Rates) != p.Nets:
		return nil, fmt.Errorf("-rate %s: want one rate, or one for each of %d networks", *rates, p.Nets)
	case p.Queue < time.Millisecond:
		return nil, fmt.Errorf("-queue %v: want 1ms or more", p.Queue)
	case p.Delay < 0:
		return nil, fmt.Errorf("-delay %v: want 0 or more", p.Delay)
	case p.Loss < 0 || p.Loss > 1:
		return nil, fmt.Errorf("-loss %v: want 0 to 1", p.Loss)
	case len(p.ID) > 7 || p.ID == "" || strings.Trim(p.ID, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
		return nil, fmt.Errorf("-name %q: want letters and digits, 7 at most", p.ID)
	}
	for _, s := range p.Set {
		host, v, _ := strings.Cut(s, ":")
		if name, _, ok := strings.Cut(v, "="); !p.has(host) || !ok || name == "" {
			return nil, fmt.Errorf("-set %s: want HOST:NAME=VALUE, HOST one letter of %d", s, p.Hosts)
		}
	}
	for _, s := range p.Resolve {
		host, at, _ := strings.Cut(s, "=")
		if _, err := netip.ParseAddr(at); !p.has(host) || err != nil {
			return nil, fmt.Errorf("-resolve %s: want HOST=ADDRESS, HOST one letter of %d", s, p.Hosts)
		}
	}
	return p, nil
}

// order returns the host of each rank.
func (p *plan) order() (hosts []int) {
	left := append([]int(nil), p.Ranks...)
	for h := 0; ; h = (h + 1) % p.Hosts {
		total := 0
		for _, n := range left {
			total += n
		}
		switch {
		case total == 0:
			return hosts
		case !p.Cyclic:
			for ; left[h] > 0; left[h]-- {
				hosts = append(hosts, h)
			}
		case left[h] > 0:
			left[h]--
			hosts = append(hosts, h)
		}
	}
}

func letter(h int) string             { return string(rune('a' + h)) }
func (p *plan) hostname(h int) string { return p.ID + "-host" + letter(h) }
func (p *plan) loginname() string     { return p.ID + "-login" }

// has reports whether name is a host's letter.
func (p *plan) has(name string) bool {
	return len(name) == 1 && name >= letter(0) && name < letter(p.Hosts)
}

// find returns the number of a host, by its letter or name.
func (p *plan) find(name string) (int, error) {
	for h := range p.Hosts {
		if name == letter(h) || name == p.hostname(h) || name == "host"+letter(h) {
			return h, nil
		}
	}
	return 0, fmt.Errorf("no host %q of %d", name, p.Hosts)
}

func address(net, host int) string  { return fmt.Sprintf("10.77.%d.%d", net, host+1) }
func address6(net, host int) string { return fmt.Sprintf("fd77:0:0:%d::%d", net+1, host+1) }

// loginHost stands for the login node in addresses.
const loginHost = 253
