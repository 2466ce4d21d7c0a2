package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// spread is rank 4 of seven, on two hosts; ranks 1, 4 and 6 are on one.
func spread() *Comm {
	c := &Comm{rank: 4, size: 7, dom: &Domain{hosts: []string{"a", "b", "a", "a", "b", "a", "b"}}}
	c.providers.Attachments = []NewAttachment{func(*Comm, Attachment) Attachment { return &attached{} },
		func(*Comm, Attachment) Attachment { return &spanning{} }}
	c.team.Init(c, team.Ranks{Rank: 4, Size: 7, Local: []int{1, 4, 6}})
	return c
}

// spanning is an attachment that reaches other hosts.
type spanning struct{ attached }

func (*spanning) Span(hosts.PairsConfig) error { return nil }

func TestPlacesOnHosts(t *testing.T) {
	c := spread()
	require.Equal(t, []int{4, 7, 1, 3}, []int{c.Rank(), c.Size(), c.LocalRank(), c.LocalSize()})
	for r, name := range map[int]string{-1: "", 0: "a", 1: "b", 3: "a", 4: "b", 6: "b", 7: ""} {
		require.Equal(t, name, c.Hostname(r), r)
	}
	require.True(t, c.SpansHosts())
	c.attach()
	require.Equal(t, []Attachment{&spanning{}}, c.Attachments(), "those that reach other hosts, alone")
	require.False(t, NoView.Comm.SpansHosts())

	one := &Comm{rank: 1, size: 3}
	one.team.Init(one, team.Ranks{Rank: 1, Size: 3, Local: []int{0, 1, 2}})
	one.team.Peers[1].Host = "here"
	require.Equal(t, []string{"", "here", "here", "here", ""}, []string{one.Hostname(-1), one.Hostname(0), one.Hostname(1),
		one.Hostname(2), one.Hostname(3)})
	require.False(t, one.SpansHosts())
}

// TestSiblings: what a communicator's attachments share with others of the domain does not depend on its parent having
// attachments.
func TestSiblings(t *testing.T) {
	var made, siblings []Attachment
	type attachment struct{ Attachment }
	d := &Domain{}
	for range 3 {
		c := &Comm{dom: d, providers: Providers{Attachments: []NewAttachment{func(_ *Comm, sibling Attachment) Attachment {
			made, siblings = append(made, &attachment{}), append(siblings, sibling)
			return made[len(made)-1]
		}}}}
		c.attach()
	}
	require.Nil(t, siblings[0])
	require.Same(t, made[0], siblings[1])
	require.Same(t, made[0], siblings[2])
}
