package ubcoll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// Exit codes of Main. An error with an ExitCode() int method has its own; a signal gives 128 plus its number.
const (
	exitInternal  = 1
	exitPanic     = 2
	exitTransport = 3
	exitTimeout   = 4
	exitSupport   = 5
	exitUsage     = 6
)

// abortGrace is how long a rank that has failed waits before it ends the job: its peers say what they have seen, and
// launchers pass on what was written, which MPICH's may not do any more once a job is being ended.
const abortGrace = 500 * time.Millisecond

// Main runs run as every rank of the job and returns when it has succeeded. If run fails, panics, or a signal (SIGINT,
// SIGTERM) comes, it says so once on standard error, with rank and host, aborts the job, and exits with a code: 1
// internal, 2 panic, 3 peer lost, aborted, ranks disagree or a context ended, 4 timed out, 5 not supported, 6 usage,
// 128+n signal n, or what the error's ExitCode() says. A signal is said at once, and counts whatever run makes of it; a
// second one kills the process.
//
// The ranks are: with UBCOLL_RANK in the environment, this process, by bootstrap.Env; under a launcher (mpirun, srun),
// this process, by bootstrap.MPI; else NTHREADS goroutines of this process, one by default. In a job of processes,
// UBCOLL_RANKS_PER_PROCESS has each of them run that many ranks, goroutines, by bootstrap.PerProcess: one for each of
// several GPUs, say. ctx ends when a signal comes. Collective: it opens and closes the Comm around run.
func Main(o Options, run func(context.Context, *Comm) error) {
	ctx, stop := withSignals(context.Background())
	codes := make(chan int, 1)
	joined := make(chan struct{})
	go func() { codes <- mainJob(ctx, joined, o, run) }()
	code := waitFor(ctx, joined, codes)
	stop()
	if code != 0 {
		os.Exit(code)
	}
}

// waitFor is the job's exit code. Until the job has been joined, which may take long and knows no context, a signal ends
// the wait.
func waitFor(ctx context.Context, joined <-chan struct{}, codes <-chan int) int {
	select {
	case code := <-codes:
		return code
	case <-joined:
		return <-codes
	case <-ctx.Done():
	}
	select {
	case <-joined:
		return <-codes
	default:
		return say(-1, fmt.Errorf("while the job was starting: %w", context.Cause(ctx)))
	}
}

// mainJob closes joined once it knows which ranks it runs.
func mainJob(ctx context.Context, joined chan<- struct{}, o Options, run func(context.Context, *Comm) error) int {
	b, err := findJob()
	close(joined)
	if err != nil {
		return say(-1, because(ctx, err))
	}
	if b == nil {
		n, err := env.Threads.Get()
		if err != nil {
			return say(-1, err)
		}
		rank, err := runLocal(ctx, n, o, run)
		if err = because(ctx, err); err != nil {
			return say(rank, err)
		}
		return 0
	}
	n, err := env.RanksPerProcess.Get()
	if err == nil && n > 1 {
		err = engine.CheckRanks(n, n*b.Size(), mail.AreaBytes(n*b.Size()))
	}
	if err != nil {
		code := say(b.Rank(), err)
		b.Abort(code)
		return code
	}
	if n > 1 {
		return processJob(ctx, bootstrap.PerProcess(b, n), o, run)
	}
	ended := make(chan error, 1)
	go func() { // so that runtime.Goexit in run ends the rank, not the program
		err := errGoexit
		defer func() { ended <- err }()
		err = rankJob(ctx, b, o, run)
	}()
	if err := because(ctx, <-ended); err != nil {
		return abort(ctx, b, b.Rank(), err)
	}
	if err := b.Close(); err != nil {
		return say(b.Rank(), err)
	}
	return 0
}

// processJob is several ranks of a job in this process. The first that fails ends it.
func processJob(ctx context.Context, bs []bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error) int {
	codes := make(chan int, 1)
	var once sync.Once
	end := func(b bootstrap.Bootstrap, rank int, err error) {
		once.Do(func() {
			err = because(ctx, err)
			if b != nil {
				codes <- abort(ctx, b, rank, err)
				return
			}
			codes <- say(rank, err)
		})
	}
	go func() {
		rank, err := runRanks(ctx, bs, o, run, end)
		if err = because(ctx, err); err != nil {
			end(nil, rank, err)
			return
		}
		codes <- 0
	}()
	return <-codes
}

// abort says err, ends the job, and returns its exit code. A signal that comes while the peers say what they have seen
// counts as one that came before err, which may be of its having come to a peer first.
func abort(ctx context.Context, b bootstrap.Bootstrap, rank int, err error) int {
	say(rank, err)
	time.Sleep(abortGrace)
	code := exitCode(because(ctx, err))
	b.Abort(code)
	return code
}

// findJob is the job that this process was started as a rank of, or nil.
func findJob() (bootstrap.Bootstrap, error) {
	if env.Rank.IsSet() || env.Size.IsSet() {
		return bootstrap.Env()
	}
	name, size := bootstrap.Launcher()
	if name == "" {
		return nil, nil
	}
	b, err := bootstrap.MPI()
	if errors.Is(err, ErrNotSupported) && size == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("started by %s: %w", name, err)
	}
	return b, nil
}

// rankJob is one rank's whole job but for the bootstrap's end.
func rankJob(ctx context.Context, b bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error) error {
	c, err := Open(ctx, b, o)
	if err != nil {
		return err
	}
	if err := protect(ctx, c, run); err != nil {
		c.Abort(oneLine(err))
		c.Close()
		return err
	}
	if err := c.Close(); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}

// panicError is a panic of the job's function.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", p.value, p.stack) }

// oneLine is err as the other ranks are told it: the stack of a panic stays with the rank that panicked.
func oneLine(err error) error {
	if p, ok := errors.AsType[*panicError](err); ok {
		line, _, _ := strings.Cut(fmt.Sprintf("panic: %v", p.value), "\n")
		return errors.New(line)
	}
	return err
}

// ExitCode is what the Go runtime exits with.
func (p *panicError) ExitCode() int { return exitPanic }

var errGoexit = errors.New("the job's function called runtime.Goexit")

// protect calls run and makes an error of a panic.
func protect(ctx context.Context, c *Comm, run func(context.Context, *Comm) error) (err error) {
	if run == nil {
		return c.view().LocalError("run", fmt.Errorf("the job's function is nil: %w", ErrArgument))
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return run(ctx, c)
}

// Local runs run as n goroutine ranks of this process, each with a Comm of its own, and returns when all have returned:
// nil, or the first error (a panic is one). When one rank fails, the others' waits end with ErrAborted. Local and
// blocking, as long as run does; it opens and closes the Comms around run. For tests, examples and laptops; the ranks
// share memory as processes do. ErrArgument if n is below 1, ErrLimit if this process has no room for so many.
func Local(ctx context.Context, n int, o Options, run func(context.Context, *Comm) error) error {
	rank, err := runLocal(ctx, n, o, run)
	if e := (*Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("rank %d: %w", rank, err)
}

// runLocal is Local, with the rank whose error it is.
func runLocal(ctx context.Context, n int, o Options, run func(context.Context, *Comm) error) (rank int, err error) {
	if n < 1 {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: fmt.Errorf("%d ranks: %w", n, ErrArgument)}
	}
	if ctx == nil {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: engine.ErrNilContext}
	}
	if err := engine.CheckRanks(n, n, mail.AreaBytes(n)); err != nil {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: err}
	}
	return runRanks(ctx, bootstrap.Local(n), o, run, func(b bootstrap.Bootstrap, _ int, _ error) {})
}

// runRanks runs run as the ranks of bs, each on a goroutine of its own, and returns when all have returned: the first
// error, and which rank's it is. failed hears of that error from every rank that fails.
func runRanks(ctx context.Context, bs []bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error,
	failed func(b bootstrap.Bootstrap, rank int, err error)) (rank int, first error) {
	var (
		wg   sync.WaitGroup
		once sync.Once
	)
	for _, b := range bs {
		note := func(err error) {
			if err != nil {
				once.Do(func() { rank, first = b.Rank(), err })
			}
		}
		// The cause is noted before the other ranks can hear of it, and fail of it.
		noted := func(ctx context.Context, c *Comm) error {
			err := protect(ctx, c, run)
			note(err)
			return err
		}
		wg.Go(func() {
			err := errGoexit
			defer func() {
				if note(err); err != nil {
					failed(b, rank, first)
					b.Abort(exitCode(err))
				}
				note(b.Close())
			}()
			err = rankJob(ctx, b, o, noted)
		})
	}
	wg.Wait()
	return rank, first
}

func exitCode(err error) int {
	var own interface{ ExitCode() int }
	if errors.As(err, &own) {
		return own.ExitCode()
	}
	for _, c := range []struct {
		is   error
		code int
	}{
		{ErrTimeout, exitTimeout}, {fault.ErrPeerLost, exitTransport}, {ErrAborted, exitTransport},
		{ErrMismatch, exitTransport}, {context.Canceled, exitTransport}, {context.DeadlineExceeded, exitTransport},
		{ErrNotSupported, exitSupport}, {ErrArgument, exitUsage},
	} {
		if errors.Is(err, c.is) {
			return c.code
		}
	}
	return exitInternal
}

// say prints err once, in one write so that ranks do not mix, and returns its exit code.
func say(rank int, err error) int {
	host, _ := os.Hostname()
	who := fmt.Sprintf("host %s", host)
	if rank >= 0 {
		who = fmt.Sprintf("rank %d on host %s", rank, host)
	}
	fmt.Fprintf(os.Stderr, "ubcoll: %s: %v\n", who, err)
	return exitCode(err)
}

// signalError is why a context ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return "signal: " + e.sig.String() }
func (e signalError) Unwrap() error { return context.Canceled }

// ExitCode is what a shell makes of the signal.
func (e signalError) ExitCode() int { return 128 + int(e.sig) }

// because is err, which may be nil, behind the signal that ended ctx, if one did: whatever a rank's function makes of
// that, it is why the job ends.
func because(ctx context.Context, err error) error {
	sig, ok := errors.AsType[signalError](context.Cause(ctx))
	switch {
	case !ok || errors.As(err, &sig):
		return err
	case err == nil:
		return sig
	}
	return fmt.Errorf("%w: %w", sig, err)
}

// withSignals ends the context on SIGINT and SIGTERM, and says so. A second signal finds the default handling.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-ch:
			signal.Stop(ch)
			e := signalError{s.(syscall.Signal)}
			host, _ := os.Hostname()
			fmt.Fprintf(os.Stderr, "ubcoll: host %s, pid %d: %v: ends as soon as its calls have returned; another one kills it\n",
				host, os.Getpid(), e)
			cancel(e)
		case <-done:
			signal.Stop(ch)
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}
