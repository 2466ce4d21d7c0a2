// Command verbs_mr is a walk through memory registration: what an RDMA device may do with a program's memory, who gives
// it leave, and what is refused. Two processes, A and B, register memory, tell each other addresses and keys over TCP,
// connect, and then A writes, reads and updates B's memory while B's program does nothing; every refusal is shown as well.
//
//	verbs_mr                            # both, on this machine: it starts itself as B
//	verbs_mr -listen :7000              # A, on one machine
//	verbs_mr -connect 10.0.0.1:7000     # B, on another one
//
// Each prints its own part. Exit codes: 0 it went as it should, 5 there is no RDMA device, 6 bad usage, else 1 to 4.
//
// Where to read: walk.go is A's part, from top to bottom; peer.go is what B does when A asks; end.go is what both have,
// and where memory is registered. This file only brings the two together.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
)

// patience is the longest wait, for the other process and for the device: nothing here takes a second.
const patience = time.Minute

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "verbs_mr:", err)
	os.Exit(ubcoll.ExitCode(err))
}

// options is the command line.
type options struct {
	listen, connect string
	device          string
	gid             int
}

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("verbs_mr", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "", "be A, and wait for B at this `address` (:7000)")
	flags.StringVar(&o.connect, "connect", "", "be B, of the A that listens at this `address` (10.0.0.1:7000)")
	flags.StringVar(&o.device, "dev", "", "the RDMA device's `name` (the first one)")
	flags.IntVar(&o.gid, "gid", -1, "`row` of the port's table of GIDs (-1: RoCE v2 and IPv4 first)")
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "Usage: verbs_mr [-listen address | -connect address] [flags]")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", err, fault.ErrArgument)
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: %w", flags.Arg(0), fault.ErrArgument)
	case o.listen != "" && o.connect != "":
		return fmt.Errorf("-listen makes this A, -connect makes it B: want one of them, or neither for both: %w", fault.ErrArgument)
	case o.gid < -1:
		return fmt.Errorf("-gid %d: want a row of the table, or -1: %w", o.gid, fault.ErrArgument)
	}
	// The library, libibverbs, is loaded when it is first asked for: this program runs everywhere, if only to say so.
	if p := verbs.Have(); p.Err != nil {
		return fmt.Errorf("this walk needs an RDMA device (ibv_devices lists them; soft-RoCE makes one: scripts/rdma-vm): %w", p.Err)
	}
	switch {
	case o.connect != "":
		return beB(o, out)
	case o.listen != "":
		return beA(o, o.listen, func(net.Addr) (func() error, error) { return func() error { return nil }, nil }, out)
	}
	return beA(o, "127.0.0.1:0", func(at net.Addr) (func() error, error) { return startB(o, at, out) }, out)
}

// beA listens, has B started, and walks.
func beA(o options, address string, start func(net.Addr) (wait func() error, err error), out io.Writer) (err error) {
	e, err := open("A", o, out)
	if err != nil {
		return err
	}
	a := &walker{end: e}
	defer func() { err = errors.Join(err, a.shut()) }()
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("-listen: %w: %w", err, fault.ErrArgument)
	}
	defer l.Close()
	wait, err := start(l.Addr())
	if err != nil {
		return err
	}
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return errors.Join(fmt.Errorf("B has not come within %v (%w): start it with -connect: %w", patience, err, fault.ErrTimeout), wait())
	}
	a.link = newLink(conn)
	// B ends when its connection does.
	return errors.Join(a.walk(), conn.Close(), wait())
}

// startB starts this program again, as B. It writes to out what belongs between this one's lines, since B does only what A
// asks for, and has written its line before it answers.
func startB(o options, at net.Addr, out io.Writer) (wait func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	b := exec.CommandContext(ctx, self, "-connect", at.String(), "-dev", o.device, "-gid", fmt.Sprint(o.gid))
	b.Stdout, b.Stderr = out, os.Stderr
	if err := b.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("starting B: %w", err)
	}
	return func() error {
		defer cancel()
		if err := b.Wait(); err != nil {
			return fmt.Errorf("B: %v", err) // whose exit code is not this one's
		}
		return nil
	}, nil
}

// beB finds A, which may start later, and serves it.
func beB(o options, out io.Writer) error {
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", o.connect, patience)
		if err == nil {
			return errors.Join(serve(newLink(conn), o, out), conn.Close())
		}
		var address *net.AddrError
		if errors.As(err, &address) {
			return fmt.Errorf("-connect: %w: %w", err, fault.ErrArgument)
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("A is not there after %v (%w): start it with -listen: %w", patience, err, fault.ErrTimeout)
		}
	}
}

// link is how the two processes talk: RDMA itself has no way to tell a peer the first address and key.
type link struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

func newLink(c net.Conn) *link { return &link{c, json.NewDecoder(c), json.NewEncoder(c)} }

func (l *link) send(v any) error {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return l.out.Encode(v)
}

func (l *link) receive(v any) error {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return l.in.Decode(v)
}
