package ubcoll

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// DumpAtSignal makes this process write a dump of all its ranks whenever it gets SIGUSR2, until stop is called: to the folder
// that UBCOLL_DUMP names, where `ubcoll dump` reads it together with those of the other processes, or, if it names none, one
// line for each communicator to standard error. [Main] calls it; [Open] and [Run] do not, so a program of its own that
// wants dumps calls it. Without it SIGUSR2 ends the process, which is why `ubcoll ps -dump` sends it to no other.
//
// Dumps are written on their own, without it, when a communicator breaks and UBCOLL_DUMP is set. Local; does not block;
// any goroutine.
func DumpAtSignal() (stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR2)
	engine.DumpAtSignal(true)
	done := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-ch:
				dump()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		engine.DumpAtSignal(false)
		signal.Stop(ch)
		close(done)
		<-over
	})
}

// dump writes dumps, or says on standard error what ranks are in.
func dump() {
	all, folder, err := engine.DumpAll("SIGUSR2")
	if err != nil {
		fmt.Fprintf(os.Stderr, "ubcoll: no dump: %v\n", err)
	}
	if folder != "" {
		return
	}
	for _, d := range all {
		for i := range d.Comms {
			fmt.Fprintf(os.Stderr, "ubcoll: rank %d on host %s, pid %d: %v\n", d.Rank, d.Host, d.PID, &d.Comms[i])
		}
	}
}
