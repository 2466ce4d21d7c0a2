package usage

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFlag(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-repeat 1", "unknown flag --repeat: did you mean --repeats?"},
		{"--dry", "unknown flag --dry: did you mean --dry-run?"},
		{"-x", "unknown flag -x: -h lists the flags"},
		{"---x", "bad flag syntax: ---x"},
		{"-repeats", "--repeats needs a value: how often"},
		{"-o", "-o needs a value: the folder of results"},
		{"-repeats two", `--repeats "two": want a whole number`},
		{"-repeats 99999999999999999999", `--repeats "99999999999999999999": want a whole number`},
		{"-seed -1", `--seed "-1": want a whole number from 0`},
		{"-grace 5", `--grace "5": want a duration, as 30s or 10m`},
		{"-dry-run=maybe", `--dry-run "maybe": want true or false`},
		{"-e 1:2x", `-e: no size "1:2x"`},
		{"-e 7", `-e "7": want none`},
	} {
		fs := flag.NewFlagSet("x", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Int("repeats", 1, "how often")
		fs.String("o", "", "the `folder` of results")
		fs.Uint64("seed", 1, "of the data")
		fs.Duration("grace", time.Second, "how long")
		fs.Bool("dry-run", false, "measure nothing")
		fs.Func("e", "a size", func(s string) error {
			if s == "7" {
				return errors.New("want none")
			}
			return fmt.Errorf("no size %q", s)
		})
		require.EqualError(t, Flag(fs, fs.Parse(strings.Fields(c.args))), c.want)
	}
}
