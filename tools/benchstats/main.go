// Command benchstats sums up what scripts/bench-gpu, bench-peers and bench-hosts have measured, and writes their pages.
// The scripts start the contenders in turns and collect samples. All arithmetic on the samples is here and in
// internal/stats.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const usage = `usage: benchstats ours FILE.csv                     samples of what ubcoll bench wrote
       benchstats best CONTENDER RANKS SAMPLES      the fastest way of each operation and size, as a plan
       benchstats KIND [flags] SAMPLES              the tables of a page: gpu, channel, peers or hosts

A sample is a line "operation contender ranks bytes microseconds [way]"; a plan is "way:operation:bytes,bytes ...".
Flags of pages:

`

// kinds has a function for each kind of page, which writes the page's tables.
var kinds = map[string]func(io.Writer, *page){"gpu": gpuTables, "channel": channelTables, "peers": peersTables, "hosts": hostsTables}

func main() {
	err := run(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchstats:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	var p page
	f := flag.NewFlagSet("benchstats", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() { fmt.Fprint(out, usage); f.PrintDefaults() }
	f.Func("op", "operations, separated by commas", func(s string) error { p.Ops = strings.Split(s, ","); return nil })
	f.Func("np", "numbers of ranks, separated by commas", func(s string) (err error) { p.Ranks, err = numbers(s); return err })
	f.IntVar(&p.Rounds, "rounds", 0, "how many rounds there were")
	f.IntVar(&p.Calls, "calls", 0, "how many calls of each size were timed")
	f.IntVar(&p.Graphs, "graphs", 0, "how often a graph of them was launched; 0: there was none")
	f.BoolVar(&p.Registered, "registered", false, "our buffers were registered")
	f.StringVar(&p.NVLS, "nvls", "0", "`NCCL_NVLS_ENABLE` as NCCL had it")
	f.IntVar(&p.Cores, "cores", 0, "how many processors the machine has")
	f.StringVar(&p.Date, "date", time.Now().UTC().Format(time.DateOnly), "the day")
	f.StringVar(&p.Command, "command", "", "the command that measured")
	f.StringVar(&p.Commit, "commit", "", "the commit that was measured")
	f.Func("machine", "a `file` that describes the machine", text(&p.Machine))
	f.Func("note", "a `file` to go below the tables", text(&p.Note))
	f.Func("first", "a `file` of samples of a first round, in all ways", text(&p.First))
	file := f.String("o", "", "also write the page, with how it was measured and all samples, to this `file`")
	if len(args) == 0 || args[0] == "-h" {
		f.Usage()
		return flag.ErrHelp
	}
	kind := args[0]
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	args = f.Args()
	tables := kinds[kind]
	switch {
	case kind == "ours" && len(args) == 1:
		return ours(out, args[0])
	case kind == "best" && len(args) == 3:
		return printBest(out, args[0], args[1], args[2])
	case tables == nil || len(args) != 1:
		return fmt.Errorf("%s with %d arguments is nothing that there is; -h lists what is", kind, len(args))
	}
	if err := text(&p.Samples)(args[0]); err != nil {
		return err
	}
	var err error
	if p.times, err = parse(p.Samples); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	var shown strings.Builder
	tables(&shown, &p)
	if *file != "" {
		if err := os.WriteFile(*file, []byte(shown.String()+p.how()), 0o644); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, shown.String())
	return err
}

func printBest(out io.Writer, contender, ranks, file string) error {
	n, err := strconv.Atoi(ranks)
	if err != nil {
		return err
	}
	var samples string
	if err := text(&samples)(file); err != nil {
		return err
	}
	t, err := parse(samples)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	_, err = fmt.Fprintln(out, best(t, contender, n))
	return err
}

// text returns a function that reads a file into s.
func text(s *string) func(name string) error {
	return func(name string) error {
		data, err := os.ReadFile(name)
		*s = string(data)
		return err
	}
}

func numbers(list string) ([]int, error) {
	var all []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of ranks", s)
		}
		all = append(all, n)
	}
	return all, nil
}
