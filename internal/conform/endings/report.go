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

// ReadyFile is where a rank says that it is inside, with its process id. Ranks and tests meet by files in CONFORM_DIR.
func ReadyFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.ready", rank))
}

// EnoughFile is where a test says that ranks may come to an end.
func EnoughFile(dir string) string { return filepath.Join(dir, "enough") }

// RoundsFile is where rank 0 says how often something was done.
func RoundsFile(dir string) string { return filepath.Join(dir, "rounds") }

// RunFile is where this process says what Run has given it.
func RunFile(dir string) string { return filepath.Join(dir, fmt.Sprintf("run-%d", os.Getpid())) }

// RunFiles are the files of the processes that have said so.
func RunFiles(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "run-*")) // its pattern is right
	return files
}

func reportFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.report", rank))
}

// ready says that this rank is inside. It returns the folder for what else there is to say.
func ready(c *ubcoll.Comm) (dir string, err error) {
	if dir, err = conform.Dir(); err != nil {
		return "", err
	}
	return dir, write(ReadyFile(dir, c.Rank()), fmt.Sprint(os.Getpid()))
}

// write makes a file that has the text as soon as it is there.
func write(name, text string) error {
	return errors.Join(os.WriteFile(name+".tmp", []byte(text), 0o600), os.Rename(name+".tmp", name))
}

// report writes which rank a lost peer's survivor names, and when, and stays until the other survivors have done so:
// what follows, in Main, may end them.
func report(c *ubcoll.Comm, dir string, err error) error {
	if err := writeReport(c, dir, err, time.Now()); err != nil {
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
func writeReport(c *ubcoll.Comm, dir string, err error, at time.Time) error {
	e := &ubcoll.Error{Peer: -1}
	errors.As(err, &e)
	text := fmt.Sprintf("%d %d lost=%v %v", e.Peer, at.UnixNano(), errors.Is(err, ubcoll.ErrPeerLost), err)
	return write(reportFile(dir, c.Rank()), text)
}

// Report is what a survivor has written.
type Report struct {
	About int // the rank that it names
	At    time.Time
	Lost  bool   // its error is ErrPeerLost
	Text  string // all of it
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
