package clock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"waits": waits})
	os.Exit(testkit.Main(m))
}

func TestDeadline(t *testing.T) {
	start := time.Now()
	for _, k := range []struct {
		name  string
		looks []time.Duration // after the start
		want  []bool
	}{
		{"in time", []time.Duration{50 * time.Millisecond, 99 * time.Millisecond}, []bool{false, false}},
		{"passed", []time.Duration{50 * time.Millisecond, 99 * time.Millisecond, 100 * time.Millisecond},
			[]bool{false, false, true}},
		{"stopped", []time.Duration{10 * time.Millisecond, time.Hour, time.Hour + 29*time.Millisecond,
			time.Hour + 30*time.Millisecond}, []bool{false, false, false, true}},
		{"stopped twice", []time.Duration{time.Hour, 2 * time.Hour}, []bool{false, true}},
	} {
		t.Run(k.name, func(t *testing.T) {
			d := Deadline{left: 100 * time.Millisecond, last: start}
			for i, at := range k.looks {
				require.Equal(t, k.want[i], d.passed(start.Add(at), 60*time.Millisecond), "%v", at)
			}
		})
	}
}

func TestWithTimeout(t *testing.T) {
	cause := errors.New("too late")
	for _, derived := range []bool{false, true} {
		ctx, cancel := WithTimeout(t.Context(), 20*time.Millisecond, cause)
		if derived {
			var end context.CancelFunc
			ctx, end = context.WithCancel(ctx)
			defer end()
		}
		require.NoError(t, ctx.Err())
		<-ctx.Done()
		require.Equal(t, cause, context.Cause(ctx))
		cancel()
		require.Equal(t, cause, context.Cause(ctx))
		require.Equal(t, !derived, ctx.Err() == context.DeadlineExceeded)
	}
	ctx, cancel := WithTimeout(t.Context(), time.Hour, nil)
	cancel()
	<-ctx.Done()
	require.Equal(t, context.Canceled, ctx.Err())
	parent, end := context.WithCancel(t.Context())
	ctx, cancel = WithTimeout(parent, time.Hour, nil)
	defer cancel()
	end()
	<-ctx.Done()
	require.Equal(t, context.Canceled, ctx.Err())
}

const inChild = 2 * time.Second

// waits says which limits have passed when it is told to look, by a line on its standard input.
func waits() error {
	d, timer := In(inChild), After(inChild)
	defer timer.Stop()
	ctx, cancel := WithTimeout(context.Background(), inChild, nil)
	defer cancel()
	plain := time.NewTimer(inChild)
	defer plain.Stop()
	fmt.Println(`"waiting"`)
	line := make(chan error, 1)
	go func() {
		_, err := fmt.Scanln()
		line <- err
	}()
	passed := false
	for {
		select {
		case err := <-line:
			time.Sleep(Gap) // for timers to be seen
			select {
			case <-plain.C:
				fmt.Printf("\"%v %v %v\"\n", passed || d.Passed(), ctx.Err() != nil, closed(timer.C))
			default:
				fmt.Println(`"the test did not stop this process for long enough"`)
			}
			return err
		case <-time.After(time.Millisecond):
			passed = passed || d.Passed()
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
