package hosts

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// agreement is one host's part in agreeing with the others on an operation. It does no I/O: next says what to do, and
// write and read make and take the messages.
//
// First the hosts disseminate their claims (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
// 1988): in round k a host tells the host 2^k before it what it has heard so far, and hears from the host 2^k behind
// it. After ceil(log2 hosts) rounds each host has the claims of all, folded into one value of constant size. Which hosts
// talk, and how often, does not depend on the operation: hosts that want different ones still find each other.
//
// Contributions, the data of small operations, travel with the claims as in Bruck's all-gather (Bruck, Ho, Kipnis,
// Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems",
// 1997): before round k a host has those of the next 2^k hosts, itself included, and sends them except, in the last
// round, for what the other host has.
//
// If the claims are not all the same, the hosts gather reports, by a binomial tree, on host 0, which sends everybody
// the sum. This time each host counts once, so that votes can be added.
type agreement struct {
	hosts, me int
	ranks     int   // of all hosts
	room      []int // most bytes of each host's contribution
	rounds    int   // of claims
	children  int   // hosts me+1, me+2, me+4 and so on report to this one

	seq  uint64 // of the operation
	sum  claims
	data [][]byte // contributions, by host; nil: none
	some bool     // data has some

	bad     uint64 // counts the operations on which hosts did not agree: numbers the reports
	tally   team.Tally
	gathers bool // reports

	at int // how many of the steps have been done
}

// claims is what some hosts want. Folding it with itself changes nothing: in rounds of a number of hosts that is no
// power of two, some claims come twice.
type claims struct {
	least, greatest claim
	refuser         int // 1 + the first rank that refuses; 0: none does
}

// claim is what a rank wants: the number of an operation, and the call as two words.
type claim struct{ seq, high, low uint64 }

func claimOf(seq uint64, c team.Call) claim {
	k := claim{seq: seq}
	k.high, k.low = c.Words()
	return k
}

// nobody is what no rank at all claims.
var nobody = claims{least: claim{^uint64(0), ^uint64(0), ^uint64(0)}}

func (a claim) before(b claim) bool {
	return a.seq < b.seq || a.seq == b.seq && (a.high < b.high || a.high == b.high && a.low < b.low)
}

// add folds what ranks claim into c.
func (c *claims) add(d *claims) {
	if *c == *d {
		return
	}
	if d.least.before(c.least) {
		c.least = d.least
	}
	if c.greatest.before(d.greatest) {
		c.greatest = d.greatest
	}
	if d.refuser != 0 && (c.refuser == 0 || d.refuser < c.refuser) {
		c.refuser = d.refuser
	}
}

// same reports whether all want the same, and nobody refuses.
func (c *claims) same() bool { return c.refuser == 0 && c.least == c.greatest }

func newAgreement(hosts, me, ranks int, room []int) *agreement {
	a := &agreement{hosts: hosts, me: me, ranks: ranks, room: room, rounds: roundsOf(hosts), data: make([][]byte, hosts)}
	for limit := a.below(); 1<<a.children < limit && me+1<<a.children < hosts; {
		a.children++
	}
	return a
}

// roundsOf is how many rounds it takes to hear from all hosts.
func roundsOf(hosts int) int { return bits.Len(uint(hosts - 1)) }

// below is how many hosts, from this one on, report through this one.
func (a *agreement) below() int {
	if a.me == 0 {
		return a.hosts
	}
	return min(a.me&-a.me, a.hosts-a.me)
}

// parent is the host that this one reports to. Host 0 has none.
func (a *agreement) parent() int { return a.me & (a.me - 1) }

// begin begins operation seq, of which this host's ranks claim c.
func (a *agreement) begin(seq uint64, c claims) {
	a.seq, a.sum, a.gathers, a.at = seq, c, false, 0
	if a.some {
		clear(a.data)
		a.some = false
	}
}

// offer adds this host's contribution. It is the caller's until the operation ends.
func (a *agreement) offer(data []byte) { a.data[a.me], a.some = data, true }

// report begins the second exchange, with what this host's ranks have published.
func (a *agreement) report(y team.Tally) {
	a.bad++
	a.tally, a.gathers, a.at = y, true, 0
	a.tally.Cut(maxVotes)
}

// deed is one message that a host sends or receives.
type deed struct {
	sends bool
	host  int    // to or from which
	round int    // of claims; rounds: a report
	place int    // at the receiver
	seq   uint64 // of the message, at that place
}

// Places of the messages: two for each round of claims, for even and odd operations, and one for reports.
func (a *agreement) claimsAt(k int, seq uint64) int { return 2*k + int(seq&1) }
func (a *agreement) reportsAt() int                 { return 2 * a.rounds }
func agreementPlaces(hosts int) int                 { return 2*roundsOf(hosts) + 1 }

// next returns what to do next; false if the exchange is over.
func (a *agreement) next() (d deed, ok bool) {
	if a.gathers {
		return a.nextReport()
	}
	k := a.at / 2
	if k == a.rounds {
		return d, false
	}
	if a.at%2 == 0 {
		d = deed{sends: true, host: a.to(k), round: k, place: a.claimsAt(k, a.seq), seq: a.seq}
	} else {
		d = a.heard(k, a.seq)
	}
	a.at++
	return d, true
}

// heard is the deed of receiving the claims of a round.
func (a *agreement) heard(k int, seq uint64) deed {
	return deed{host: a.from(k), round: k, place: a.claimsAt(k, seq), seq: seq}
}

// reported is the deed of receiving report seq, or the sum of all.
func (a *agreement) reported(host int, seq uint64) deed {
	return deed{host: host, round: a.rounds, place: a.reportsAt(), seq: seq}
}

func (a *agreement) to(k int) int   { return (a.me - 1<<k + a.hosts) % a.hosts }
func (a *agreement) from(k int) int { return (a.me + 1<<k) % a.hosts }

// nextReport is next in the second exchange: hear the children, those with few hosts below them first; tell the parent,
// and hear the sum from it; tell the children, in the other order.
func (a *agreement) nextReport() (d deed, ok bool) {
	d = deed{round: a.rounds, place: a.reportsAt(), seq: a.bad}
	i := a.at
	a.at++
	if i < a.children {
		d.host = a.me + 1<<i
		return d, true
	}
	i -= a.children
	if a.me != 0 {
		if i < 2 {
			d.host, d.sends = a.parent(), i == 0
			return d, true
		}
		i -= 2
	}
	if i < a.children {
		d.host, d.sends = a.me+1<<(a.children-1-i), true
		return d, true
	}
	return d, false
}

// The head of a message of claims: the least and the greatest claim, the refuser, and the number of contributions that
// follow. Together with the frame's head it has at most 128 bytes.
const (
	claimBytes = 8 + 16
	claimsHead = 2*claimBytes + 4 + 4
	dataHead   = 4 + 4 // of a contribution: host, and length
)

// padded rounds n up, so that what follows a contribution stays aligned for every element type.
func padded(n int) int { return (n + 7) &^ 7 }

// count is how many hosts' contributions travel in round k.
func (a *agreement) count(k int) int { return min(1<<k, a.hosts-1<<k) }

// size is the most bytes that the message of a round has which begins with the contribution of host first; or those of
// a report.
func (a *agreement) size(round, first int) int {
	if round == a.rounds {
		return reportBytes
	}
	n := claimsHead
	for i := range a.count(round) {
		n += dataHead + padded(a.room[(first+i)%a.hosts])
	}
	return n
}

// write writes the message that d sends to b. It returns its length.
func (a *agreement) write(d deed, b []byte) int {
	if d.round == a.rounds {
		return writeReport(b, &a.tally)
	}
	le := binary.LittleEndian
	a.sum.least.write(b)
	a.sum.greatest.write(b[claimBytes:])
	le.PutUint32(b[2*claimBytes:], uint32(a.sum.refuser))
	n, items := claimsHead, 0
	for i := 0; a.some && i < a.count(d.round); i++ {
		h := (a.me + i) % a.hosts
		data := a.data[h]
		if data == nil {
			continue
		}
		items++
		le.PutUint32(b[n:], uint32(h))
		le.PutUint32(b[n+4:], uint32(len(data)))
		if to := b[n+dataHead:]; unsafe.SliceData(to) != unsafe.SliceData(data) { // see own
			copy(to, data)
		}
		n += dataHead + padded(len(data))
	}
	le.PutUint32(b[2*claimBytes+4:], uint32(items))
	return n
}

func (a claim) write(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, a.seq)
	le.PutUint64(b[8:], a.high)
	le.PutUint64(b[16:], a.low)
}

func readClaim(b []byte) claim {
	le := binary.LittleEndian
	return claim{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])}
}

// own is where the data of this host's contribution lie in the message of the first round: written there, they need
// not be copied.
func (a *agreement) own(b []byte) []byte { return b[claimsHead+dataHead:][:a.room[a.me]] }

// read takes in the message b that d receives. Contributions are used where they are.
func (a *agreement) read(d deed, b []byte) error {
	if d.round == a.rounds {
		return a.readReport(d, b)
	}
	if len(b) < claimsHead {
		return fmt.Errorf("what host %d claims is cut short: %w", d.host, fault.ErrMismatch)
	}
	le := binary.LittleEndian
	c := claims{readClaim(b), readClaim(b[claimBytes:]), int(le.Uint32(b[2*claimBytes:]))}
	if none := c.least == nobody.least && c.greatest == nobody.greatest; !none && (c.least.seq != a.seq || c.greatest.seq != a.seq) {
		return fmt.Errorf("host %d says that hosts are in operations %d to %d, and this one is in %d: %w", d.host, c.least.seq,
			c.greatest.seq, a.seq, fault.ErrMismatch)
	}
	items := int(le.Uint32(b[2*claimBytes+4:]))
	for n := claimsHead; items > 0; items-- {
		if len(b)-n < dataHead {
			return fmt.Errorf("a contribution from host %d is cut short: %w", d.host, fault.ErrMismatch)
		}
		h, bytes := int(le.Uint32(b[n:])), int(le.Uint32(b[n+4:]))
		n += dataHead
		switch {
		case h >= a.hosts || (h-d.host+a.hosts)%a.hosts >= a.count(d.round) || a.data[h] != nil:
			return fmt.Errorf("host %d has sent a contribution of host %d, which is not its to send: %w", d.host, h, fault.ErrMismatch)
		case bytes > a.room[h]:
			return fmt.Errorf("the contribution of host %d has %d bytes, and %d are the most: %w", h, bytes, a.room[h], fault.ErrMismatch)
		case padded(bytes) > len(b)-n:
			return fmt.Errorf("the contribution of host %d, %d bytes, is cut short: %w", h, bytes, fault.ErrMismatch)
		}
		a.data[h], a.some = b[n:n+bytes:n+bytes], true
		n += padded(bytes)
	}
	a.sum.add(&c)
	return nil
}

// readReport takes in a child's report, or the sum from the parent.
func (a *agreement) readReport(d deed, b []byte) error {
	y, err := parseReport(b, a.ranks)
	if err != nil {
		return err
	}
	if d.host < a.me {
		a.tally = y
		return nil
	}
	a.tally.Add(&y)
	a.tally.Cut(maxVotes)
	return nil
}
