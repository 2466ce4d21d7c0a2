package ubcoll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// golden has the errors as users see them. UPDATE=1 writes it.
const golden = "testdata/errors.txt"

// TestErrorTexts compares errors of many kinds, as users see them, with a file for people to read. None says anything
// twice, or in words that only the library's code uses.
func TestErrorTexts(t *testing.T) {
	t.Setenv("UBCOLL_CUDA", "off")
	said := map[string]string{}
	var order []string
	add := func(name, text string, steady bool) {
		require.NotContains(t, said, name)
		require.NotEmpty(t, text, "%s: no error", name)
		for line := range strings.Lines(text) {
			if what := testkit.CheckErrorText(line); what != "" {
				t.Errorf("%s: %s: %s", name, what, line)
			}
		}
		if steady {
			order = append(order, name)
			said[name] = text
		}
	}
	calls := callErrors()
	texts := make([]string, len(calls))
	var wg sync.WaitGroup
	room := make(chan struct{}, 8)
	for i, k := range calls {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			var lines []line
			for r, err := range k.errs(t) {
				if err != nil {
					lines = append(lines, line{r, steady(err.Error()) + "\n"})
				}
			}
			texts[i] = together(lines)
		})
	}
	wg.Wait()
	for i, k := range calls {
		add(k.name, texts[i], !slices.Contains(varying, k.name))
	}
	ofJobs := jobTexts()
	for _, name := range slices.Sorted(maps.Keys(ofJobs)) {
		add(name, ofJobs[name], true)
	}
	require.GreaterOrEqual(t, len(said), 60)
	var all strings.Builder
	for _, name := range order {
		fmt.Fprintf(&all, "== %s\n%s", name, said[name])
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(all.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	for part := range strings.SplitSeq(string(want), "== ") {
		if name, text, ok := strings.Cut(part, "\n"); ok {
			require.Equal(t, text, said[name], "%s: UPDATE=1 writes %s", name, golden)
			delete(said, name)
		}
	}
	require.Empty(t, said, "UPDATE=1 writes %s", golden)
}

// line is what a rank has said.
type line struct {
	rank int
	text string
}

var teller = regexp.MustCompile(`\brank \d+ (\(host [^)]*\)|on host [^ :]+)`)

// together puts the same errors of several ranks together.
func together(lines []line) string {
	var b strings.Builder
	key := func(text string) string { return teller.ReplaceAllString(text, "") }
	count := map[string]int{}
	for _, l := range lines {
		count[key(l.text)]++
	}
	for _, l := range lines {
		n := count[key(l.text)]
		if delete(count, key(l.text)); n > 1 {
			l.text = fmt.Sprintf("%s (and %d more)\n", strings.TrimSuffix(l.text, "\n"), n-1)
		}
		if n > 0 {
			b.WriteString(l.text)
		}
	}
	return b.String()
}

// What differs from run to run.
var variable = []struct{ find, put string }{
	{`0x[0-9a-f]+`, "0x..."},
	{`\bpid \d+`, "pid N"},
	{`@ubcoll-test-[\w-]+`, "@name"},
	{`(says how long to wait; ).*(: timed out)`, "${1}...${2}"},
	{`(panic: .*\n)\n(.*\n)*`, "$1"}, // its stack
}

// steady replaces that.
func steady(text string) string {
	if host, _ := os.Hostname(); host != "" {
		text = regexp.MustCompile(`\bhost `+regexp.QuoteMeta(host)+`\b`).ReplaceAllString(text, "host h")
	}
	for _, v := range variable {
		text = regexp.MustCompile(v.find).ReplaceAllString(text, v.put)
	}
	return text
}

// jobs are jobs of processes: the environment of each, and what they do. "alone" is one that no launcher has started.
var jobs = map[string]struct {
	does  string
	envs  []string
	alone bool
}{
	"process: NTHREADS":              {"nothing", []string{"NTHREADS=four"}, true},
	"process: NTHREADS of none":      {"nothing", []string{"NTHREADS=-1"}, true},
	"process: UBCOLL_TIMEOUT":        {"nothing", []string{"UBCOLL_TIMEOUT=fast"}, true},
	"process: UBCOLL_REGISTER":       {"nothing", []string{"UBCOLL_REGISTER=offf"}, true},
	"process: UBCOLL_RANK alone":     {"nothing", []string{"UBCOLL_RANK=0"}, true},
	"process: ranks from 1":          {"nothing", []string{"UBCOLL_RANK=2"}, false},
	"process: short secret":          {"nothing", []string{"UBCOLL_SECRET=s UBCOLL_SIZE=1"}, false},
	"process: goroutine ranks":       {"fails", []string{"NTHREADS=3"}, true},
	"process: goroutine rank panics": {"panics", []string{"NTHREADS=3"}, true},
	"processes: own error":           {"fails", []string{"", ""}, false},
	"processes: error of a call":     {"wraps", []string{"", ""}, false},
	"processes: panic":               {"panics", []string{"", ""}, false},
	"processes: count":               {"differs", []string{"", ""}, false},
	"processes: exit":                {"exits", []string{"", ""}, false},
	"processes: another UBCOLL_ALGO": {"nothing", []string{"", "UBCOLL_ALGO=ring"}, false},
	"processes: malformed on one":    {"nothing", []string{"", "UBCOLL_TIMEOUT=fast"}, false},
}

// childMain is a process of jobs.
func childMain() error {
	ubcoll.Main(ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		if does := os.Getenv("UBCOLL_TEST_DOES"); c.Rank() == 1 {
			switch does {
			case "fails":
				return errors.New("no luck")
			case "wraps":
				return fmt.Errorf("step 3: %w", send(7, 1)(ctx, c))
			case "panics":
				panic("no luck")
			case "exits":
				os.Exit(9)
			case "differs":
				return reduce(99)(ctx, c)
			}
		} else if does == "nothing" {
			return nil
		}
		return reduce(100)(ctx, c)
	})
	return nil
}

// jobTexts runs the jobs and returns what they have said.
func jobTexts() map[string]string {
	texts := map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	at := time.Now().UnixNano()
	for name, job := range jobs {
		at++
		where := fmt.Sprintf("UBCOLL_RENDEZVOUS=unix:@ubcoll-test-%d-%d", os.Getpid(), at)
		lines := make([]line, len(job.envs))
		var of sync.WaitGroup
		for r, env := range job.envs {
			environ := []string{"UBCOLL_TEST_DOES=" + job.does, testkit.NoSleep}
			if !job.alone {
				environ = append(environ, fmt.Sprint("UBCOLL_RANK=", r), fmt.Sprint("UBCOLL_SIZE=", len(job.envs)), where,
					"UBCOLL_SECRET=0123456789abcdef")
			}
			cmd := testkit.Child("main", append(environ, strings.Fields(env)...)...)
			var out bytes.Buffer
			cmd.Stderr = &out
			of.Go(func() {
				_ = cmd.Run() // it fails, as it should
				lines[r] = line{r, steady(out.String())}
			})
		}
		wg.Go(func() {
			of.Wait()
			mu.Lock()
			defer mu.Unlock()
			texts[name] = together(lines)
		})
	}
	wg.Wait()
	return texts
}
