// Command verbs_mr is a walk through memory registration: what an RDMA device may do with a program's memory, who
// allows it, and what is refused. Two processes, A and B, register memory, tell each other addresses and keys over TCP,
// and connect. Then A writes, reads and updates B's memory while B's program does nothing. The walk also shows every
// refusal.
//
//	verbs_mr                            # both, on this machine: it starts itself as B
//	verbs_mr -listen :7000              # A, on one machine
//	verbs_mr -connect 10.0.0.1:7000     # B, on another one
//
// Each prints its own part. Exit codes: 0 if all went as it should, 5 if there is no RDMA device, 6 for bad usage, else
// 1 to 4.
//
// Where to read: walk.go has A's part, from top to bottom. peer.go has what B does when A asks. end.go has what both
// share; it registers memory. This file only brings the two together.
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

// patience is the longest wait for the other process and for the device. Nothing here normally takes a second.
const patience = time.Minute

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "verbs_mr:", err)
	os.Exit(ubcoll.ExitCode(err))
}

// options are the options of the command line.
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
	// libibverbs is loaded at the first use, so this program starts everywhere, if only to say that there is no device.
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

// beA listens, starts B by start, and walks.
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
	// B ends when its connection ends.
	return errors.Join(a.walk(), conn.Close(), wait())
}

// startB starts this program again, as B. Both write to out, and their lines come in the right order: B does only what
// A asks for, and writes its line before it answers.
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
			return fmt.Errorf("B: %v", err) // B's exit code is not this process's
		}
		return nil
	}, nil
}

// beB connects to A, which may start later, and serves it.
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

// link connects the two processes by TCP. RDMA itself has no way to tell a peer the first address and key.
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
