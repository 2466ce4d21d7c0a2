package hosts

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var barrier = (&team.Work{Kind: team.KindBarrier}).Call()

// crowd is the hosts of a communicator, which agree without a network.
type crowd struct {
	all   []*agreement
	todo  []*transfer            // by host: what it waits for
	over  []bool                 // by host
	mail  map[mailKey][][]byte   // messages under way, by sender, receiver and round
	sent  int                    // messages
	bytes int                    // of the longest message
	said  func(s string)         // gets what happens, or is nil
	known map[team.Call]string   // for said
	folds map[int][8]byte        // by host: what has come of folding, which is the first host and how many
	draw  func(n int) (pick int) // which of n hosts goes on next
}

func newCrowd(hosts, room int) *crowd {
	c := &crowd{mail: map[mailKey][][]byte{}, todo: make([]*transfer, hosts), over: make([]bool, hosts), known: map[team.Call]string{},
		folds: map[int][8]byte{}, draw: func(int) int { return 0 }}
	for me := range hosts {
		c.all = append(c.all, newAgreement(hosts, me, hosts, slices.Repeat([]int{room}, hosts), 0))
	}
	return c
}

// run lets hosts do what they have to do until none can go on. It returns which are not over then.
func (c *crowd) run() (stuck []int, err error) {
	clear(c.over)
	clear(c.todo)
	for {
		var can []int
		stuck = nil
		for h := range c.all {
			if c.todo[h] == nil && !c.over[h] {
				if d, ok := c.all[h].next(); ok {
					c.todo[h] = &d
				} else {
					c.over[h] = true
				}
			}
			d := c.todo[h]
			switch {
			case d == nil:
			case d.sends || len(c.mail[key(d.host, h, d)]) > 0:
				can = append(can, h)
			default:
				stuck = append(stuck, h)
			}
		}
		if len(can) == 0 {
			return stuck, nil
		}
		if err := c.do(can[c.draw(len(can))]); err != nil {
			return nil, err
		}
	}
}

// mailKey is sender, receiver, round, and sequence.
type mailKey [4]int

func key(from, to int, d *transfer) mailKey { return mailKey{from, to, d.round, int(d.seq)} }

func (c *crowd) do(h int) error {
	a, d := c.all[h], c.todo[h]
	c.todo[h] = nil
	if d.sends {
		b := make([]byte, a.size(d.round, h))
		b = b[:a.write(*d, b)]
		k := key(h, d.host, d)
		c.mail[k] = append(c.mail[k], b)
		c.sent++
		c.bytes = max(c.bytes, len(b))
		if c.said != nil {
			c.said(fmt.Sprintf("%d -> %d: %s", h, d.host, c.show(a, d, len(b))))
		}
		return nil
	}
	k := key(d.host, h, d)
	b := c.mail[k][0]
	c.mail[k] = c.mail[k][1:]
	if err := a.read(*d, b); err != nil || a.theirs == nil {
		return err
	}
	return c.fold(a, d)
}

// fold folds what a host has and what it has heard.
func (c *crowd) fold(a *agreement, d *transfer) error {
	x, y, le := a.data[a.me], a.theirs, binary.LittleEndian
	if le.Uint32(y) < le.Uint32(x) {
		x, y = y, x
	}
	var sum [8]byte
	le.PutUint32(sum[:], le.Uint32(x))
	le.PutUint32(sum[4:], le.Uint32(x[4:])+le.Uint32(y[4:]))
	if le.Uint32(x)+le.Uint32(x[4:]) != le.Uint32(y) {
		return fmt.Errorf("host %d folds %v and %v", a.me, x, y)
	}
	if c.folds[a.me] = sum; d.round < a.rounds-1 {
		a.fold(sum[:])
	}
	a.theirs = nil
	return nil
}

// show describes a message that a sends.
func (c *crowd) show(a *agreement, d *transfer, bytes int) string {
	if d.round == a.rounds {
		var s []string
		if k := a.tally.Refused; k != nil {
			s = append(s, fmt.Sprintf("rank %d refuses: %s", k.Rank, k.Text))
		}
		for _, v := range a.tally.Votes {
			s = append(s, fmt.Sprintf("%d for %s, first rank %d", v.Count, c.known[v.Call], v.First))
		}
		if a.tally.Others > 0 {
			s = append(s, fmt.Sprintf("%d others", a.tally.Others))
		}
		return strings.Join(s, "; ")
	}
	s := fmt.Sprintf("round %d, %s", d.round, c.proposal(a.sum))
	var of []string
	for i := range a.count(d.round) {
		if h := (a.me + i) % a.hosts; a.data[h] != nil {
			of = append(of, fmt.Sprint(h))
		}
	}
	if of != nil {
		s += ", data of " + strings.Join(of, " ")
	}
	return fmt.Sprintf("%s: %d bytes", s, bytes)
}

func (c *crowd) proposal(x proposals) string {
	s := c.known[x.least.call]
	switch {
	case x.least == nobody.least:
		s = "nothing"
	case x.greatest != x.least:
		s += " to " + c.known[x.greatest.call]
	}
	if x.refuser != 0 {
		s += fmt.Sprintf(", rank %d refuses", x.refuser-1)
	}
	return s
}

// TestAgreementScripts runs the transcripts in testdata. Each host has one rank.
//
//	hosts N                  they begin
//	agree                    each following line is one of:
//	  H CALL [data=N]        host H makes that call, a letter, and contributes so many bytes
//	  H refuses TEXT
//	others instead of H is all hosts that no line before is about.
//
// It prints the messages in the order in which they are sent, and what each host knows afterwards, with equal ones
// together.
func TestAgreementScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/agreement", func(t *testing.T, path string) {
		var c *crowd
		seq := uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "hosts" {
				n, err := strconv.Atoi(d.CmdArgs[0].Key)
				require.NoError(t, err)
				c, seq = newCrowd(n, 64), 0
				return "ok\n"
			}
			var out strings.Builder
			c.said = func(s string) { fmt.Fprintln(&out, s) }
			seq++
			ys := c.begin(t, seq, d.Input)
			c.finish(t, &out, ys)
			return out.String()
		})
	})
}

// begin begins an operation by lines of a script. It returns the hosts' tallies.
func (c *crowd) begin(t *testing.T, seq uint64, input string) []team.Tally {
	ys := make([]team.Tally, len(c.all))
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		f := strings.Fields(line)
		hs := []string{f[0]}
		if f[0] == "others" {
			hs = nil
			for h := range ys {
				if ys[h].Votes == nil && ys[h].Refused == nil {
					hs = append(hs, fmt.Sprint(h))
				}
			}
		}
		for _, s := range hs {
			h, err := strconv.Atoi(s)
			require.NoError(t, err)
			if f[1] == "refuses" {
				k := nobody
				k.refuser = h + 1
				c.all[h].begin(seq, team.Call{})
				c.all[h].differs(k)
				ys[h].Refused = &team.Refusal{Rank: h, About: -1, Text: strings.Join(f[2:], " ")}
				continue
			}
			call := (&team.Work{Kind: team.KindAllReduce, Count: int(f[1][0])}).Call()
			c.known[call] = f[1]
			c.all[h].begin(seq, call)
			ys[h].Votes = []team.Vote{{Call: call, Count: 1, First: h}}
			if len(f) > 2 {
				var n int
				_, err := fmt.Sscanf(f[2], "data=%d", &n)
				require.NoError(t, err)
				c.all[h].offer(slices.Repeat([]byte{byte(h)}, n))
			}
		}
	}
	return ys
}

// finish runs an operation to its end, and prints what the hosts know then.
func (c *crowd) finish(t *testing.T, out *strings.Builder, ys []team.Tally) {
	stuck, err := c.run()
	require.NoError(t, err)
	require.Empty(t, stuck, "hosts wait forever")
	for _, a := range c.all {
		require.Equal(t, c.all[0].sum, a.sum, "host %d", a.me)
	}
	if c.all[0].sum.same() {
		fmt.Fprintf(out, "all agree: %s\n", c.proposal(c.all[0].sum))
		return
	}
	fmt.Fprintf(out, "no agreement: %s\n", c.proposal(c.all[0].sum))
	for h, a := range c.all {
		a.report(ys[h])
	}
	stuck, err = c.run()
	require.NoError(t, err)
	require.Empty(t, stuck, "hosts wait forever")
	for _, a := range c.all {
		require.Equal(t, c.all[0].tally, a.tally, "host %d", a.me)
	}
}

// TestAgreement: in whatever order the messages of any number of hosts come, all know the same in the end, have each
// contribution once, and have sent as many messages as the number of hosts says.
func TestAgreement(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	last := 130
	if testing.Short() {
		last = 34
	}
	for n := 2; n <= last; n++ {
		c := newCrowd(n, 64)
		c.draw = r.IntN
		rounds := roundsOf(n)
		for seq := range uint64(4) {
			kinds := []int{1, 1, 2, 12}[seq] // how many different calls are made
			want, refuser := nobody, 0
			ys := make([]team.Tally, n)
			var contribute []int
			for h, a := range c.all {
				call := (&team.Work{Kind: team.KindBroadcast, Root: r.IntN(kinds), Count: 9}).Call()
				k := proposal{seq + 1, call}
				x := proposals{least: k, greatest: k}
				ys[h].Votes = []team.Vote{{Call: call, Count: 1, First: h}}
				if kinds > 1 && r.IntN(n) == 0 {
					x = nobody
					x.refuser = h + 1
					ys[h] = team.Tally{Refused: &team.Refusal{Rank: h, About: -1, Text: "no"}}
					if refuser == 0 {
						refuser = h + 1
					}
				}
				want.add(x)
				a.begin(seq+1, call)
				a.differs(x)
				switch {
				case a.pairs && kinds == 1 && seq == 0:
					a.fold(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(h)), 1))
				case r.IntN(3) > 0:
					a.offer([]byte(fmt.Sprintf("of %d in %d", h, seq)[:5+r.IntN(4)]))
					contribute = append(contribute, h)
				}
			}
			c.sent = 0
			stuck, err := c.run()
			require.NoError(t, err)
			require.Empty(t, stuck, "%d hosts", n)
			require.Equal(t, n*rounds, c.sent, "%d hosts", n)
			require.Equal(t, refuser, want.refuser)
			for h, a := range c.all {
				require.Equal(t, want, a.sum, "host %d of %d", h, n)
				if a.folds {
					require.Equal(t, [8]byte{4: byte(n)}, c.folds[h])
					continue
				}
				if !want.same() {
					continue // nobody uses what was contributed
				}
				var have []int
				for from, data := range a.data {
					if data != nil {
						have = append(have, from)
						require.Equal(t, string(c.all[from].data[from]), string(data), "host %d of %d, of %d", h, n, from)
					}
				}
				require.Equal(t, contribute, have, "host %d of %d", h, n)
			}
			if want.same() {
				continue
			}
			sum := team.Tally{}
			for h, a := range c.all {
				sum.Add(&ys[h])
				a.report(ys[h])
			}
			c.sent = 0
			stuck, err = c.run()
			require.NoError(t, err)
			require.Empty(t, stuck, "%d hosts", n)
			require.Equal(t, 2*(n-1), c.sent, "%d hosts", n)
			counted := 0
			for _, v := range c.all[0].tally.Votes {
				counted += v.Count
			}
			for _, v := range sum.Votes {
				counted -= v.Count
			}
			require.Zero(t, counted+c.all[0].tally.Others, "%d hosts: each votes once", n)
			require.LessOrEqual(t, len(c.all[0].tally.Votes), maxVotes)
			if len(sum.Votes) <= maxVotes { // nothing was cut
				sum.Cut(maxVotes)
				require.Equal(t, sum, c.all[0].tally, "%d hosts", n)
			}
			for h, a := range c.all {
				require.Equal(t, c.all[0].tally, a.tally, "host %d of %d", h, n)
			}
		}
	}
}

// TestAgreementOf4096: by spans, since the messages themselves would be too many.
func TestAgreementOf4096(t *testing.T) {
	for _, n := range []int{2, 3, 64, 65, 512, 4095, 4096} {
		span := slices.Repeat([]int{1}, n) // host h has heard from span[h] hosts from its first one on, around
		all := make([]*agreement, n)
		for h := range all {
			all[h] = newAgreement(n, h, n, make([]int, n), 0)
		}
		for k := range roundsOf(n) {
			after := make([]int, n)
			for h, a := range all {
				require.Equal(t, h, all[a.from[k]].to[k])
				mine, theirs, whole := a.first(h, k), a.first(a.from[k], k), a.first(h, k+1)
				if whole != mine { // what it hears comes before what it has
					mine, theirs = theirs, mine
				}
				require.Equal(t, whole, mine)
				require.Equal(t, (mine+span[h])%n, theirs, "a hole, or an overlap, in round %d of %d", k, n)
				require.LessOrEqual(t, a.count(k), span[a.from[k]])
				after[h] = span[h] + a.count(k)
			}
			span = after
		}
		require.Equal(t, slices.Repeat([]int{n}, n), span)
		below := slices.Repeat([]int{1}, n) // hosts whose reports a host has, its own included
		for h := n - 1; h > 0; h-- {
			p := all[all[h].parent()]
			require.Contains(t, childrenOf(p), h, "%d hosts", n)
			below[p.me] += below[h]
		}
		require.Equal(t, n, below[0])
		children := 0
		for _, a := range all {
			children += a.children
		}
		require.Equal(t, n-1, children)
	}
}

// childrenOf are the hosts that report to p's.
func childrenOf(p *agreement) (hosts []int) {
	for i := range p.children {
		hosts = append(hosts, p.me+1<<i)
	}
	return hosts
}

// What a barrier sends in each round has 64 bytes with the frame's head, whatever the number of hosts; 88 if not all
// want the same.
func TestProposalBytes(t *testing.T) {
	const frame = 32 // tcp.HeaderSize
	for _, n := range []int{2, 64, 512, 4095} {
		a := newAgreement(n, 0, n, slices.Repeat([]int{recordBytes(n)}, n), 0)
		a.begin(1, barrier)
		sent := 0
		for {
			d, ok := a.next()
			if !ok {
				break
			}
			if d.sends {
				b := make([]byte, a.size(d.round, 0))
				require.Equal(t, 64, a.write(d, b)+frame)
				a.sum.greatest.call.Low++
				require.Equal(t, 88, a.write(d, b)+frame)
				a.sum.greatest.call.Low--
				sent++
			}
		}
		require.Equal(t, roundsOf(n), sent)
	}
}

// An agreement costs no allocation: it is on the way of the smallest operations.
func TestAgreementAllocs(t *testing.T) {
	testkit.SkipRace(t)
	a, b := newAgreement(2, 0, 2, []int{64, 64}, 0), newAgreement(2, 1, 2, []int{64, 64}, 0)
	out := make([]byte, a.size(0, 0))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, x := range []*agreement{a, b} {
			x.begin(1, barrier)
			x.offer(x.own(out)[:8])
		}
		for d, ok := a.next(); ok; d, ok = a.next() {
			if d.sends {
				n := a.write(d, out)
				if err := b.read(b.heard(0, 1), out[:n]); err != nil {
					panic(err)
				}
			}
		}
	}))
}

func FuzzProposals(f *testing.F) {
	room := []int{8, 8, 8, 8, 8}
	a := newAgreement(5, 2, 5, room, 0)
	a.begin(7, barrier)
	a.offer([]byte("data"))
	b := make([]byte, a.size(1, 2))
	f.Add(b[:a.write(transfer{sends: true, round: 1}, b)], 1)
	f.Fuzz(func(t *testing.T, b []byte, round int) {
		a := newAgreement(5, 0, 5, room, 0)
		a.begin(7, barrier)
		d := a.heard((round%2+2)%2, 7)
		if a.read(d, b) != nil {
			return
		}
		for h, data := range a.data {
			if len(data) > 8 || data != nil && (h-d.host+5)%5 >= a.count(d.round) {
				t.Errorf("%d bytes of host %d", len(data), h)
			}
		}
		for _, s := range []uint64{a.sum.least.seq, a.sum.greatest.seq} {
			if s != 7 {
				t.Error(s)
			}
		}
	})
}

func FuzzReport(f *testing.F) {
	b := make([]byte, reportBytes)
	y := team.Tally{Refused: &team.Refusal{Rank: 3, About: -1, Code: 2, Text: "no"},
		Votes: []team.Vote{{Call: team.Call{Low: 1}, Count: 2, First: 1}}, Others: 3}
	f.Add(b[:writeReport(b, &y)])
	f.Fuzz(func(t *testing.T, b []byte) {
		y, err := parseReport(b, 9)
		if err != nil {
			return
		}
		again := make([]byte, reportBytes)
		z, err := parseReport(again[:writeReport(again, &y)], 9)
		require.NoError(t, err)
		require.Equal(t, y, z)
	})
}

// BenchmarkAgreement is what agreeing costs a host by itself, beside the messages, with two hosts and 8 bytes.
func BenchmarkAgreement(b *testing.B) {
	room := []int{1 << 10, 1 << 10}
	x, y := newAgreement(2, 0, 2, room, 0), newAgreement(2, 1, 2, room, 0)
	ours, theirs := make([]byte, x.size(0, 0)), make([]byte, y.size(0, 1))
	call := (&team.Work{Kind: team.KindAllReduce, Type: dtype.Float32, Red: team.Sum, Count: 2}).Call()
	y.begin(1, call)
	y.offer(y.own(theirs)[:8])
	n := y.write(transfer{sends: true}, theirs)
	for b.Loop() {
		x.begin(1, call)
		x.offer(x.own(ours)[:8])
		for {
			d, ok := x.next()
			if !ok {
				break
			}
			if d.sends {
				x.write(d, ours)
			} else if err := x.read(d, theirs[:n]); err != nil {
				b.Fatal(err)
			}
		}
		if !x.sum.same() {
			b.Fatal(x.sum)
		}
	}
}
