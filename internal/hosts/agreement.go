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
// First the hosts tell each other their proposals. In round k, of a number of hosts that is a power of two, a host
// exchanges what it has heard so far with the host whose number differs in bit k: so acknowledgements of TCP travel with
// the answers. With other numbers the hosts disseminate (Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988): a host tells the host 2^k before it, and hears from the host 2^k behind it. After
// ceil(log2 hosts) rounds each host has the proposals of all, folded into one value of constant size. Which hosts talk,
// and how often, does not depend on the operation: hosts that want different ones still find each other.
//
// Contributions, the data of small operations, travel with the proposals: before round k a host has those of 2^k hosts,
// see first, and sends them. Between pairs, those of reductions are folded: a host sends one combination of them all
// (recursive doubling), since no host's data come twice. In dissemination this is Bruck's all-gather (Bruck, Ho, Kipnis, Upfal and Weathersby,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997), where a host leaves
// out, in the last round, what the other host has.
//
// If the proposals are not all the same, the hosts gather reports, by a binomial tree, on host 0, which sends everybody
// the sum. This time each host counts once, so that votes can be added.
type agreement struct {
	hosts, me int
	ranks     int   // of all hosts
	room      []int // most bytes of each host's contribution, if all contribute
	lone      int   // the same if one alone does, or contributions are folded
	rounds    int   // of proposals
	pairs     bool  // the hosts exchange in pairs
	to, from  []int // by round: whom this host tells, and hears
	children  int   // hosts me+1, me+2, me+4 and so on report to this one

	seq  uint64 // of the operation
	sum  proposals
	last arrival  // of the operation before
	data [][]byte // contributions, by host; nil: none
	some bool     // data has some
	// folds says that contributions are folded. Then data has this host's fold, and theirs is the fold that was heard last.
	folds  bool
	theirs []byte
	router team.Router // instead of contributions; or nil

	bad     uint64 // counts the operations on which hosts did not agree: numbers the reports
	tally   team.Tally
	gathers bool // reports

	at int // how many of the steps have been done
}

// proposals is what some hosts want. Folding it with itself changes nothing: in rounds of a number of hosts that is no
// power of two, some proposals come twice.
type proposals struct {
	least, greatest proposal
	refuser         int  // 1 + the first rank that refuses; 0: none does
	staged          bool // some host has buffers that go through staging memory
}

// proposal is what a rank wants: an operation, and its number.
type proposal struct {
	seq  uint64
	call team.Call
}

// nobody is what no rank at all proposes.
var nobody = proposals{least: proposal{^uint64(0), team.Call{High: ^uint64(0), Low: ^uint64(0)}}}

func (a proposal) before(b proposal) bool {
	if a.seq != b.seq {
		return a.seq < b.seq
	}
	return a.call.High < b.call.High || a.call.High == b.call.High && a.call.Low < b.call.Low
}

// add folds what ranks propose into c.
func (c *proposals) add(d proposals) {
	if d.least.before(c.least) {
		c.least = d.least
	}
	if c.greatest.before(d.greatest) {
		c.greatest = d.greatest
	}
	if d.refuser != 0 && (c.refuser == 0 || d.refuser < c.refuser) {
		c.refuser = d.refuser
	}
	c.staged = c.staged || d.staged
}

// one reports whether all want the same, though some may refuse it.
func (c *proposals) one() bool { return c.least == c.greatest }

// same reports whether all want the same, and nobody refuses.
func (c *proposals) same() bool { return c.refuser == 0 && c.one() }

func newAgreement(hosts, me, ranks int, room []int, lone int) *agreement {
	a := &agreement{hosts: hosts, me: me, ranks: ranks, room: room, lone: lone, rounds: roundsOf(hosts), data: make([][]byte, hosts)}
	a.pairs = inPairs(hosts)
	for k := range a.rounds {
		to, from := heardIn(hosts, me, k)
		a.to, a.from = append(a.to, to), append(a.from, from)
	}
	below := hosts // how many hosts, from this one on, report through this one
	if me > 0 {
		below = min(me&-me, hosts-me)
	}
	for 1<<a.children < below {
		a.children++
	}
	return a
}

// inPairs reports whether so many hosts exchange their proposals in pairs.
func inPairs(hosts int) bool { return hosts == 1<<roundsOf(hosts) }

// heardIn is whom a host tells in a round, and whom it hears.
func heardIn(hosts, me, round int) (to, from int) {
	if inPairs(hosts) {
		return me ^ 1<<round, me ^ 1<<round
	}
	return (me - 1<<round + hosts) % hosts, (me + 1<<round) % hosts
}

// roundsOf is how many rounds it takes to hear from all hosts.
func roundsOf(hosts int) int { return bits.Len(uint(hosts - 1)) }

// parent is the host that this one reports to. Host 0 has none.
func (a *agreement) parent() int { return a.me & (a.me - 1) }

// begin begins an operation that all ranks of this host propose. Word by word: copies of whole proposals would wait for
// the words to be written.
func (a *agreement) begin(seq uint64, call team.Call) {
	c := &a.sum
	c.least.seq, c.least.call = seq, call
	c.greatest.seq, c.greatest.call = seq, call
	c.refuser, c.staged = 0, false
	a.last = 0
	a.seq, a.gathers, a.folds, a.theirs, a.router, a.at = seq, false, false, nil, nil, 0
	if a.some {
		clear(a.data)
		a.some = false
	}
}

// differs says that the ranks of this host propose c instead.
func (a *agreement) differs(c proposals) { a.sum = c }

// offer adds this host's contribution. It is the caller's until the operation ends.
func (a *agreement) offer(data []byte) { a.data[a.me], a.some = data, true }

// fold offers data that are to be folded, and later what has come of folding them.
func (a *agreement) fold(data []byte) {
	a.offer(data)
	a.folds, a.theirs = true, nil
}

// report begins the second exchange, with what this host's ranks have published.
func (a *agreement) report(y team.Tally) {
	a.bad++
	a.tally, a.gathers, a.at = y, true, 0
	a.tally.Cut(maxVotes)
}

// transfer is one message that a host sends or receives.
type transfer struct { // four words, which the compiler keeps in registers
	sends bool
	host  int    // to or from which
	round int    // of proposals; rounds: a report
	seq   uint64 // of the message, among those of this round
}

// agreementPlaces is how many places of a peer are for the agreement: for proposals and for reports, with even and odd
// sequences. Rounds need none of their own, since a host hears each other host in one round at most.
const agreementPlaces = 4

// place is where the message lands.
func (a *agreement) place(d transfer) int {
	place := int(d.seq & 1)
	if d.round == a.rounds {
		place += 2
	}
	return place
}

// next returns what to do next; false if the exchange is over.
func (a *agreement) next() (d transfer, ok bool) {
	if a.gathers {
		return a.nextReport()
	}
	k := a.at / 2
	if k == a.rounds {
		return d, false
	}
	if a.at%2 == 0 {
		d = transfer{sends: true, host: a.to[k], round: k, seq: a.seq}
	} else {
		d = a.heard(k, a.seq)
	}
	a.at++
	return d, true
}

// heard is the transfer of receiving the proposals of a round.
func (a *agreement) heard(k int, seq uint64) transfer {
	return transfer{host: a.from[k], round: k, seq: seq}
}

// reported is the transfer of receiving report seq, or the sum of all.
func (a *agreement) reported(host int, seq uint64) transfer {
	return transfer{host: host, round: a.rounds, seq: seq}
}

// nextReport is next in the second exchange: hear the children, those with few hosts below them first; tell the parent,
// and hear the sum from it; tell the children, in the other order.
func (a *agreement) nextReport() (d transfer, ok bool) {
	d = transfer{round: a.rounds, seq: a.bad}
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

// The head of a message of proposals: the least proposal; the refuser; an arrival; how many contributions follow; in a byte, how many
// proposals there are, 1 or 2; in the next, 1 if some host stages; and the greatest proposal, if it is another one. Together with the frame's head it has at
// most 128 bytes. As long as all goes well it has 64: of so little each byte counts.
const (
	proposalBytes = 3 * 8
	proposalsHead = proposalBytes + 2 + 2 + 2 + 2
	dataHead      = 4 + 4 // of a contribution: host, and length
)

// padded rounds n up, so that what follows a contribution stays aligned for every element type.
func padded(n int) int { return (n + 7) &^ 7 }

// count is how many hosts' contributions travel in round k.
func (a *agreement) count(k int) int { return min(1<<k, a.hosts-1<<k) }

// first is the first of the hosts, around, whose contributions host h has before round k.
func (a *agreement) first(h, k int) int {
	if a.pairs {
		return h &^ (1<<k - 1)
	}
	return h
}

// behind is the i-th host behind h.
func (a *agreement) behind(h, i int) int {
	if h += i; h >= a.hosts {
		h -= a.hosts
	}
	return h
}

// before is how many hosts h is before i, around.
func (a *agreement) before(h, i int) int {
	if i < h {
		i += a.hosts
	}
	return i - h
}

// several is the most bytes of a host's message of a round if all hosts contribute, single if one does, or contributions
// are folded; empty has none.
func (a *agreement) several(round, host int) int {
	n := empty
	for i := range a.count(round) {
		n += dataHead + padded(a.room[a.behind(a.first(host, round), i)])
	}
	return n
}

func (a *agreement) single() int { return empty + dataHead + padded(a.lone) }

// empty is the most bytes of a message without contributions.
const empty = proposalsHead + proposalBytes

// size is the most bytes of a host's message of a round, or of a report.
func (a *agreement) size(round, host int) int {
	if round == a.rounds {
		return reportBytes
	}
	return max(a.several(round, host), a.single())
}

// carries is how many contributions travel in the next message of a round: 0, 1, or 2 for more.
func (a *agreement) carries(round int) (n int) {
	switch {
	case a.router != nil && a.sum.one() && a.router.Carries(round):
		return 1
	case !a.some || !a.sum.one(): // nobody uses them
		return 0
	case a.folds:
		return 1
	}
	for i := 0; n < 2 && i < a.count(round); i++ {
		if a.data[a.behind(a.first(a.me, round), i)] != nil {
			n++
		}
	}
	return n
}

// write writes the message that d sends to b. It returns its length.
func (a *agreement) write(d transfer, b []byte) int {
	if d.round == a.rounds {
		return writeReport(b, &a.tally)
	}
	le := binary.LittleEndian
	a.sum.least.write(b)
	le.PutUint16(b[proposalBytes:], uint16(a.sum.refuser)) // there are fewer ranks: see team.MaxRanks
	le.PutUint16(b[proposalBytes+2:], uint16(a.last))
	n, items, many := proposalsHead, 0, 1
	if a.sum.greatest != a.sum.least {
		many = 2
		a.sum.greatest.write(b[n:])
		n += proposalBytes
	}
	if a.router != nil && many == 1 {
		n += a.router.Pack(d.round, b[n:])
	}
	for i := 0; a.some && many == 1 && i < a.count(d.round); i++ {
		h := a.behind(a.first(a.me, d.round), i)
		data := a.data[h]
		if a.folds {
			data, i = a.data[a.me], a.hosts // the only one
		}
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
	le.PutUint16(b[proposalBytes+4:], uint16(items))
	b[proposalBytes+6], b[proposalBytes+7] = byte(many), 0
	if a.sum.staged {
		b[proposalBytes+7] = 1
	}
	return n
}

// repeats reports whether a message has one proposal alone, which this host has as the least, and no refuser: then
// there is nothing to fold.
func (a *agreement) repeats(b []byte) bool {
	least := &a.sum.least
	k := readProposal(b)
	const beside = 0xffff<<32 | 0xffff<<16 // contributions, and an arrival
	rest := binary.LittleEndian.Uint64(b[proposalBytes:]) &^ beside
	return k.seq == least.seq && k.call == least.call && (rest == 1<<48 || rest == 1<<48|stages && a.sum.staged)
}

const stages = 1 << 56 // in the word behind a proposal

func (a proposal) write(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, a.seq)
	le.PutUint64(b[8:], a.call.High)
	le.PutUint64(b[16:], a.call.Low)
}

func readProposal(b []byte) proposal {
	le := binary.LittleEndian
	return proposal{le.Uint64(b), team.Call{High: le.Uint64(b[8:]), Low: le.Uint64(b[16:])}}
}

func errProposals(host int) error {
	return fmt.Errorf("what host %d proposes is damaged: %w", host, fault.ErrMismatch)
}

// own is where the data of this host's contribution, or of its fold, lie in a message that has no other: written there, they
// need not be copied.
func (a *agreement) own(b []byte) []byte {
	n := a.most(a.me)
	return b[proposalsHead+dataHead:][:n:n]
}

// most is the most bytes of a host's contribution.
func (a *agreement) most(h int) int { return max(a.room[h], a.lone) }

// read takes in the message b that d receives. Contributions are used where they are.
func (a *agreement) read(d transfer, b []byte) error {
	if d.round == a.rounds {
		return a.readReport(d, b)
	}
	if len(b) < proposalsHead {
		return errProposals(d.host)
	}
	le := binary.LittleEndian
	n, items := proposalsHead, int(le.Uint16(b[proposalBytes+4:]))
	a.last = a.last.earliest(arrival(le.Uint16(b[proposalBytes+2:])))
	if !a.repeats(b) {
		c := proposals{least: readProposal(b), refuser: int(le.Uint16(b[proposalBytes:])), staged: b[proposalBytes+7] != 0}
		if c.greatest = c.least; b[proposalBytes+6] != 1 {
			if len(b) < n+proposalBytes {
				return errProposals(d.host)
			}
			c.greatest = readProposal(b[n:])
			n += proposalBytes
		}
		if none := c.least == nobody.least && c.greatest == nobody.greatest; !none && (c.least.seq != a.seq || c.greatest.seq != a.seq) {
			return fmt.Errorf("host %d tells of operations %d to %d, and this one is in %d: %w", d.host, c.least.seq,
				c.greatest.seq, a.seq, fault.ErrMismatch)
		}
		a.sum.add(c)
	}
	if !a.sum.same() {
		return nil // nobody uses the contributions, which may be of several operations
	}
	if a.router != nil {
		if !a.router.Unpack(d.round, b[n:]) {
			return errProposals(d.host)
		}
		return nil
	}
	if a.folds {
		return a.readFold(d, b[n:], items)
	}
	for ; items > 0; items-- {
		if len(b)-n < dataHead {
			return fmt.Errorf("a contribution from host %d is cut short: %w", d.host, fault.ErrMismatch)
		}
		h, bytes := int(le.Uint32(b[n:])), int(le.Uint32(b[n+4:]))
		n += dataHead
		switch {
		case h >= a.hosts || a.before(a.first(d.host, d.round), h) >= a.count(d.round) || a.data[h] != nil:
			return fmt.Errorf("host %d has sent a contribution of host %d, which is not its to send: %w", d.host, h, fault.ErrMismatch)
		case bytes > a.most(h):
			return fmt.Errorf("the contribution of host %d has %d bytes, and %d are the most: %w", h, bytes, a.most(h), fault.ErrMismatch)
		case padded(bytes) > len(b)-n:
			return fmt.Errorf("the contribution of host %d, %d bytes, is cut short: %w", h, bytes, fault.ErrMismatch)
		}
		a.data[h], a.some = b[n:n+bytes:n+bytes], true
		n += padded(bytes)
	}
	if n != len(b) {
		return errProposals(d.host)
	}
	return nil
}

// readFold takes in a peer's fold.
func (a *agreement) readFold(d transfer, b []byte, items int) error {
	n, le := len(a.data[a.me]), binary.LittleEndian
	if items != 1 || len(b) != dataHead+padded(n) || int(le.Uint32(b)) != a.first(d.host, d.round) || int(le.Uint32(b[4:])) != n {
		return errProposals(d.host)
	}
	a.theirs = b[dataHead:][:n:n]
	return nil
}

// readReport takes in a child's report, or the sum from the parent.
func (a *agreement) readReport(d transfer, b []byte) error {
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
