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
)

// Run runs run as those ranks of the job that are this process's, each with a [Comm], and returns when all of them
// have: nil, or the first error (a panic is one, with its stack). It is for programs that have ends of their own, and
// that [Main] would end: it finds the ranks as Main does, but installs no signal handler, prints nothing but by
// o.Logger, and ends no process. Collective over the job and blocking, as long as run does; it opens and closes the
// Comms around run. ctx is run's, and [Open]'s; the other processes are waited for before, for a minute at most by
// [bootstrap.Env], and by MPI without a limit.
//
// A rank that fails aborts its Comm: whatever the others wait for on it is [ErrAborted] and names that rank, and so is
// their Run where run returns it. A failure leaves MPI unfinalized, since finalizing may wait for ranks that are gone:
// the program has nothing left to do there then but to exit, with ExitCode(err), which has the launcher end the
// processes that have not heard of it. MPI starts once in a process: under a launcher a second Run is [ErrClosed].
//
// [ErrArgument] if run or ctx is nil, or a variable of the environment is malformed; [ErrNotSupported] under a launcher
// of several ranks, if the program was built without MPI; and what Open returns.
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
	// All ranks leave together: those that have succeeded must not have finalized MPI when another one fails.
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

// job is those ranks of a job that are this process's.
type job struct {
	local int                   // how many they are, if they are the job
	whole bootstrap.Bootstrap   // else the process in its job,
	mpi   bool                  // which is MPI's, and
	ranks []bootstrap.Bootstrap // each of them
}

// join finds the job that this process was started as a part of. With an error it may have got as far as whole.
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

// findJob is the job that this process was started as a rank of, or nil, and whether it is MPI's.
func findJob() (b bootstrap.Bootstrap, mpi bool, err error) {
	if env.Rank.IsSet() || env.Size.IsSet() {
		b, err = bootstrap.Env()
		return b, false, err
	}
	name, size := bootstrap.Launcher()
	if name == "" {
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

// rank is this process in its job, -1 if it is all of it.
func (j *job) rank() int {
	if j.whole == nil {
		return -1
	}
	return j.whole.Rank()
}

// quit has b, a rank of this process or all of it, given up because of err, unless that is nil: what closes it then
// waits for nobody. The others are told, but for MPI's, whose Abort would end this process: there b refuses its part in
// an exchange, after which MPI is not finalized any more.
func (j *job) quit(b bootstrap.Bootstrap, err error) {
	switch {
	case b == nil || err == nil:
	case j.mpi:
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(oneLine(err))
		_, _ = b.AllGather(ctx, nil) // what it returns is that it refuses
	default:
		b.Abort(ExitCode(err))
	}
}

// close ends this process's part of the job. An error is the first, and of a rank.
func (j *job) close() (rank int, first error) {
	for _, b := range j.ranks {
		if err := b.Close(); err != nil && first == nil {
			rank, first = b.Rank(), err
		}
	}
	return rank, first
}

// Local runs run as n goroutine ranks of this process, each with a [Comm] of its own, and returns when all have
// returned: nil, or the first error (a panic is one). When one rank fails, the others' waits end with [ErrAborted].
// Local and blocking, as long as run does; it opens and closes the Comms around run. For tests, examples and laptops;
// the ranks share memory as processes do. [ErrArgument] if n is below 1, [ErrLimit] if this process has no room for so
// many.
func Local(ctx context.Context, n int, o Options, run func(context.Context, *Comm) error) error {
	return ofRank(runLocal(ctx, n, o, run))
}

// ofRank is err, which may be nil, with the rank whose it is.
func ofRank(rank int, err error) error {
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

// runRanks runs run as the ranks of bs, each on a goroutine of its own, and returns when all have returned: the first
// error, and which rank's it is. leave is called as each of them has returned, and ends its part of the job: with the
// first error, and whose it is, if it has failed.
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
		// The cause is noted before the other ranks can hear of it, and fail of it.
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
			err = rankJob(ctx, b, o, noted)
		})
	}
	wg.Wait()
	return rank, first
}

// rankJob is one rank's whole job but for the bootstrap's end.
func rankJob(ctx context.Context, b bootstrap.Bootstrap, o Options, run func(context.Context, *Comm) error) error {
	c, err := Open(ctx, b, o)
	if err != nil {
		return err
	}
	err = errGoexit // unless run returns, or panics
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
