package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

const completionUsage = `completion bash|zsh|fish

Prints completions of commands, flags and operations for a shell:

	source <(ubcoll completion bash)                 # in ~/.bashrc; zsh in ~/.zshrc, after compinit
	ubcoll completion fish | source                  # in config.fish`

var shells = map[string]func([]completed) string{"bash": bash, "zsh": zsh, "fish": fish}

// completed is a command with the words that can follow it.
type completed struct {
	name, help string
	words      []string // operations and the like
	flags      []flagLine
}

// flagLine is a flag as help shows it.
type flagLine struct {
	names []string
	value bool
	help  string
}

// completion prints the completions for a shell.
func completion(args []string, out io.Writer) error {
	fs := newFlags("completion")
	if err := parseFlags(fs, args, completionUsage, out); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usageError("completion: for which shell? bash, zsh or fish")
	} else if fs.NArg() > 1 {
		return usageError("completion: unexpected argument %q: one shell at a time; -h lists what it takes", fs.Arg(1))
	}
	write := shells[fs.Arg(0)]
	if write == nil {
		return usageError("completion: %s", nearest.Unknown("shell", fs.Arg(0), slices.Sorted(maps.Keys(shells))))
	}
	_, err := io.WriteString(out, write(completions()))
	return err
}

// completions takes the completions from each command's own help, so that there is no second list of flags.
func completions() (all []completed) {
	for _, c := range commandTable() {
		var help bytes.Buffer
		_ = c.run([]string{"-h"}, &help) // returns flag.ErrHelp
		e := completed{name: c.name, help: c.help, flags: flagLines(help.String())}
		switch c.name {
		case "bench":
			e.words = append(measure.Names(), everything, "mr")
		case "verify":
			e.words = append(measure.Verifiable(), everything)
		case "model":
			for _, k := range collectives {
				e.words = append(e.words, k.name)
			}
		case "completion":
			e.words = []string{"bash", "zsh", "fish"}
		}
		all = append(all, e)
	}
	return all
}

// flagLines reads a help text: lines as "  -b, --minbytes size", each followed by a line with the flag's description.
func flagLines(help string) (flags []flagLine) {
	lines := strings.Split(help, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "  -") || i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "\t") {
			continue
		}
		f := flagLine{help: strings.TrimSpace(lines[i+1])}
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "-") {
				f.names = append(f.names, strings.TrimSuffix(word, ","))
			} else {
				f.value = true
			}
		}
		flags = append(flags, f)
	}
	return flags
}

func (c completed) flagNames() (names []string) {
	for _, f := range c.flags {
		names = append(names, f.names...)
	}
	return append(names, "--help")
}

func bash(all []completed) string {
	var b strings.Builder
	b.WriteString("_ubcoll() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} words=\n\tif [ \"$COMP_CWORD\" = 1 ]; then\n\t\twords='")
	for _, c := range all {
		b.WriteString(c.name + " ")
	}
	b.WriteString("help'\n\telse\n\t\tcase ${COMP_WORDS[1]}:$cur in\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\t\t%s:-*) words='%s' ;;\n", c.name, strings.Join(c.flagNames(), " "))
		if c.words != nil {
			fmt.Fprintf(&b, "\t\t%s:*) words='%s' ;;\n", c.name, strings.Join(c.words, " "))
		}
	}
	b.WriteString("\t\tesac\n\tfi\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _ubcoll ubcoll\n")
	return b.String()
}

func zsh(all []completed) string {
	return "autoload -U +X bashcompinit && bashcompinit\n" + bash(all)
}

func fish(all []completed) string {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintf(&b, "complete -c ubcoll -n __fish_use_subcommand -f -a %s -d %s\n", c.name, quote(c.help))
		in := quote("__fish_seen_subcommand_from " + c.name)
		for _, w := range c.words {
			fmt.Fprintf(&b, "complete -c ubcoll -n %s -f -a %s\n", in, w)
		}
		for _, f := range c.flags {
			fmt.Fprintf(&b, "complete -c ubcoll -n %s", in)
			for _, n := range slices.Compact(f.names) {
				if name, long := strings.CutPrefix(n, "--"); long {
					fmt.Fprintf(&b, " -l %s", name)
				} else {
					fmt.Fprintf(&b, " -s %s", strings.TrimPrefix(n, "-"))
				}
			}
			if f.value {
				b.WriteString(" -r")
			}
			fmt.Fprintf(&b, " -d %s\n", quote(f.help))
		}
	}
	return b.String()
}
