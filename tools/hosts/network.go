//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// The names of links. A host's own end is eth0 and so on; the other end is a port of the network's bridge.
func bridge(net int) string     { return fmt.Sprintf("br%d", net) }
func port(net, host int) string { return fmt.Sprintf("port%s%d", letter(host), net) }
func eth(net int) string        { return fmt.Sprintf("eth%d", net) }

// ip runs lines of ip commands on the login node, or on a host.
func (n *node) ip(host int, format string, args ...any) error {
	cmd := exec.Command("ip", "-batch", "-")
	if host != loginHost {
		cmd = exec.Command("nsenter", "-t", fmt.Sprint(n.holders[host].Process.Pid), "-n", "ip", "-batch", "-")
	}
	lines := fmt.Sprintf(format, args...)
	cmd.Stdin = strings.NewReader(lines)
	if n.Verbose {
		fmt.Fprintf(os.Stderr, "hosts: on %s: ip %s\n", letterOrLogin(host), strings.ReplaceAll(strings.TrimSpace(lines), "\n", "; "))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.ReplaceAll(strings.TrimSpace(lines), "\n", "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

func letterOrLogin(host int) string {
	if host == loginHost {
		return "login"
	}
	return letter(host)
}

// makeNetworks connects every host to a bridge for each network. TCP uses cubic, whatever this machine's default is.
// The routes say so, since a namespace may not choose another default.
func (n *node) makeNetworks() error {
	if err := n.ip(loginHost, "link set lo up\n"); err != nil {
		return err
	}
	for net := range n.Nets {
		err := n.ip(loginHost, "link add %[1]s type bridge forward_delay 0\nlink set %[1]s mtu %[2]d up\n"+
			"addr add %[3]s/24 dev %[1]s\naddr add %[4]s/64 dev %[1]s nodad\n"+
			"route replace 10.77.%[5]d.0/24 dev %[1]s src %[3]s congctl cubic\n",
			bridge(net), n.MTU, address(net, loginHost), address6(net, loginHost), net)
		if err != nil {
			return err
		}
	}
	for h := range n.Hosts {
		if err := n.ip(h, "link set lo up\n"); err != nil {
			return err
		}
		for net := range n.Nets {
			if err := n.makeLink(net, h); err != nil {
				return fmt.Errorf("%s of host %s: %w", eth(net), letter(h), err)
			}
		}
	}
	for _, b := range n.Before {
		words := strings.Fields(b)
		if len(words) == 0 {
			continue
		}
		if _, err := n.do(words[0], words[1:]); err != nil {
			return exit{2, fmt.Errorf("-before %q: %w", b, err)}
		}
	}
	return nil
}

func (n *node) makeLink(net, h int) error {
	pid := n.holders[h].Process.Pid
	var err error
	if n.Delay > 0 || n.Loss > 0 {
		err = n.makeRelay(net, h)
	} else {
		err = n.ip(loginHost, "link add %s type veth peer name %s netns %d\n", port(net, h), eth(net), pid)
	}
	if err != nil {
		return err
	}
	if err := n.ip(loginHost, "link set %[1]s mtu %[2]d master %[3]s up\n", port(net, h), n.MTU, bridge(net)); err != nil {
		return err
	}
	err = n.ip(h, "link set %[1]s mtu %[2]d up\naddr add %[3]s/24 dev %[1]s\naddr add %[4]s/64 dev %[1]s nodad\n"+
		"route replace 10.77.%[5]d.0/24 dev %[1]s src %[3]s congctl cubic\n"+
		"route replace fd77:0:0:%[6]d::/64 dev %[1]s src %[4]s congctl cubic\n",
		eth(net), n.MTU, address(net, h), address6(net, h), net, net+1)
	if err != nil || n.Rates == nil {
		return err
	}
	rate := n.Rates[net]
	shape := append([]string{"root", "tbf", "rate", rate, "latency", fmt.Sprintf("%dus", n.Queue.Microseconds()), "burst"}, n.burst(rate))
	if err := tc(exec.Command("tc", append([]string{"qdisc", "replace", "dev", port(net, h)}, shape...)...)); err != nil {
		return err
	}
	return tc(exec.Command("nsenter", append([]string{"-t", fmt.Sprint(pid), "-n", "tc", "qdisc", "replace", "dev", eth(net)}, shape...)...))
}

func tc(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// burst returns what may pass at once. In 4 ms, a tick of many kernels, the rate is reached everywhere. With less, only where
// timers are finer, but then short messages, too, take as long as the rate says.
func (n *node) burst(rate string) string {
	if n.Burst > 0 {
		return fmt.Sprint(n.Burst)
	}
	return fmt.Sprint(max(64<<10, int(bitsPerSecond(rate)/8*0.004)))
}

// bitsPerSecond parses a rate as tc does; 0 if it is none.
func bitsPerSecond(rate string) float64 {
	digits := strings.TrimRight(strings.ToLower(rate), "abcdefghijklmnopqrstuvwxyz")
	x, err := strconv.ParseFloat(digits, 64)
	unit, ok := map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[strings.ToLower(rate[len(digits):])]
	if err != nil || !ok {
		return 0
	}
	return x * unit
}

// nowhere is a hardware address that nobody has: frames to it are silently lost.
const nowhere = "02:00:00:00:77:77"

// cut cuts a host's link, or one direction of it, or its packets to one other host; or restores it. Without a direction
// the host loses its carrier, as when a cable is pulled; else packets vanish, as in a switch.
func (n *node) cut(args []string, lost bool) (string, error) {
	if len(args) == 0 {
		return "", fmt.Errorf("which host?")
	}
	h, err := n.find(args[0])
	if err != nil {
		return "", err
	}
	net, which := 0, ""
	for _, a := range args[1:] {
		if i, err := strconv.Atoi(a); err == nil {
			net = i
		} else {
			which = a
		}
	}
	if net < 0 || net >= n.Nets {
		return "", fmt.Errorf("no network %d of %d", net, n.Nets)
	}
	if which == "" {
		return "", n.ip(loginHost, "link set %s %s\n", port(net, h), map[bool]string{true: "down", false: "up"}[lost])
	}
	var pairs [][2]int // sender, receiver
	for o := range n.Hosts {
		switch {
		case o == h:
		case which == "out", which == letter(o):
			pairs = append(pairs, [2]int{h, o})
		case which == "in":
			pairs = append(pairs, [2]int{o, h})
		}
	}
	if pairs == nil {
		return "", fmt.Errorf("%q: want in, out, or another host", which)
	}
	for _, p := range pairs {
		for _, to := range []string{address(net, p[1]), address6(net, p[1])} {
			if lost {
				err = n.ip(p[0], "neigh replace %s lladdr %s dev %s nud permanent\n", to, nowhere, eth(net))
			} else {
				err = n.ip(p[0], "neigh del %s dev %s\n", to, eth(net))
			}
			if err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// mtu changes what fits through the switch's end of a link without telling either end. It also turns off segmentation
// offload at the hosts' own ends: a link of this kind would pass such packets at any size.
func (n *node) mtu(args []string) (string, error) {
	if len(args) < 2 {
		return "", fmt.Errorf("want a host and a number of bytes")
	}
	h, err := n.find(args[0])
	size, err2 := strconv.Atoi(args[1])
	net := 0
	var err3 error
	if len(args) > 2 {
		net, err3 = strconv.Atoi(args[2])
	}
	if err != nil || err2 != nil || err3 != nil || net < 0 || net >= n.Nets {
		return "", fmt.Errorf("%v: want a host, a number of bytes, and a network or none", args)
	}
	for o := range n.Hosts {
		if err := n.ip(o, "link set %s gso_max_segs 1\n", eth(net)); err != nil {
			return "", err
		}
	}
	return "", n.ip(loginHost, "link set %s mtu %d\n", port(net, h), size)
}

// bytes returns the counters of each host's links.
func (n *node) bytes() (string, error) {
	var b strings.Builder
	for h, c := range n.holders {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", c.Process.Pid))
		if err != nil {
			continue // that host is dead
		}
		for line := range strings.Lines(string(text)) {
			name, counts, ok := strings.Cut(line, ":")
			if f := strings.Fields(counts); ok && strings.HasPrefix(strings.TrimSpace(name), "eth") && len(f) > 8 {
				fmt.Fprintln(&b, letter(h), strings.TrimSpace(name), f[0], f[8])
			}
		}
	}
	return b.String(), nil
}
