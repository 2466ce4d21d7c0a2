package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// hears is a use that keeps what it hears.
type hears struct{ all []string }

func (h *hears) heard(_ int, m transport.Message) *fault.Error {
	h.all = append(h.all, m.Text)
	return nil
}
func (h *hears) down(*transport.Down) *fault.Error { return nil }
func (h *hears) tick()                             {}
func (h *hears) breakBy(why func() *fault.Error)   { why() }

// Messages for a use that is expected are kept until it is added, those for others are not.
func TestEarlyMessages(t *testing.T) {
	n := &Network{uses: map[uint64]use{}, early: map[uint64][]letter{}}
	say := func(id uint64, text string) { n.heard(1, transport.Message{Comm: id, Text: text}) }
	say(1, "nobody expects this")
	n.expect(1)
	n.expect(2)
	say(1, "a")
	say(2, "for another")
	say(1, "b")
	h := &hears{}
	n.add(1, h)
	require.Equal(t, []string{"a", "b"}, h.all)
	say(1, "c")
	require.Equal(t, []string{"a", "b", "c"}, h.all)
	n.remove(1)
	n.remove(2)
	say(1, "too late")
	say(2, "too late")
	require.Len(t, h.all, 3)
	require.Empty(t, n.uses)
	require.Empty(t, n.early)
}
