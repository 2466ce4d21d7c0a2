package hosts

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// A rank that waits long for one of another host asks that rank what it waits for itself. The answer goes as far as the
// asked rank knows: it asks, too. So after some questions the first rank knows at which rank the chain ends, or that it is
// a circle, and says so when it gives up. Questions and answers may be lost.

const askEvery = time.Second

// asking is the questions to one peer.
type asking struct {
	number   atomic.Uint32 // of the last one, to recognize late answers to earlier ones
	answered atomic.Bool
}

// question is what one wait has asked.
type question struct {
	at   time.Duration // when, since the wait began
	some bool
}

// ask asks a peer, if it is time to. A peer that does not read is not asked again.
func (a *asking) ask(q *question, waited time.Duration, comm uint64, e transport.Endpoint) {
	if waited-q.at < askEvery || q.some && !a.answered.Load() {
		return
	}
	q.at, q.some = waited, true
	a.answered.Store(false)
	e.Tell(transport.Message{Comm: comm, Kind: kindAsk, Code: uint8(a.number.Add(1)), MayBeLost: true})
}

// answer answers a peer's question.
func answer(t *team.Team, m transport.Message, e transport.Endpoint) {
	var b strings.Builder
	for _, w := range t.Chain() {
		fmt.Fprintf(&b, "%x ", w)
	}
	e.Tell(transport.Message{Comm: m.Comm, Kind: kindMiss, Code: m.Code, Text: b.String(), MayBeLost: true})
}

// answers takes the answer of a rank.
func (a *asking) answers(t *team.Team, rank int, m transport.Message) {
	if m.Code != uint8(a.number.Load()) {
		return
	}
	var words []uint64
	for _, f := range strings.Fields(m.Text) {
		w, err := strconv.ParseUint(f, 16, 64)
		if err != nil {
			return
		}
		words = append(words, w)
	}
	if t.SetBeyond(rank, words) {
		a.answered.Store(true)
	}
}
