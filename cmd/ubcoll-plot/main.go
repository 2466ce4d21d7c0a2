// Command ubcoll-plot draws the figures of ubcoll plot, which starts it:
//
//	ubcoll-plot svg <figure.json >figure.svg
//	ubcoll-plot png <figure.json >figure.png
//
// A figure shows bus bandwidth and time against size. It is read as JSON: ubcoll plot -o figure.json writes it, and the
// type Figure documents it. This is a module of its own, so that programs that use ubcoll do not depend on the library
// that draws.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

const usage = `Usage: ubcoll-plot svg|png <figure.json >figure

Draws a figure of ubcoll plot, which starts this program by itself. Figures as JSON: ubcoll plot -o figure.json RESULTS
`

// exitUsage is the exit code of bad usage, the same as ubcoll's.
const exitUsage = 6

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "ubcoll-plot: %v\n", err)
		os.Exit(exitUsage)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, svg or png, not %d; -h says more", len(args))
	}
	write := formats[args[0]]
	switch args[0] {
	case "-h", "-help", "--help", "help":
		_, err := io.WriteString(out, usage)
		return err
	}
	if write == nil {
		return fmt.Errorf("unknown format %q: want svg or png", args[0])
	}
	f, err := read(in)
	if err != nil {
		return fmt.Errorf("the figure on standard input: %w", err)
	}
	var b bytes.Buffer // so that a failure leaves no half a picture
	if err := write(f, &b); err != nil {
		return err
	}
	_, err = b.WriteTo(out)
	return err
}
