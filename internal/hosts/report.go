package hosts

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A report is a tally as bytes: the first refusal, up to maxVotes votes, and the number of other ranks.
const (
	maxVotes    = 8
	voteBytes   = 16 + 4 + 4 // the call as two words, count, and first rank
	reportHead  = 6 * 4
	reportBytes = reportHead + maxVotes*voteBytes + team.TextBytes
)

// writeReport fills b from the front, and returns how many bytes it wrote. y has at most maxVotes votes.
func writeReport(b []byte, y *team.Tally) int {
	le := binary.LittleEndian
	text := ""
	clear(b[:reportHead])
	if k := y.Refused; k != nil {
		le.PutUint32(b[0:], uint32(k.Rank+1))
		le.PutUint32(b[4:], uint32(k.About+1))
		code := uint32(k.Code) << 1
		if k.Counts {
			code |= 1
		}
		le.PutUint32(b[8:], code)
		text = k.Text[:min(len(k.Text), team.TextBytes)]
	}
	le.PutUint32(b[12:], uint32(len(y.Votes)))
	le.PutUint32(b[16:], uint32(y.Others))
	le.PutUint32(b[20:], uint32(len(text)))
	at := reportHead
	for _, v := range y.Votes {
		le.PutUint64(b[at:], v.Call.High)
		le.PutUint64(b[at+8:], v.Call.Low)
		le.PutUint32(b[at+16:], uint32(v.Count))
		le.PutUint32(b[at+20:], uint32(v.First))
		at += voteBytes
	}
	return at + copy(b[at:], text)
}

var errReport = fmt.Errorf("a report that is damaged: %w", fault.ErrMismatch)

// parseReport reads what writeReport wrote, for a communicator of this many ranks.
func parseReport(b []byte, ranks int) (y team.Tally, err error) {
	le := binary.LittleEndian
	if len(b) < reportHead {
		return y, errReport
	}
	votes, text := int(le.Uint32(b[12:])), int(le.Uint32(b[20:]))
	if votes > maxVotes || text > team.TextBytes || len(b) != reportHead+votes*voteBytes+text {
		return y, errReport
	}
	if rank := int(le.Uint32(b)); rank > ranks {
		return y, errReport
	} else if rank > 0 {
		y.Refused = &team.Refusal{Rank: rank - 1, About: int(le.Uint32(b[4:])) - 1, Code: int(le.Uint32(b[8:]) >> 1),
			Counts: le.Uint32(b[8:])&1 != 0, Text: string(b[len(b)-text:])}
	}
	if y.Others = int(le.Uint32(b[16:])); y.Others > ranks {
		return y, errReport
	}
	for i := range votes {
		v := b[reportHead+i*voteBytes:]
		k := team.Vote{Call: team.Call{High: le.Uint64(v), Low: le.Uint64(v[8:])}, Count: int(le.Uint32(v[16:])), First: int(le.Uint32(v[20:]))}
		if k.Count < 1 || k.Count > ranks || k.First >= ranks {
			return y, errReport
		}
		y.Votes = append(y.Votes, k)
	}
	return y, nil
}
