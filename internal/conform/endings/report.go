package endings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// ReadyFile is where a rank writes its process id when it is ready. Ranks and tests meet by files in CONFORM_DIR.
func ReadyFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.ready", rank))
}

// VictimFile is where a test writes which rank KillFirst kills, and after how many microseconds.
func VictimFile(dir string) string { return filepath.Join(dir, "victim") }

// EnoughFile is how a test says that ranks may end.
func EnoughFile(dir string) string { return filepath.Join(dir, "enough") }

// RoundsFile is where rank 0 writes how often something was done.
func RoundsFile(dir string) string { return filepath.Join(dir, "rounds") }

// RunFile is where this process writes what Run has returned.
func RunFile(dir string) string { return filepath.Join(dir, fmt.Sprintf("run-%d", os.Getpid())) }

// RunFiles returns the files of the processes that have written one.
func RunFiles(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "run-*")) // the pattern is valid
	return files
}

func reportFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.report", rank))
}

// ready reports that this rank is ready. It returns the folder for its other files.
func ready(c *ubcoll.Comm) (dir string, err error) {
	if dir, err = conform.Dir(); err != nil {
		return "", err
	}
	return dir, write(ReadyFile(dir, c.Rank()), fmt.Sprint(os.Getpid()))
}

// write makes a file that is complete from the moment it appears.
func write(name, text string) error {
	return testkit.InOrder(
		func() error { return os.WriteFile(name+".tmp", []byte(text), 0o600) },
		func() error { return os.Rename(name+".tmp", name) })
}

// report writes which rank the error of this survivor names, and when. It waits until the other survivors have done so,
// since Main may end them when this one returns.
func report(c *ubcoll.Comm, dir string, err error) error {
	if err := writeReport(c.Rank(), dir, err, time.Now()); err != nil {
		return err
	}
	e := &ubcoll.Error{Peer: -1}
	errors.As(err, &e)
	testkit.Until(func() bool {
		for r := range c.Size() {
			if _, err := os.Stat(reportFile(dir, r)); r != e.Peer && err != nil {
				return false
			}
		}
		return true
	})
	return nil
}

// writeReport writes which rank err names.
func writeReport(rank int, dir string, err error, at time.Time) error {
	e := &ubcoll.Error{Peer: -1}
	errors.As(err, &e)
	text := fmt.Sprintf("%d %d lost=%v %v", e.Peer, at.UnixNano(), errors.Is(err, ubcoll.ErrPeerLost), err)
	return write(reportFile(dir, rank), text)
}

// Report is what a survivor has written.
type Report struct {
	About int // the rank that it names
	At    time.Time
	Lost  bool   // its error is ErrPeerLost
	Text  string // the whole error
}

// ReadReport reads the report of a rank.
func ReadReport(dir string, rank int) (Report, error) {
	b, err := os.ReadFile(reportFile(dir, rank))
	if err != nil {
		return Report{}, err
	}
	var about int
	var at int64
	var lost string
	_, err = fmt.Sscan(string(b), &about, &at, &lost)
	return Report{about, time.Unix(0, at), lost == "lost=true", string(b)}, err
}
