package hosts

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// How much memory the other hosts cost a rank that leads its host: what it has once, whatever the number of its
// communicators, and what each communicator has. TestMemory compares that with what is allocated.

const (
	smallBytes = 64 << 10 // what other hosts may contribute to an operation together, if that is not folded
	fewerBytes = 32 << 10 // the same if hosts are many: then ways with more messages are faster
	mostSmall  = 64       // hosts are not many
	// What a message and the slots for folded contributions may have together: less the more hosts there are, since their
	// records and tables need room, too.
	foldBytes = 228 << 10
	foldLess  = 512 // for each host
	foldLeast = 64 << 10
)

// LayoutOf is what a communicator has whose hosts have so many ranks each.
func LayoutOf(on []int) team.Layout {
	l := team.Layout{Hosts: len(on), Most: slices.Max(on), Lanes: min(team.MostLanes, slices.Min(on))}
	for _, n := range on {
		l.Ranks += n
	}
	l.Contribution, l.Share, l.Routed = contribution(l.Hosts, l.Most), share(l.Hosts, l.Most), routed(l.Hosts, l.Most)
	return l
}

// contribution is how many bytes of data each host may contribute, if that is folded, or no other host does. Where hosts
// agree in pairs each message has one contribution, or one fold of several. Otherwise the messages have those of n-1
// hosts, all that their receiver lacks.
func contribution(hosts, most int) int {
	n := smallBytes
	if hosts > mostSmall {
		n = fewerBytes
	}
	if inPairs(hosts) {
		parts := 2*roundsOf(hosts) + 2 // slots, and messages with one contribution and with several
		if hosts == 2 {
			parts-- // there are no others
		}
		n = min(n, max(foldBytes-foldLess*hosts, foldLeast)/parts&^(1<<10-1))
	} else {
		n /= hosts - 1
	}
	if most > 1 {
		n = min(n, team.PartialBytes)
	}
	return n
}

// share is how many bytes of data each host may contribute if all hosts do. Between pairs the last message has the
// contributions of half of the hosts.
func share(hosts, most int) int {
	n := contribution(hosts, most)
	if inPairs(hosts) && hosts > 2 {
		n = max(2*(n+dataHead)/hosts-dataHead, 0) &^ 7
	}
	return n
}

// routed is how many bytes a block may have if hosts route one from each to each other: in a round they send those whose
// distance has a bit, half of them or less, in a message with room for one contribution, to a slot for those that others
// contribute.
func routed(hosts, most int) int {
	n := smallBytes
	for k := range roundsOf(hosts) {
		slot := contribution(hosts, most)
		if !inPairs(hosts) {
			slot = min(slot, min(1<<k, hosts-1<<k)*share(hosts, most))
		}
		blocks := 0
		for x := range hosts {
			blocks += x >> k & 1
		}
		n = min(n, slot/blocks)
	}
	return n
}

// room is how many bytes a host with on ranks may contribute if all hosts do, data or records.
func room(hosts, ranks, most, on int) int {
	return max(share(hosts, most), on*recordBytes(ranks))
}

const line = 64 // of a cache

// lines rounds a size up to whole lines.
func lines(n int) int { return (n + line - 1) &^ (line - 1) }

// cut makes memory of several sizes as one piece, because Go rounds the size of each to more. Each begins with a cache
// line, so that none shares one with another, which is written at other times.
func cut(sizes []int) (all [][]byte) {
	n := line
	for _, size := range sizes {
		n += lines(size)
	}
	b := make([]byte, n)
	b = b[-uintptr(unsafe.Pointer(&b[0]))%line:]
	for _, size := range sizes {
		all = append(all, b[:size:size])
		b = b[lines(size):]
	}
	return all
}

// Term is a part of a sum.
type Term struct {
	What  string
	Bytes int
}

// Sum is the sum of terms.
func Sum(terms []Term) (bytes int) {
	for _, t := range terms {
		bytes += t.Bytes
	}
	return bytes
}

// What the network of package net allocates, in about as many bytes.
const (
	wireBytes  = 25 << 10 // a pair of processes
	linkBytes  = 1 << 10  // a pair of ranks of a communicator, without its places
	placeBytes = 128
)

// PairBytes is what the network has for a pair with a rank that no other pair has a connection to.
func PairBytes(places int) int { return wireBytes + linkBytes + places*placeBytes }

// partners is how many other hosts a host exchanges data with, at most: to agree, and by recursive doubling, which numbers
// the hosts anew unless there are 2^k of them. Rings and broadcasts add what they need when they first do: those 1, 2, 4
// and so on before and behind.
func partners(hosts int) (most int) {
	for me := range hosts {
		var all []int
		add := func(h int) {
			if !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
		for k := range roundsOf(hosts) {
			to, from := heardIn(hosts, me, k)
			add(to)
			add(from)
		}
		c, step := schedule.Plan{Way: schedule.Doubling, Hosts: hosts, Me: me, Count: 1, Item: 1, Line: 1}.Begin(), schedule.Step{}
		for c.Next(&step) {
			add(step.Peer)
		}
		most = max(most, len(all))
	}
	return most
}

// PerRank is what a rank has once that leads its host, in a job of so many ranks that are spread evenly.
func PerRank(hosts, ranks int) []Term {
	return []Term{
		{"landing memory", poolBytes},
		{"connections", partners(hosts) * wireBytes},
		{"how to reach all ranks", ranks * (130 + 160)},
	}
}

// PerComm is what a rank that leads its host has for each communicator. Memory in which items land beside another
// communicator's, 128 KiB, comes on top for operations that do so at the same time.
func PerComm(hosts, ranks int) []Term {
	on, fuller := ranks/hosts, ranks%hosts // so many hosts have a rank more
	most := on + min(fuller, 1)
	of := func(on int) int { return dataHead + padded(room(hosts, ranks, most, on)) }
	rounds, lone := roundsOf(hosts), dataHead+padded(contribution(hosts, most))
	// A message to send with one contribution, one each round without, and two slots each round.
	proposals := (1+3*rounds)*empty + max(of(most), lone)
	longest := 0
	for k := range rounds {
		several := min(1<<k, hosts-1<<k) * of(most)
		if min(1<<k, hosts-1<<k) > 1 {
			longest = max(longest, several)
		}
		if inPairs(hosts) { // what is larger has a place: one contribution, a fold, or the records of up to half of the hosts
			proposals += 2 * max(lone, several)
		}
	}
	if longest > 0 { // another message to send, with several
		proposals += empty + longest
	}
	if !inPairs(hosts) { // all slots together have each other host's contribution twice
		proposals += 2 * ((hosts-1-fuller)*of(on) + fuller*of(on+1))
	}
	return []Term{
		{"proposals, with contributions and records", proposals},
		{"reports", (rounds + 2) * reportBytes},
		{"links", partners(hosts) * (linkBytes + places*placeBytes)},
		{"tables of hosts and ranks", hosts*(24+24+8+8+8) + ranks*(8+4)},
		{"itself", 7 << 10},
	}
}

// MemoryText says how much memory hosts cost a rank, on one line.
func MemoryText(hosts, ranks int) string {
	rank, comm := Sum(PerRank(hosts, ranks)), Sum(PerComm(hosts, ranks))
	return fmt.Sprintf("between %s: %.1f MiB a rank that leads its host, %d KiB for each further communicator",
		plural.Count(hosts, "host"), float64(rank+comm)/(1<<20), (comm+1<<9)>>10)
}
