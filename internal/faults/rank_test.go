package faults

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// doubles records what a rank does, in place of signals.
type doubles struct {
	mu   sync.Mutex
	done []string
	log  bytes.Buffer
}

func (d *doubles) add(what string) {
	d.mu.Lock()
	d.done = append(d.done, what)
	d.mu.Unlock()
}

func (d *doubles) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.done...)
}

// rank arms rank 1 with what text asks for.
func (d *doubles) rank(t *testing.T, text string) *Rank {
	all, err := Parse(text)
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	return arm(all, 1, log, func() error { d.add("cut"); return nil }, process{
		kill: func() { d.add("kill") },
		stop: func(f time.Duration) error { d.add(fmt.Sprint("stop ", f)); return nil },
	})
}

func TestByCount(t *testing.T) {
	var d doubles
	r := d.rank(t, "kill:rank=1,after=3;stop:rank=1;kill:rank=0;cut:rank=1,after=3;stop:rank=1,after=1,for=2s")
	for _, want := range [][]string{{"stop 0s"}, {"stop 0s", "stop 2s"}, {"stop 0s", "stop 2s"}, {"stop 0s", "stop 2s", "kill", "cut"}} {
		r.Begin()
		require.Equal(t, want, d.all())
	}
	for range 10 {
		r.Begin()
	}
	require.Len(t, d.all(), 4)
	r.End()
	log := d.log.String()
	require.Contains(t, log, `msg="ubcoll: UBCOLL_FAULT is set: this rank fails on request" rank=1 faults="[kill:rank=1,after=3 stop:rank=1,after=0 `)
	require.Equal(t, 4, strings.Count(log, "a fault on request happens"))
}

// What other ranks have to do, this one does not, and nobody asks it.
func TestOthers(t *testing.T) {
	var d doubles
	r := d.rank(t, "kill:rank=0;slow:rank=2,by=1s")
	require.Nil(t, r)
	r.End()
	require.Empty(t, d.log.String())
}

func TestByTime(t *testing.T) {
	var d doubles
	r := d.rank(t, "cut:rank=1,after=10ms;stop:rank=1,after=5m;kill:rank=1,after=0s")
	require.Eventually(t, func() bool { return len(d.all()) == 2 }, time.Minute, time.Millisecond)
	require.ElementsMatch(t, []string{"kill", "cut"}, d.all())
	r.Begin()
	require.Len(t, d.all(), 2)
	r.End() // does not wait for what is still to come
}

// slows says which of the first operations are slowed down, at the times that are given.
func TestSlow(t *testing.T) {
	for _, c := range []struct {
		name, text string
		at         []time.Duration
		want       []bool
	}{
		{"from the first", "slow:rank=1,by=1ns", []time.Duration{0, time.Hour}, []bool{true, true}},
		{"from the third", "slow:rank=1,by=1ns,after=2", []time.Duration{0, 0, 0, time.Hour}, []bool{false, false, true, true}},
		{"from the second, for a while", "slow:rank=1,by=1ns,after=1,for=1m", []time.Duration{0, time.Hour, time.Hour + time.Minute - 1, time.Hour + time.Minute},
			[]bool{false, true, true, false}},
		{"for some time", "slow:rank=1,by=1ns,after=1m,for=1m", []time.Duration{0, 90 * time.Second, 3 * time.Minute}, []bool{false, true, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d doubles
			r := d.rank(t, c.text)
			defer r.End()
			for n, at := range c.at {
				require.Equal(t, c.want[n], r.all[0].slows(n, at), n)
			}
		})
	}
	var d doubles
	r := d.rank(t, "slow:rank=1,by=20ms")
	defer r.End()
	began := time.Now()
	r.Begin()
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
}

func TestNothingToCut(t *testing.T) {
	var d doubles
	r := d.rank(t, "cut:rank=1")
	r.cut = nil
	r.Begin()
	require.Contains(t, d.log.String(), "nothing is cut, since all ranks are on one host")
	r.cut = func() error { return fmt.Errorf("no filter") }
	r.happen(r.all[0])
	require.Contains(t, d.log.String(), `did not happen" rank=1 fault="cut:rank=1,after=0" error="no filter"`)
	r.End()
}
