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

// blockOf returns a block with data.
func blockOf(host int, seq uint64, data string) []byte {
	b := make([]byte, blockBytes(len(data)))
	k := block{host: host, seq: seq, sig: 5}
	k.head(b, len(data))
	copy(b[blockHead:], data)
	return b
}

func TestDamagedBlocks(t *testing.T) {
	for _, k := range []struct {
		name   string
		change func(b []byte) []byte
		text   string // of the error; "": there is none
	}{
		{"nothing", func(b []byte) []byte { return b }, ""},
		{"of another host", func(b []byte) []byte { b[0] = 2; return b }, "a block of host 2 in the place of host 1's"},
		{"of an operation before", func(b []byte) []byte { b[8] = 6; return b }, "host 1 is in operation 6, this one in 7"},
		{"of an operation to come", func(b []byte) []byte { b[8] = 8; return b }, "host 1 is in operation 8, this one in 7"},
		{"no whole head", func(b []byte) []byte { return b[:blockHead-1] }, "the block of host 1 is cut short"},
		{"no second block", func(b []byte) []byte { return b[:blockBytes(4)] }, "the block of host 2 is cut short"},
		{"data without their end", func(b []byte) []byte { return b[:len(b)-1] }, "the data of host 2's block, 20 bytes, are cut short"},
		{"more data than there are", func(b []byte) []byte { b[blockBytes(4)+4] += 13; return b },
			"the data of host 2's block, 33 bytes, are cut short"},
	} {
		t.Run(k.name, func(t *testing.T) {
			all := make([]block, 3)
			b := k.change(append(blockOf(1, 7, "some"), blockOf(2, 7, "data of another host")...))
			n, err := parseBlocks(b, all, 1, 2, 7)
			if k.text != "" {
				require.ErrorIs(t, err, fault.ErrMismatch)
				require.ErrorContains(t, err, k.text)
				return
			}
			require.NoError(t, err)
			require.Equal(t, len(b), n)
			require.Equal(t, []string{"some", "data of another host"}, []string{string(all[1].data), string(all[2].data)})
		})
	}
}

func TestDamagedReports(t *testing.T) {
	const ranks = 9
	for _, k := range []struct {
		name   string
		change func(b []byte) []byte
		ok     bool
	}{
		{"nothing", func(b []byte) []byte { return b }, true},
		{"the last rank that there is", func(b []byte) []byte { b[0], b[32+16] = ranks, ranks-1; return b }, true},
		{"no head", func(b []byte) []byte { return b[:31] }, false},
		{"longer than it says", func(b []byte) []byte { return append(b, 0) }, false},
		{"shorter than it says", func(b []byte) []byte { return b[:len(b)-1] }, false},
		{"too many votes", func(b []byte) []byte { b[12] = maxVotes + 1; return append(b, make([]byte, maxVotes*voteBytes)...) }, false},
		{"too long a text", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[16:], team.TextBytes+1)
			return append(b[:32+voteBytes], make([]byte, team.TextBytes+1)...)
		}, false},
		{"a refusal of no rank that there is", func(b []byte) []byte { b[0] = ranks + 1; return b }, false},
		{"a vote of nobody", func(b []byte) []byte { b[32+8] = 0; return b }, false},
		{"a vote of more than there are", func(b []byte) []byte { b[32+8] = ranks + 1; return b }, false},
		{"a vote whose first rank there is not", func(b []byte) []byte { b[32+16] = ranks; return b }, false},
		{"a vote whose first rank is negative", func(b []byte) []byte { copy(b[32+16:], bytes.Repeat([]byte{255}, 8)); return b }, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			b := make([]byte, reportBytes)
			y := team.Tally{Refused: &team.Refusal{Rank: 3, About: 4, Code: 1, Text: "no"}, Votes: []team.Vote{{Sig: 5, Count: 2, First: 6}}}
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

// A leader asks the one that it waits for which rank that waits for. Only the answer to the last question counts, and only if
// it names a rank that there is.
func TestAnswers(t *testing.T) {
	for _, k := range []struct {
		name string
		m    transport.Message
		want int32
	}{
		{"the answer", transport.Message{Kind: kindMiss, Code: 3, About: 4}, 5},
		{"about rank 0", transport.Message{Kind: kindMiss, Code: 3, About: 0}, 1},
		{"to an earlier question", transport.Message{Kind: kindMiss, Code: 2, About: 4}, 0},
		{"about no rank", transport.Message{Kind: kindMiss, Code: 3, About: -1}, 0},
		{"about no rank that there is", transport.Message{Kind: kindMiss, Code: 3, About: 6}, 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			s := stageOf(2, 0)
			p := &peer{host: 1, rank: 1, world: 11}
			s.ranks, s.peers = 6, []*peer{nil, p}
			p.asks.Store(256 + 3)
			require.Nil(t, s.heard(11, k.m))
			require.Equal(t, k.want, p.misses.Load())
			p.misses.Store(0)
			require.Nil(t, s.heard(12, k.m))
			require.Zero(t, p.misses.Load(), "from another process")
		})
	}
}
