package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []Fault
		err        string
	}{
		{"kill", "kill:rank=2,after=100", []Fault{{Action: Kill, Rank: 2, Operations: 100}}, ""},
		{"the first operation", "kill:rank=0", []Fault{{Action: Kill}}, ""},
		{"at once", "cut:rank=0,after=0s", []Fault{{Action: Cut, Timed: true}}, ""},
		{"a time", "cut:rank=1,after=1.5s", []Fault{{Action: Cut, Rank: 1, Timed: true, Time: 1500 * time.Millisecond}}, ""},
		{"several", "stop:rank=1,after=2s,for=5s; slow:rank=1,by=1ms,for=1m", []Fault{
			{Action: Stop, Rank: 1, Timed: true, Time: 2 * time.Second, For: 5 * time.Second},
			{Action: Slow, Rank: 1, By: time.Millisecond, For: time.Minute}}, ""},
		{"any order", " slow:by=1us, rank=3 ,after=7 ", []Fault{{Action: Slow, Rank: 3, Operations: 7, By: time.Microsecond}}, ""},

		{"unknown action", "kil:rank=1", nil, `entry "kil:rank=1": want an action and its rank, as kill:rank=2: the actions are kill, stop, slow, cut: did you mean kill?`},
		{"no action", "rank=1", nil, `entry "rank=1": want an action and its rank, as kill:rank=2: the actions are kill, stop, slow, cut`},
		{"an empty entry", "kill:rank=1;", nil, `entry "": want an action and its rank, as kill:rank=2: the actions are kill, stop, slow, cut`},
		{"no rank", "kill:after=1", nil, `entry "kill:after=1": kill needs rank`},
		{"no keys", "kill", nil, `entry "kill": "": the keys of kill are rank, after, each as rank=2`},
		{"not by how much", "slow:rank=1", nil, `entry "slow:rank=1": slow needs by`},
		{"another's key", "kill:rank=1,for=2s", nil, `entry "kill:rank=1,for=2s": "for=2s": the keys of kill are rank, after, each as rank=2`},
		{"unknown key", "stop:ranks=1", nil, `entry "stop:ranks=1": "ranks=1": the keys of stop are rank, after, for, each as rank=2: did you mean rank?`},
		{"twice", "kill:rank=1,rank=2", nil, `entry "kill:rank=1,rank=2": rank is there twice`},
		{"no number", "kill:rank=one", nil, `entry "kill:rank=one": rank=one: want a whole number, from 0`},
		{"negative", "kill:rank=-1", nil, `entry "kill:rank=-1": rank=-1: want a whole number, from 0`},
		{"negative count", "kill:rank=1,after=-1", nil, `entry "kill:rank=1,after=-1": after=-1: want a number of operations, from 0, or a time, as 2s`},
		{"negative time", "kill:rank=1,after=-1s", nil, `entry "kill:rank=1,after=-1s": after=-1s: want a number of operations, from 0, or a time, as 2s`},
		{"no unit", "kill:rank=1,after=1.5", nil, `entry "kill:rank=1,after=1.5": after=1.5: want a number of operations, from 0, or a time, as 2s`},
		{"for nothing", "stop:rank=1,for=0s", nil, `entry "stop:rank=1,for=0s": for=0s: want a time over zero, as 2s or 100us`},
		{"by a number", "slow:rank=1,by=5", nil, `entry "slow:rank=1,by=5": by=5: want a time over zero, as 2s or 100us`},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := Parse(c.text)
			if c.err != "" {
				require.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, all)
		})
	}
}

// FuzzParse: whatever is read is written as an entry that means the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"kill:rank=2,after=100", "stop:rank=1,after=2s,for=5s", "slow:rank=1,by=1ms;cut:rank=0,after=0s", "kill:rank",
		"slow:rank=1,by=-1ms", "cut:rank=99999999999999999999", ";", ":", "kill:rank=1,after=1e9s", "kill:,rank=1", "stop:rank=1,after=+3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all, err := Parse(s)
		if err != nil {
			require.Nil(t, all)
			return
		}
		require.NotEmpty(t, all)
		for _, k := range all {
			again, err := Parse(k.String())
			require.NoError(t, err, "%q", k.String())
			require.Equal(t, []Fault{k}, again)
		}
	})
}
