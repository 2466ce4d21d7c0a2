// Package fdtrace knows, in tests, who opened each file descriptor that the library owns, so that a leak can be told with
// the stack of its opening. Who opens one calls Open, and Close before it closes it or gives it away. Without Start, which
// testkit.Main calls, both cost one load.
package fdtrace

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// tracer is nil unless Start was called.
var tracer atomic.Pointer[trace]

// trace is what is open.
type trace struct {
	mu   sync.Mutex
	last uint64
	open map[int]opening
}

// opening is one Open.
type opening struct {
	number uint64
	fd     int
	what   string
	stack  []uintptr
}

// Start makes Open and Close note descriptors, for the rest of the process.
func Start() { tracer.CompareAndSwap(nil, &trace{open: map[int]opening{}}) }

// Open notes that fd was opened, which is some what, like "memory file". A negative fd is none. Local, for any goroutine.
func Open(fd int, what string) {
	t := tracer.Load()
	if t == nil || fd < 0 {
		return
	}
	stack := make([]uintptr, 32)
	stack = stack[:runtime.Callers(2, stack)]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.open[fd] = opening{t.last, fd, what, stack}
}

// Close notes that fd is about to be closed, or is another's from now on. Nobody need have called Open. Local, for any
// goroutine.
func Close(fd int) {
	t := tracer.Load()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, fd)
}

// Forget forgets what is open: for a test that leaves descriptors open on purpose.
func Forget() {
	t := tracer.Load()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.open)
}

// Mark is a point in time for Since: it names the last descriptor opened. It is 0 without Start.
func Mark() uint64 {
	t := tracer.Load()
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Since says of each descriptor that was opened after mark and is still open what it is and who opened it, or is "" if
// there are none.
func Since(mark uint64) string {
	t := tracer.Load()
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []opening
	for _, o := range t.open {
		if o.number > mark {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b opening) int { return int(a.number) - int(b.number) })
	var b strings.Builder
	for _, o := range all {
		fmt.Fprintf(&b, "descriptor %d, a %s, was opened by\n", o.fd, o.what)
		frames := runtime.CallersFrames(o.stack)
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			fmt.Fprintf(&b, "\t%s\n\t\t%s:%d\n", f.Function, f.File, f.Line)
		}
	}
	return b.String()
}
