package ubcoll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// abortGrace is how long a failed rank waits before it ends the job. In this time its peers report their own errors,
// and the launcher passes on what was written, which MPICH's may not do any more once a job is being ended.
const abortGrace = 500 * time.Millisecond

// signalGrace is how much later than its peers a process may get a signal that all of the job get.
const signalGrace = 100 * time.Millisecond

// Main is [Run] for programs that do nothing but the job. It returns when run has succeeded. If run fails or panics, or
// a signal (SIGINT, SIGTERM) comes, Main reports it once on standard error, with rank and host, aborts the job on all
// ranks, and exits with [ExitCode]'s code. It reports a signal at once and ends ctx; the signal decides the exit code,
// whatever run returns. Errors that only follow from the signal are not reported. A second signal kills the process.
// SIGUSR2 makes it write a dump: see [DumpAtSignal].
//
// Main finds the ranks thus. With UBCOLL_RANK in the environment, under torchrun, and under srun where MPI has no part
// ([bootstrap.EnvSource]), this process is one rank, by [bootstrap.Env]. Under another launcher (mpirun, srun with a
// PMI), this process is one rank, by [bootstrap.MPI]. Otherwise NTHREADS goroutines of this process are the ranks, one
// by default. In a job of processes, UBCOLL_RANKS_PER_PROCESS makes each process run that many goroutine ranks, by
// [bootstrap.PerProcess]: one for each of several GPUs, say. Collective: Main opens and closes the [Comm] around run.
func Main(o Options, run func(context.Context, *Comm) error) {
	ctx, stop := withSignals(context.Background())
	defer DumpAtSignal()()
	codes := make(chan int, 1)
	joined := make(chan struct{})
	go func() { codes <- mainJob(ctx, joined, o, run) }()
	code := waitFor(ctx, joined, codes)
	stop()
	if code != 0 {
		os.Exit(code)
	}
}

// waitFor returns the job's exit code. Joining the job may take long and knows no context: until the job has been
// joined, a signal ends the wait.
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
		return printError(-1, fmt.Errorf("while the job was starting: %w", context.Cause(ctx)))
	}
}

// mainJob runs the job and returns its exit code. It closes joined once it knows which ranks it runs.
func mainJob(ctx context.Context, joined chan<- struct{}, o Options, run func(context.Context, *Comm) error) int {
	j, err := join()
	close(joined)
	switch {
	case err != nil:
		code := printError(j.rank(), because(ctx, err))
		if j.whole != nil {
			j.whole.Abort(code)
		}
		return code
	case j.whole == nil:
		rank, err := runLocal(ctx, j.local, o, run)
		if err = because(ctx, err); err != nil {
			return printEnd(ctx, rank, err)
		}
		return 0
	}
	return mainRanks(ctx, j.ranks, o, run)
}

// mainRanks runs this process's ranks of a job of processes. The first rank that fails ends the job.
func mainRanks(ctx context.Context, bs []bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error) int {
	codes := make(chan int, 1)
	var once sync.Once
	leave := func(b bootstrap.Bootstrap, rank int, err error) error {
		if len(bs) == 1 { // with several ranks, it also depends on the others' errors
			err = because(ctx, err)
		}
		if err == nil {
			return b.Close()
		}
		once.Do(func() { codes <- abort(ctx, b, rank, because(ctx, err)) })
		return nil
	}
	go func() {
		rank, err := runRanks(ctx, bs, o, run, leave)
		if len(bs) > 1 {
			err = because(ctx, err)
		}
		once.Do(func() {
			if err != nil {
				codes <- printEnd(ctx, rank, err)
				return
			}
			codes <- 0
		})
	}()
	return <-codes
}

// abort reports err, ends the job, and returns its exit code. A signal that comes during abortGrace counts as if it had
// come before err: err may be the consequence of the same signal at a peer.
func abort(ctx context.Context, b bootstrap.Bootstrap, rank int, err error) int {
	if follows(err) { // perhaps of a signal that this process is about to get, too
		select {
		case <-ctx.Done():
		case <-time.After(signalGrace):
		}
	}
	printEnd(ctx, rank, err)
	time.Sleep(abortGrace)
	code := ExitCode(because(ctx, err))
	b.Abort(code)
	return code
}

// printError prints err in one write, so that ranks' lines do not mix, and returns its exit code.
func printError(rank int, err error) int {
	fmt.Fprintf(os.Stderr, "ubcoll: %s%v\n", who(rank, err), err)
	return ExitCode(err)
}

// who is the rank and the host that tell err, as far as err does not name them.
func who(rank int, err error) string {
	e, ok := errors.AsType[*Error](err)
	ok = ok && rank >= 0 && e.Rank == rank
	host, _ := os.Hostname()
	switch {
	case ok && e.Host != "":
		return ""
	case ok || rank < 0:
		return fmt.Sprintf("host %s: ", host)
	}
	return fmt.Sprintf("rank %d on host %s: ", rank, host)
}

// printEnd is say for the end of a job. If a signal has ended ctx, it has been reported, and what follows from it is not.
func printEnd(ctx context.Context, rank int, err error) int {
	if _, ok := errors.AsType[signalError](context.Cause(ctx)); ok && follows(err) {
		return ExitCode(err)
	}
	return printError(rank, err)
}

// follows reports whether all of err can be what the ranks' calls return once a context has been cancelled.
func follows(err error) bool {
	if err == context.Canceled || err == ErrAborted || err == ErrPeerLost {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !follows(err) })
	case interface{ Unwrap() error }:
		return follows(e.Unwrap())
	}
	return false
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return "signal: " + e.sig.String() }
func (e signalError) Unwrap() error { return context.Canceled }

// ExitCode is the code that a shell reports for the signal.
func (e signalError) ExitCode() int { return 128 + int(e.sig) }

// because puts the signal that ended ctx, if one did, before err, which may be nil: the signal is why the job ends,
// whatever error a rank's function makes of it.
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

// withSignals ends the context on SIGINT and SIGTERM, and reports the signal. A second signal meets the default
// handling.
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
