// Package launch starts the ranks of a job without MPI: as processes of this host, or of several hosts over ssh.
//
// On each host, this one included, an agent starts the ranks, passes on their output, and ends them when the launcher
// is gone. An agent is the same program with another first argument.
package launch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/plural"
)

// Job is what Run starts.
type Job struct {
	Hosts  []Host // none: this one
	Counts []int  // ranks on each host, as Place returns them; the first host has the first ranks
	Args   []string
	Dir    string
	Env    []string // NAME=value: the part of the environment that other hosts get
	Agent  []string // command line of an agent: a program that has this path on all hosts, and arguments
	RSH    []string // the words before host and command, instead of ssh
	Prefix bool     // each line begins with the rank that wrote it
	// Survive: the other ranks go on when one fails.
	Survive bool
	Grace   time.Duration
	Stdout  io.Writer
	Stderr  io.Writer
}

const (
	greeting = time.Minute     // limit for all agents to answer
	settling = time.Second     // after a failure, the time for other ranks to notice it and say so
	vanish   = 2 * time.Second // limit for agents to end after their ranks
)

// Run starts the ranks and waits for them: it takes as long as the job. It returns the exit code of the first rank that
// failed, or 0. It passes signals on to all ranks. A rank that fails ends the job, and so do SIGINT, SIGTERM and
// SIGHUP: the remaining ranks get SIGTERM, and SIGKILL after Grace, or at once if another such signal comes half a
// second later or more. The error says why a job could not start.
//
// With Survive, a rank that fails ends no other. The exit code is that of the first that failed among those that neither a
// signal nor the loss of their host ended, or 0; if all ended like that, the first one's.
func Run(j Job, signals <-chan os.Signal) (code int, err error) {
	l := &launcher{Job: j, size: sum(j.Counts), news: make(chan news), errors: errorMerger{to: j.Stderr}}
	defer l.flush()
	defer l.end()
	if err := l.agents(); err != nil {
		return 0, err
	}
	where, err := l.greet(signals)
	if err != nil {
		return 0, err
	}
	if err := l.order(where); err != nil {
		return 0, err
	}
	return l.wait(signals), nil
}

// launcher is the state of a Run. Goroutines that read touch only the channel and, under its lock, the output.
type launcher struct {
	Job
	size   int
	hosts  []*remote
	news   chan news
	over   chan struct{}
	output sync.Mutex
	errors errorMerger // standard error of the ranks
}

// remote is one host with ranks, and its agent.
type remote struct {
	name  string
	first int
	ranks int
	live  []bool
	cmd   *exec.Cmd
	in    io.WriteCloser
	hello *hello
	gone  bool
}

// news is what an agent said, or says that the agent has ended.
type news struct {
	of    *remote
	hello *hello
	event *event
	ended error // io.EOF, or how its process ended
}

// agents starts an agent on each host that has ranks.
func (l *launcher) agents() error {
	l.over = make(chan struct{})
	hosts := l.Hosts
	if len(hosts) == 0 {
		hosts = []Host{{Name: "localhost"}}
	}
	first := 0
	for i, h := range hosts {
		if l.Counts[i] == 0 {
			continue
		}
		r := &remote{name: h.Name, first: first, ranks: l.Counts[i], live: slices.Repeat([]bool{true}, l.Counts[i])}
		first += r.ranks
		words := l.Agent
		if !local(h.Name) {
			words = append(slices.Clone(l.RSH), h.Name, Line(l.Agent))
		}
		r.cmd = exec.Command(words[0], words[1:]...)
		r.cmd.SysProcAttr = apart()
		r.cmd.Stderr = l.Stderr
		var err error
		if r.in, err = r.cmd.StdinPipe(); err != nil {
			return err
		}
		out, err := r.cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := r.cmd.Start(); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
		l.hosts = append(l.hosts, r)
		go l.listen(r, out)
	}
	return nil
}

// local reports whether name is this host, by one of its own names: then ssh is not needed.
func local(name string) bool {
	host, err := os.Hostname()
	if ip := net.ParseIP(name); ip != nil && ip.IsLoopback() || name == "localhost" {
		return true
	}
	short, _, _ := strings.Cut(host, ".")
	return err == nil && (name == host || name == short)
}

// listen passes on what an agent says.
func (l *launcher) listen(r *remote, from io.ReadCloser) {
	tell := func(n news) {
		n.of = r
		select {
		case l.news <- n:
		case <-l.over:
		}
	}
	lines := bufio.NewReader(from)
	for greeted := false; ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			tell(news{ended: r.cmd.Wait()})
			return
		}
		if !greeted {
			var h hello
			if json.Unmarshal(line, &h) != nil || h.Agent == 0 {
				l.write(l.Stderr, line) // output of a login shell
				continue
			}
			greeted = true
			tell(news{hello: &h})
			continue
		}
		var e event
		if json.Unmarshal(line, &e) != nil || e.Rank < r.first || e.Rank >= r.first+r.ranks {
			_ = from.Close() // so that the agent's output fails, and it ends
			tell(news{ended: fmt.Errorf("it said %.80q", line)})
			_ = r.cmd.Wait() // its result is not needed
			return
		}
		l.write(l.Stdout, l.prefixed(e.Rank, e.Out))
		l.add(e.Rank, e.Err)
		if e.Ended {
			tell(news{event: &e})
		}
	}
}

// write makes one call for whole lines, so that ranks do not tear each other's lines.
func (l *launcher) write(to io.Writer, text []byte) {
	if len(text) > 0 {
		l.output.Lock()
		defer l.output.Unlock()
		_, _ = to.Write(text) // a reader that has closed it wants no more
	}
}

func (l *launcher) prefix(rank int) string {
	if !l.Prefix {
		return ""
	}
	return fmt.Sprintf("[%d] ", rank)
}

func (l *launcher) prefixed(rank int, text []byte) []byte {
	prefix := l.prefix(rank)
	if prefix == "" || len(text) == 0 {
		return text
	}
	var b []byte
	for line := range bytes.Lines(text) {
		b = append(append(b, prefix...), line...)
	}
	return b
}

// add passes on what a rank has written on standard error.
func (l *launcher) add(rank int, text []byte) {
	if len(text) == 0 {
		return
	}
	l.output.Lock()
	defer l.output.Unlock()
	if l.errors.add(rank, text, l.prefix(rank)) {
		time.AfterFunc(hold, l.flush)
	}
}

func (l *launcher) flush() {
	l.output.Lock()
	defer l.output.Unlock()
	l.errors.flush()
}

func (l *launcher) printf(format string, args ...any) {
	l.flush()
	l.write(l.Stderr, fmt.Appendf(nil, "ubcoll launch: "+format+"\n", args...))
}

// greet waits for all agents, and returns the address of the rendezvous.
func (l *launcher) greet(signals <-chan os.Signal) (where string, err error) {
	late := time.After(greeting)
	for range l.hosts {
		select {
		case n := <-l.news:
			switch {
			case n.hello == nil:
				return "", fmt.Errorf("host %s: the agent did not start (%s): is %s there, and can this user log in without a password? %w",
					n.of.name, status(n.ended), l.Agent[0], fault.ErrPeerLost)
			case n.hello.Agent != version:
				return "", fmt.Errorf("host %s: %s there is of another version than here (agent %d, not %d): %w", n.of.name,
					l.Agent[0], n.hello.Agent, version, fault.ErrMismatch)
			}
			n.of.hello = n.hello
		case s := <-signals:
			return "", signalError{s}
		case <-late:
			var missing []string
			for _, r := range l.hosts {
				if r.hello == nil {
					missing = append(missing, r.name)
				}
			}
			return "", fmt.Errorf("no answer within %v from %s: %w", greeting, strings.Join(missing, ", "), fault.ErrTimeout)
		}
	}
	for _, r := range l.hosts {
		if r.ranks > r.hello.Processors {
			l.printf("%d ranks on the %s of %s: they take turns, which is good for trying things and not for times",
				r.ranks, plural.Count(r.hello.Processors, "processor"), r.hello.Host)
			break
		}
	}
	if env.Rendezvous.IsSet() {
		return env.Rendezvous.Get()
	}
	return rendezvous(l.hosts, net.DefaultResolver.LookupHost), nil
}

// rendezvous returns where the ranks meet. On one host that is a socket without a name on disk. On several it is on the
// first host: at the address that its name has here, unless that is loopback, else at its own first address.
func rendezvous(hosts []*remote, lookup func(context.Context, string) ([]string, error)) string {
	first := hosts[0]
	if len(hosts) == 1 {
		return "unix:@ubcoll-" + rand.Text()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, _ := lookup(ctx, first.name) // a name that only ssh knows has no address
	host := "127.0.0.1"
	if len(first.hello.Addresses) > 0 {
		host = first.hello.Addresses[0]
	}
	for _, a := range found {
		if ip := net.ParseIP(a); ip != nil && !ip.IsLoopback() {
			host = a
			break
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(first.hello.Port))
}

// order makes the agents start their ranks.
func (l *launcher) order(where string) error {
	secret := rand.Text()
	for _, r := range l.hosts {
		s := start{l.Dir, l.Env, l.Args, r.first, r.ranks, l.size, where, secret, l.Grace}
		if err := json.NewEncoder(r.in).Encode(s); err != nil {
			return fmt.Errorf("host %s: %w: %w", r.name, err, fault.ErrPeerLost)
		}
	}
	return nil
}

// wait returns the job's exit code once all ranks have ended, or can no longer be waited for.
func (l *launcher) wait(signals <-chan os.Signal) (code int) {
	left := l.size
	killed, first := 0, 0      // ranks that a signal or the loss of their host has ended, and the first one's code
	failed, ending := false, 0 // ending: 0 no, 1 soon SIGTERM, 2 SIGTERM sent, 3 SIGKILL sent
	var timer <-chan time.Time
	var asked time.Time // when the first signal to end came
	advance := func(to int) {
		if to <= ending {
			return
		}
		ending = to
		switch to {
		case 1:
			timer = time.After(settling)
		case 2:
			l.signal(syscall.SIGTERM)
			timer = time.After(l.Grace)
		case 3:
			l.signal(syscall.SIGKILL)
			timer = time.After(vanish)
		}
	}
	fail := func(with, died int, format string, args ...any) {
		if l.Survive && ending == 0 {
			rest := ""
			if left > 0 {
				rest = ": the others go on"
			}
			l.printf("%s%s", fmt.Sprintf(format, args...), rest)
			switch {
			case died > 0:
				killed, first = killed+died, cmp.Or(first, with)
			case code == 0:
				code = with
			}
			return
		}
		if failed {
			return
		}
		failed = true
		if ending == 0 {
			code = with
			rest := ""
			if left > 0 {
				rest = ": ending the others"
			}
			l.printf("%s%s", fmt.Sprintf(format, args...), rest)
		}
		advance(1)
	}
	for left > 0 {
		select {
		case n := <-l.news:
			r := n.of
			switch {
			case n.event == nil:
				r.gone = true
				lost := 0
				for i := range r.live {
					if r.live[i] {
						r.live[i] = false
						lost++
					}
				}
				if left -= lost; lost > 0 {
					fail(codeLost, lost, "host %s is lost, with %s: its agent ended (%s)", r.name, plural.Count(lost, "rank"), status(n.ended))
				}
			default:
				e := n.event
				r.live[e.Rank-r.first] = false
				left--
				if e.Code != 0 {
					died := 0
					if e.Signal != "" {
						died = 1
					}
					fail(e.Code, died, "rank %d on %s %s", e.Rank, r.hello.Host, e.how())
				}
			}
		case s := <-signals:
			sig, _ := s.(syscall.Signal)
			switch sig {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP:
				if ending >= 2 {
					if time.Since(asked) > settling/2 { // timeout(1) sends every signal twice
						advance(3)
					}
					break
				}
				asked = time.Now()
				l.tell(sig)
				if code == 0 {
					code = 128 + int(sig)
				}
				l.signal(sig)
				ending, timer = 2, time.After(l.Grace)
			default:
				l.signal(sig)
			}
		case <-timer:
			if ending == 3 {
				l.printf("%s cannot be reached to be ended", plural.Count(left, "rank"))
				return code
			}
			advance(ending + 1)
		}
	}
	if killed == l.size {
		return first
	}
	return code
}

// codeLost is the library's exit code for a lost peer.
const codeLost = 3

// how says how a rank ended.
func (e *event) how() string {
	switch {
	case e.Fault != "":
		return "did not start: " + e.Fault
	case e.Signal != "":
		return "was ended by a signal: " + e.Signal
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// tell says that a signal has come that all ranks get. Their own notices of it are not written then.
func (l *launcher) tell(s syscall.Signal) {
	l.printf("signal: %v: ends as soon as all ranks have; another one kills them", s)
	l.output.Lock()
	defer l.output.Unlock()
	l.errors.told = true
}

func (l *launcher) signal(s syscall.Signal) {
	for _, r := range l.hosts {
		if !r.gone {
			_ = json.NewEncoder(r.in).Encode(order{int(s)}) // if it fails, the agent is gone, and its end says so
		}
	}
}

// end makes the agents end, and kills those that do not in time.
func (l *launcher) end() {
	for _, r := range l.hosts {
		_ = r.in.Close() // closed already if the agent has ended
	}
	late := time.After(l.Grace + vanish)
	for _, r := range l.hosts {
		for !r.gone {
			select {
			case n := <-l.news:
				n.of.gone = n.of.gone || n.hello == nil && n.event == nil
			case <-late:
				r.gone = true
				_ = r.cmd.Process.Kill() // it may have ended just now
			}
		}
	}
	close(l.over)
}

// status describes how a process ended.
func status(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// signalError says that a signal came before there were ranks.
type signalError struct{ sig os.Signal }

func (e signalError) Error() string { return "signal while the job was starting: " + e.sig.String() }

// ExitCode is the exit code that a shell gives for the signal.
func (e signalError) ExitCode() int {
	sig, _ := e.sig.(syscall.Signal)
	return 128 + int(sig)
}

// Line joins words into one command line for a shell.
func Line(words []string) string {
	var quoted []string
	for _, w := range words {
		if w == "" || strings.ContainsFunc(w, special) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted = append(quoted, w)
	}
	return strings.Join(quoted, " ")
}

func special(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-./,:=@%+", c))
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Travels picks from environ the variables that other hosts get: the project's own, except those that tell each rank
// where it is and how to start it; and those that names lists, as NAME or NAME=value.
func Travels(environ, names []string) ([]string, error) {
	var list []string
	have := map[string]string{}
	for _, s := range environ {
		name, value, _ := strings.Cut(s, "=")
		have[name] = value
		if strings.HasPrefix(name, "UBCOLL_") && name != env.RSH.Name && !slices.Contains(ofRanks, name) {
			list = append(list, s)
		}
	}
	var faults []error
	for _, s := range names {
		name, _, assigned := strings.Cut(s, "=")
		value, set := have[name]
		switch {
		case name == "":
			faults = append(faults, fmt.Errorf("-x %q: want NAME or NAME=value", s))
		case slices.Contains(ofRanks, name):
			faults = append(faults, fmt.Errorf("-x %s: each rank has its own, which launch sets", name))
		case assigned:
			list = append(list, s)
		case !set:
			faults = append(faults, fmt.Errorf("-x %s: there is no such variable; give it a value with -x %s=value", name, name))
		default:
			list = append(list, name+"="+value)
		}
	}
	return list, errors.Join(faults...)
}

// ofRanks are the variables that differ from rank to rank.
var ofRanks = []string{env.Rank.Name, env.Size.Name, env.Rendezvous.Name, env.Secret.Name}
