package ubcoll

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tracing"
)

// Run calls run once for each rank of the job that this process has, each with a [Comm], and returns when all calls
// have returned: nil, or the first error (a panic is one, with its stack). Run is for programs that must not end with
// the job: it finds the ranks as [Main] does, but installs no signal handler, prints nothing except through o.Logger,
// and does not exit. Collective over the job; blocking, as long as run takes. It opens and closes the Comms around run,
// and passes ctx to run and to [Open]. Before that it waits for the other processes: with [bootstrap.Env] for a minute
// at most, with MPI without limit.
//
// A rank that fails aborts its Comm: the other ranks' waits return [ErrAborted], which names that rank, and their Run
// returns it if run does. A failure leaves MPI unfinalized, since finalizing may wait for ranks that are gone. All that
// is left for the program is to exit, with ExitCode(err), so that the launcher ends the processes that have not heard
// of the failure. MPI starts only once in a process: under a launcher a second Run is [ErrClosed].
//
// [ErrArgument] if run or ctx is nil, or a variable of the environment is malformed; [ErrNotSupported] under a launcher
// of several ranks, if the program was built without MPI; otherwise the errors of Open.
func Run(ctx context.Context, o Options, run func(context.Context, *Comm) error) error {
	j, err := join()
	switch {
	case err != nil:
		j.quit(j.whole, err)
		j.close()
		return err
	case j.whole == nil:
		return Local(ctx, j.local, o, run)
	}
	// All ranks leave together: a rank that succeeded must not finalize MPI before it is known that no other one fails.
	rank, err := runRanks(ctx, j.ranks, o, run, func(b bootstrap.Bootstrap, _ int, err error) error {
		j.quit(b, err)
		return nil
	})
	j.quit(j.whole, err)
	if of, failed := j.close(); err == nil {
		rank, err = of, failed
	}
	return ofRank(rank, err)
}

// job is this process's part of the job.
type job struct {
	local int                   // number of goroutine ranks, if this process is the whole job
	whole bootstrap.Bootstrap   // otherwise: this process in the job of processes
	mpi   bool                  // whole is MPI's
	ranks []bootstrap.Bootstrap // this process's ranks, in a job of processes
}

// join finds the job that this process was started for. With an error, j.whole may still be set.
func join() (j job, err error) {
	j.whole, j.mpi, err = findJob()
	switch {
	case err != nil:
		return j, err
	case j.whole == nil:
		j.local, err = env.Threads.Get()
		return j, err
	}
	j.ranks = []bootstrap.Bootstrap{j.whole}
	n, err := env.RanksPerProcess.Get()
	if err == nil && n > 1 {
		if err = team.CheckRanks(n, n*j.whole.Size(), mail.AreaBytes(n*j.whole.Size())); err == nil {
			j.ranks = bootstrap.PerProcess(j.whole, n)
		}
	}
	return j, err
}

// findJob returns the job of processes that this process was started in, or nil, and whether it is MPI's.
func findJob() (b bootstrap.Bootstrap, mpi bool, err error) {
	name, size := bootstrap.Launcher()
	switch by := bootstrap.EnvSource(); {
	case by == env.Rank.Name:
		b, err = bootstrap.Env()
		return b, false, err
	case by != "":
		if b, err = bootstrap.Env(); err != nil {
			return nil, false, fmt.Errorf("started by %s, and its ranks are taken without MPI: %w", by, err)
		}
		return b, false, nil
	case name == "":
		return nil, false, nil
	}
	b, err = bootstrap.MPI()
	if errors.Is(err, ErrNotSupported) && size == 1 {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("started by %s: %w", name, err)
	}
	return b, true, nil
}

// rank is this process's rank in the job, or -1 if the process is the whole job.
func (j *job) rank() int {
	if j.whole == nil {
		return -1
	}
	return j.whole.Rank()
}

// quit makes b, one of this process's ranks or the whole process, give up because of err; it does nothing if err is
// nil. Closing b then waits for nobody. quit tells the others through Abort, except with MPI, whose Abort would end
// this process: there b refuses its part in an exchange, after which MPI is no longer finalized.
func (j *job) quit(b bootstrap.Bootstrap, err error) {
	switch {
	case b == nil || err == nil:
	case j.mpi:
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(oneLine(err))
		_, _ = b.AllGather(ctx, nil) // the error says only that it refuses
	default:
		b.Abort(ExitCode(err))
	}
}

// close ends this process's part of the job. It returns the first error and the rank that had it.
func (j *job) close() (rank int, first error) {
	for _, b := range j.ranks {
		if err := b.Close(); err != nil && first == nil {
			rank, first = b.Rank(), err
		}
	}
	return rank, first
}

// Local runs run as n goroutine ranks of this process, each with a [Comm] of its own, and returns when all have
// returned: nil, or the first error (a panic is one). If one rank fails, the others' waits end with [ErrAborted].
// Local; blocking, as long as run takes. It opens and closes the Comms around run. For tests, examples and laptops; the
// ranks share memory as processes do. [ErrArgument] if n is below 1 or ctx is nil, [ErrLimit] if this process has no
// room for n ranks.
func Local(ctx context.Context, n int, o Options, run func(context.Context, *Comm) error) error {
	return ofRank(runLocal(ctx, n, o, run))
}

// ofRank adds the rank to err, which may be nil, unless err names it already.
func ofRank(rank int, err error) error {
	if e := (*Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("rank %d: %w", rank, err)
}

// runLocal is Local, and also returns the rank that failed.
func runLocal(ctx context.Context, n int, o Options, run func(context.Context, *Comm) error) (rank int, err error) {
	if n < 1 {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: fmt.Errorf("%d ranks: %w", n, ErrArgument)}
	}
	if ctx == nil {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: engine.ErrNilContext}
	}
	if err := team.CheckRanks(n, n, mail.AreaBytes(n)); err != nil {
		return -1, &Error{Op: "local", Rank: -1, Peer: -1, Err: err}
	}
	return runRanks(ctx, bootstrap.Local(n), o, run, func(b bootstrap.Bootstrap, _ int, err error) error {
		if err != nil {
			b.Abort(ExitCode(err))
		}
		return b.Close()
	})
}

// runRanks runs run as the ranks of bs, each on a goroutine of its own. When all have returned, it returns the first
// error and its rank. As each rank returns, runRanks calls leave, which ends that rank's part of the job. If the rank
// has failed, leave gets the first error and the rank that had it.
func runRanks(ctx context.Context, bs []bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error,
	leave func(b bootstrap.Bootstrap, rank int, err error) error) (rank int, first error) {
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
		// note comes before the other ranks can learn of the failure and fail because of it.
		noted := func(ctx context.Context, c *Comm) error {
			err := errGoexit
			defer func() { note(err) }()
			err = protect(ctx, c, run)
			return err
		}
		wg.Go(func() {
			err := errGoexit
			defer func() {
				if note(err); err != nil {
					note(leave(b, rank, first))
					return
				}
				note(leave(b, b.Rank(), nil))
			}()
			err = rankJob(tracing.Label(ctx, b.Rank()), b, o, noted)
		})
	}
	wg.Wait()
	return rank, first
}

// rankJob is one rank's whole job, except for closing the bootstrap.
func rankJob(ctx context.Context, b bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error) error {
	c, err := Open(ctx, b, o)
	if err != nil {
		return err
	}
	err = errGoexit // stays if run calls Goexit
	defer func() {
		if err != nil {
			c.Abort(oneLine(err))
			c.Close()
		}
	}()
	if err = run(ctx, c); err != nil {
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

// oneLine is err for the other ranks: the stack of a panic stays on the rank that panicked.
func oneLine(err error) error {
	if p, ok := errors.AsType[*panicError](err); ok {
		line, _, _ := strings.Cut(fmt.Sprintf("panic: %v", p.value), "\n")
		return errors.New(line)
	}
	return err
}

// ExitCode is the code that the Go runtime exits with after a panic.
func (p *panicError) ExitCode() int { return exitPanic }

var errGoexit = errors.New("the job's function called runtime.Goexit")

// protect calls run and turns a panic into an error.
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
