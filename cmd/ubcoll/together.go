package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/env"
)

// pair is a line of an answer: a name and a value.
type pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// group is an answer and the ranks that gave it.
type group[T any] struct {
	Ranks  string `json:"ranks"` // as 0-3,5
	Answer T      `json:"answer"`
}

// meeting is the job whose ranks answer together. job is nil if this process was not started as part of one.
type meeting struct{ job bootstrap.Bootstrap }

// meet joins the job that this process was started in, if there is one.
func meet() (meeting, error) {
	var m meeting
	var err error
	if bootstrap.EnvSource() != "" {
		m.job, err = bootstrap.Env()
	} else if name, n := bootstrap.Launcher(); name != "" && n != 1 {
		m.job, err = bootstrap.MPI()
	}
	return m, err
}

// close ends this process's part of the job.
func (m meeting) close() error {
	if m.job == nil {
		return nil
	}
	return m.job.Close()
}

// ranksFrom says whose variables, or what, give this process its place in a job; "" if it is no part of one.
func ranksFrom() string {
	name, n := bootstrap.Launcher()
	switch by := bootstrap.EnvSource(); {
	case by == env.Rank.Name:
		return "processes, by " + by + " and the variables beside it"
	case by != "":
		return "processes, by " + by + "'s variables, without MPI"
	case name != "" && n != 1:
		return "processes, by MPI"
	}
	return ""
}

// asks gathers the answers of all ranks and returns them in groups, on every rank. It closes m's job. Collective.
func asks[T any](m meeting, mine T) ([]group[T], error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if m.job == nil {
		return []group[T]{{"0", mine}}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all, err := m.job.AllGather(ctx, text)
	if err := errors.Join(err, m.close()); err != nil {
		return nil, err
	}
	return grouped[T](all)
}

// grouped returns one group for each distinct answer, in the order of their first ranks.
func grouped[T any](all [][]byte) ([]group[T], error) {
	var distinct [][]byte
	var ranks [][]int
	for r, text := range all {
		i := slices.IndexFunc(distinct, func(d []byte) bool { return bytes.Equal(d, text) })
		if i < 0 {
			i = len(distinct)
			distinct, ranks = append(distinct, text), append(ranks, nil)
		}
		ranks[i] = append(ranks[i], r)
	}
	var groups []group[T]
	for i, text := range distinct {
		g := group[T]{Ranks: ranges(ranks[i])}
		if err := json.Unmarshal(text, &g.Answer); err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// ranges formats ranks, which are in ascending order, as 0-3,5.
func ranges(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(ranks[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// printGroups writes the first answer whole, and of every other answer the lines that the first does not have.
func printGroups[T any](out io.Writer, groups []group[T], text func(T) string) error {
	var b strings.Builder
	var first []string
	for i, g := range groups {
		lines := slices.Collect(strings.Lines(text(g.Answer)))
		if len(groups) > 1 || g.Ranks != "0" {
			head := "ranks"
			if !strings.ContainsAny(g.Ranks, "-,") {
				head = "rank"
			}
			differs := ""
			if i > 0 {
				differs = ", where it differs"
			}
			fmt.Fprintf(&b, "%s %s%s:\n", head, g.Ranks, differs)
		}
		if i == 0 {
			first = lines
		}
		for _, line := range lines {
			if i == 0 || !slices.Contains(first, line) {
				b.WriteString(line)
			}
		}
	}
	_, err := io.WriteString(out, b.String()) // in one write: processes that found no job print at the same time
	return err
}
