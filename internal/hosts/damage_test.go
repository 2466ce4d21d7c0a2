package hosts

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// What another host sends is checked before it is used.

// TestDamagedProposals: host 0 of 5 hears from host 2 what hosts 2 and 3 propose.
func TestDamagedProposals(t *testing.T) {
	const second = proposalsHead + dataHead + 8 // where the contribution of host 3 begins
	le := binary.LittleEndian
	for _, k := range []struct {
		name   string
		change func(b []byte) []byte
		text   string // of the error; "": there is none
	}{
		{"nothing", func(b []byte) []byte { return b }, ""},
		{"of an operation before", func(b []byte) []byte { b[0] = 6; return b }, "host 2 tells of operations 6 to 6, and this one is in 7"},
		{"of an operation to come", func(b []byte) []byte { b[0] = 8; return b }, "host 2 tells of operations 8 to 8, and this one is in 7"},
		{"another proposal, of an operation to come", func(b []byte) []byte { b[proposalBytes+6], b[proposalsHead] = 2, 8; return b }, "host 2 tells of operations 7 to "},
		{"no whole other proposal", func(b []byte) []byte { b[proposalBytes+6] = 2; return b[:proposalsHead+proposalBytes-1] }, "what host 2 proposes is damaged"},
		{"no whole head", func(b []byte) []byte { return b[:proposalsHead-1] }, "what host 2 proposes is damaged"},
		{"no second contribution", func(b []byte) []byte { return b[:second] }, "a contribution from host 2 is cut short"},
		{"more contributions than there are", func(b []byte) []byte { b[proposalBytes+4]++; return b }, "a contribution from host 2 is cut short"},
		{"fewer contributions than there are", func(b []byte) []byte { b[proposalBytes+4]--; return b }, "what host 2 proposes is damaged"},
		{"data without their end", func(b []byte) []byte { return b[:len(b)-1] }, "the contribution of host 3, 16 bytes, is cut short"},
		{"more data than there are", func(b []byte) []byte { le.PutUint32(b[second+4:], 17); return b },
			"the contribution of host 3, 17 bytes, is cut short"},
		{"more data than there may be", func(b []byte) []byte { le.PutUint32(b[second+4:], 21); return b },
			"the contribution of host 3 has 21 bytes, and 20 are the most"},
		{"of another host", func(b []byte) []byte { b[second] = 4; return b }, "host 2 has sent a contribution of host 4, which is not its to send"},
		{"of no host that there is", func(b []byte) []byte { b[second] = 5; return b }, "host 2 has sent a contribution of host 5, which is not its to send"},
		{"of a host twice", func(b []byte) []byte { b[second] = 2; return b }, "host 2 has sent a contribution of host 2, which is not its to send"},
	} {
		t.Run(k.name, func(t *testing.T) {
			room := []int{20, 20, 20, 20, 20}
			sender, a := newAgreement(5, 2, 5, room, 0), newAgreement(5, 0, 5, room, 0)
			for _, x := range []*agreement{sender, a} {
				x.begin(7, barrier)
			}
			sender.offer([]byte("some"))
			sender.data[3] = []byte("another's sixteen"[:16])
			b := make([]byte, sender.size(1, 2))
			b = k.change(b[:sender.write(transfer{sends: true, host: 0, round: 1, seq: 7}, b)])
			err := a.read(a.heard(1, 7), b)
			if k.text != "" {
				require.ErrorIs(t, err, fault.ErrMismatch)
				require.ErrorContains(t, err, k.text)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"", "", "some", "another's sixtee", ""}, []string{string(a.data[0]), string(a.data[1]),
				string(a.data[2]), string(a.data[3]), string(a.data[4])})
		})
	}
}

func TestDamagedReports(t *testing.T) {
	const ranks, count, first = 9, reportHead + 16, reportHead + 20 // of the first vote
	for _, k := range []struct {
		name   string
		change func(b []byte) []byte
		ok     bool
	}{
		{"nothing", func(b []byte) []byte { return b }, true},
		{"the last rank that there is", func(b []byte) []byte { b[0], b[first] = ranks, ranks-1; return b }, true},
		{"no head", func(b []byte) []byte { return b[:reportHead-1] }, false},
		{"longer than it says", func(b []byte) []byte { return append(b, 0) }, false},
		{"shorter than it says", func(b []byte) []byte { return b[:len(b)-1] }, false},
		{"too many votes", func(b []byte) []byte { b[12] = maxVotes + 1; return append(b, make([]byte, maxVotes*voteBytes)...) }, false},
		{"too long a text", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[20:], team.TextBytes+1)
			return append(b[:reportHead+voteBytes], make([]byte, team.TextBytes+1)...)
		}, false},
		{"a refusal of no rank that there is", func(b []byte) []byte { b[0] = ranks + 1; return b }, false},
		{"a vote of nobody", func(b []byte) []byte { b[count] = 0; return b }, false},
		{"a vote of more than there are", func(b []byte) []byte { b[count] = ranks + 1; return b }, false},
		{"a vote whose first rank there is not", func(b []byte) []byte { b[first] = ranks; return b }, false},
		{"a vote whose first rank is negative", func(b []byte) []byte { copy(b[first:], bytes.Repeat([]byte{255}, 4)); return b }, false},
		{"more others than there are ranks", func(b []byte) []byte { b[16] = ranks + 1; return b }, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			b := make([]byte, reportBytes)
			y := team.Tally{Refused: &team.Refusal{Rank: 3, About: 4, Code: 1, Text: "no"}, Votes: []team.Vote{{Call: team.Call{Low: 5}, Count: 2, First: 6}}}
			got, err := parseReport(k.change(b[:writeReport(b, &y)]), ranks)
			if !k.ok {
				require.ErrorIs(t, err, fault.ErrMismatch)
				return
			}
			require.NoError(t, err)
			require.Len(t, got.Votes, 1)
		})
	}
}

// Only the answer to the last question counts, and only if its words can be a chain of waits.
func TestAnswers(t *testing.T) {
	for _, k := range []struct {
		name string
		code uint8
		text string
		want bool
	}{
		{"the answer", 3, "1 ", true},
		{"to an earlier question", 2, "1 ", false},
		{"nothing", 3, "", false},
		{"no number", 3, "1 x", false},
		{"about no rank that there is", 3, "ffffffffffffffff", false},
	} {
		t.Run(k.name, func(t *testing.T) {
			x := &team.Team{}
			x.Init(nil, team.Ranks{Size: 2, Local: []int{0}})
			x.Me = &team.Area{}
			a := &asking{}
			a.number.Store(256 + 3)
			a.answers(x, 1, transport.Message{Code: k.code, Text: k.text})
			require.Equal(t, k.want, a.answered.Load())
		})
	}
}
