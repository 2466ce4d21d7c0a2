package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

// attached is an attachment that notes what is done with it.
type attached struct {
	Attachment
	name string
	busy error
	did  *[]string
}

func (a *attached) Shut(bool) error {
	*a.did = append(*a.did, "shut "+a.name)
	return a.busy
}

func (a *attached) Reopen() { *a.did = append(*a.did, "reopen "+a.name) }

// advancing is one with work.
type advancing struct{ attached }

func (a *advancing) Advance() {}
func (a *advancing) Pass()    {}

// TestAttachments: all attachments are shut, or none, and only those with work are asked to advance, for communicators
// without attachments too.
func TestAttachments(t *testing.T) {
	var did []string
	a := &attached{name: "a", did: &did}
	b := &advancing{attached{name: "b", did: &did}}
	busy := &attached{name: "c", did: &did, busy: fault.ErrBusy}
	c := &Comm{dom: &Domain{}}
	for _, x := range []Attachment{a, b, busy} {
		c.providers.Attachments = append(c.providers.Attachments, func(*Comm, Attachment) Attachment { return x })
	}
	c.attach()
	require.Equal(t, []Advancer{b}, c.domainAdvancers())
	require.Equal(t, []Advancer{b}, (&Comm{dom: c.dom}).domainAdvancers())
	require.ErrorIs(t, c.shut(false), fault.ErrBusy)
	require.Equal(t, []string{"shut a", "shut b", "shut c", "reopen b", "reopen a"}, did)
}
