package team

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// OpInfo says how an operation went, as it is noted: Levels makes of it what users see.
type OpInfo struct {
	Kind         OpKind
	Seq          uint64
	Algorithm    string // the outermost level's
	Bytes        int    // of the larger buffer
	Src, Dst     BufferInfo
	Took, Waited time.Duration // 0 if not measured
	Device       bool          // kernels moved the data
	Routed       bool          // the data went with the agreement of the hosts, which passed them on to those who need them
	Sharers      int           // so many ranks have the device; 0: it was not asked

	// Between is how the data went between hosts; nil if they stayed on one. Src and Dst are then about this host, and
	// Inner has the algorithms of its ranks: before the exchange with other hosts, and after it.
	Between *Link
	Inner   [2]string
	Lanes   int // ranks of each host that exchange data with other hosts
	// NotCollNet: see Work.
	NotCollNet bool

	Call uint64 // the signature, of an operation of a device's graph

	// Members are the operations of a group or of a graph's launch in their order, if one was last: those that ran, and
	// the first 1024 at most. All other fields are the last member's. Nil for a single operation.
	Members []OpInfo
}

// Link is how data goes between hosts.
type Link struct {
	Name        string // "tcp eth0"
	Connections int    // to a peer, that carry data beside each other
	Hosts       int    // of the communicator
	Choice      string // of the algorithm: see Level
	Asked       string // the algorithm that Options ask for, perhaps of other operations; or ""
	Why         string // what it does to the data
	Leader      bool   // this rank exchanges what its host exchanges on one lane
	Owner       bool   // this rank exchanges a part of what its host exchanges on several lanes
	Single      bool   // this host has one rank
	RDMA        bool   // all data goes by RDMA: in place where the RDMA devices have the memory
	CollNet     string // the plugin that does collectives for the hosts, or ""
	NoCollNet   string // why the plugin that was asked for does not, or ""
}

// Level says how the data moved on one level of the machine.
type Level struct {
	Where               string // InHost or BetweenHosts
	Algorithm           string
	Transport           string
	Lanes               int
	Hosts               int // that exchange data; 0 in the host
	Source, Destination BufferInfo
	Why                 string
	Choice              string // what the algorithm was chosen by, if not by what was measured or asked for: "default costs"
	Words
}

// Words say for people what a level of an operation between hosts does. Algorithms have short names, for programs.
type Words struct {
	Name          string // between hosts: "halving-doubling"
	Not           string // between hosts, if a CollNet plugin was asked for: why it does not do the operation; or ""
	Before, After string // in the host, of the exchange with other hosts: "reduce-scatter", "all-gather"; or ""
}

// The levels.
const (
	InHost       = "in the host"
	BetweenHosts = "between hosts"
)

// onShared begins what a transport says of a device that ranks share.
const onShared = " on a device that "

// SharedBy notes that so many ranks have this rank's device.
func (o *OpInfo) SharedBy(ranks int) {
	o.Sharers = ranks
	for i := range o.Members {
		o.Members[i].Sharers = ranks
	}
}

// Levels returns the levels on which the data moved, innermost first; none if none did.
func (o *OpInfo) Levels() (all []Level) {
	if o.Seq == 0 || o.Algorithm == Refused {
		return nil
	}
	if t := o.Between; t == nil || !t.Single {
		l := Level{Where: InHost, Algorithm: strings.TrimSpace(o.Algorithm), Transport: "shared memory", Source: o.Src,
			Destination: o.Dst}
		switch {
		case o.Src.Alone || o.Dst.Alone:
			l.Transport = "memory"
		case o.Device:
			l.Transport = "GPU kernels"
			if o.Sharers > 1 {
				l.Transport += fmt.Sprintf("%s%d ranks share", onShared, o.Sharers)
			}
		}
		if t != nil {
			switch {
			case o.Inner[1] == "" && o.Bytes > 0:
				l.Algorithm = "eager"
			case o.Inner[0] != "" && o.Inner[0] != o.Inner[1]:
				l.Algorithm = o.Inner[0] + ", then " + o.Inner[1]
			case o.Inner[1] != "":
				l.Algorithm = o.Inner[1]
			}
			l.Before, l.After = o.around()
		}
		all = append(all, l)
	}
	if t := o.Between; t != nil {
		l := Level{Where: BetweenHosts, Algorithm: o.Algorithm, Transport: t.Name, Lanes: max(o.Lanes, 1), Hosts: t.Hosts,
			Source: o.carried(o.Src), Destination: o.carried(o.Dst), Why: o.between()}
		l.Name, l.Not = o.way(), o.notCollNet()
		if o.Algorithm == collNet {
			l.Transport = fmt.Sprintf("plugin %q", t.CollNet)
		}
		if t.Connections > 1 && o.Algorithm != collNet {
			l.Transport += fmt.Sprintf(" (%d connections)", t.Connections)
		}
		if o.Lanes > 0 && o.Algorithm != t.Asked && o.Kind < KindAllToAll { // the others have one way
			l.Choice = t.Choice
		}
		all = append(all, l)
	}
	return all
}

// collNet is the algorithm by which a CollNet plugin does a collective.
const collNet = "collnet"

// notCollNet is why no CollNet plugin has done a collective that one could do.
func (o *OpInfo) notCollNet() string {
	if o.Lanes == 0 || o.Algorithm == collNet {
		return ""
	}
	switch t := o.Between; o.Kind {
	case KindAllReduce, KindReduceScatter, KindAllGather:
		if o.NotCollNet {
			return fmt.Sprintf("plugin %q does not declare this type and reduction", t.CollNet)
		}
		return t.NoCollNet
	}
	return ""
}

// around is what the ranks of a host do before the exchange with other hosts, and after it.
func (o *OpInfo) around() (before, after string) {
	part, all := "reduce", "broadcast" // what owners of lanes have, and all get
	if o.Lanes > 1 {
		part, all = "reduce-scatter", "all-gather"
	}
	switch o.Kind {
	case KindAllReduce:
		before, after = part, all
	case KindReduce:
		if before = part; o.Lanes > 1 {
			after = "gather"
		}
	case KindReduceScatter:
		before, after = part, "scatter"
	case KindBroadcast:
		if after = all; o.Lanes > 1 {
			before = "scatter"
		}
	case KindAllGather, KindAllGatherV:
		before, after = "gather", all
	case KindGather, KindGatherV:
		before = "gather"
	case KindScatter, KindScatterV:
		after = "scatter"
	case KindAllToAll, KindAllToAllV:
		before, after = "gather", "scatter"
	}
	if o.Lanes == 0 && o.Bytes == 0 {
		before, after = "agreement", ""
	}
	return before, after
}

// way is what the field calls the way between hosts.
func (o *OpInfo) way() string {
	const agreement = " in the messages of the agreement"
	hosts := o.Between.Hosts
	pairs := hosts&(hosts-1) == 0
	switch {
	case o.Kind == KindSend || o.Kind == KindRecv:
		return o.Algorithm
	case o.Algorithm == collNet:
		return "CollNet"
	case o.Lanes > 0:
		for _, w := range schedule.Ways(strings.TrimSuffix(o.Kind.String(), "_v")) {
			if w.String() == o.Algorithm {
				return w.Name(hosts)
			}
		}
		return o.Algorithm
	case o.Routed && o.Kind == KindAllToAll:
		return "routed" + agreement + " (Bruck)"
	case o.Routed && o.Kind == KindReduceScatter:
		return "routed" + agreement + " (recursive halving)"
	case o.Routed:
		return "routed" + agreement + " (binomial tree)"
	case o.Bytes == 0 && !pairs:
		return "dissemination"
	case o.Bytes == 0:
		return schedule.Doubling.Name(hosts)
	}
	return schedule.GatherDoubling.Name(hosts) + agreement
}

// carried describes a buffer of this rank between hosts, which b describes on its host.
func (o *OpInfo) carried(b BufferInfo) BufferInfo {
	l := o.Between
	switch {
	case !l.Leader && !(l.Owner && o.Lanes > 1) || !b.Used:
		return BufferInfo{}
	case l.Single && (!b.Direct || l.RDMA || o.Algorithm == collNet):
		return b
	}
	return BufferInfo{Used: true, Why: o.between()}
}

// between is what is done to the data between hosts. Slices of collectives that are combined on devices have to leave these first;
// messages say by themselves how they left.
func (o *OpInfo) between() string {
	if o.Algorithm == collNet {
		if o.Device {
			return "through page-locked host memory"
		}
		if o.Between.Single {
			return "" // each buffer says it for itself
		}
		return "through the leader's memory"
	}
	if o.Device && o.Lanes > 0 {
		return "through page-locked host memory, " + o.Between.Why
	}
	return o.Between.Why
}

// Buffers describes the source and the destination over all levels: direct only if no level copied them.
func (o *OpInfo) Buffers() (src, dst BufferInfo) {
	src, dst = o.Src, o.Dst
	for _, b := range [2]*BufferInfo{&src, &dst} {
		if l := o.Between; l != nil && b.Used && b.Direct && !(l.Single && (l.RDMA || o.Algorithm == collNet)) {
			b.Direct, b.Why = false, o.between()+" "+BetweenHosts
		}
	}
	return src, dst
}

// BufferInfo says whether peers read and wrote a buffer in place, and if not, why. A buffer that is Used, but neither
// Direct nor Alone, was staged.
type BufferInfo struct {
	Used   bool
	Direct bool
	Alone  bool   // the communicator has no peers
	Why    string // why it was staged, or how RDMA devices reached memory of a device
}

func (b BufferInfo) staged() bool { return b.Used && !b.Direct && !b.Alone }

// Route says how peers reached the buffer: "direct", and how if that is not plain, or "staged: " and why; "" if there was none.
func (b BufferInfo) Route() string {
	switch {
	case !b.Used:
		return ""
	case b.Direct && b.Why != "":
		return "direct: " + b.Why
	case b.Direct:
		return "direct"
	case b.Alone:
		return "this rank's alone, there are no peers"
	}
	return "staged: " + b.Why
}

// String is one line: "in the host push, shared memory: direct", "ring over 4 hosts by default costs, tcp eth0: copied by the
// kernel".
func (l Level) String() string {
	s := l.does()
	if l.Where != BetweenHosts {
		s = strings.TrimSpace(l.Where + " " + l.Algorithm)
		switch {
		case l.Before != "" && l.After != "":
			s = fmt.Sprintf("%s %s and %s (%s)", l.Where, l.Before, l.After, l.Algorithm)
		case l.Before != "" || l.After != "":
			s = fmt.Sprintf("%s %s (%s)", l.Where, l.Before+l.After, l.Algorithm)
		}
		if l.Transport != "" {
			s += ", " + l.Transport
		}
	}
	src, dst := l.Source.Route(), l.Destination.Route()
	switch {
	case l.Why != "":
		return s + ": " + l.Why
	case src == dst && src != "":
		return s + ": " + src
	case src != "" && dst != "":
		return s + ": source " + src + ", destination " + dst
	case src != "":
		return s + ": source " + src
	case dst != "":
		return s + ": destination " + dst
	}
	return s
}

// does is what the hosts do: "halving-doubling over 4 hosts by default costs, 2 lanes, tcp eth0".
func (l *Level) does() string {
	s := fmt.Sprintf("%s over %d hosts", cmp.Or(l.Name, l.Algorithm), l.Hosts)
	if l.Choice != "" {
		s += " by " + l.Choice
	}
	if l.Not != "" {
		s += " (not by CollNet: " + l.Not + ")"
	}
	if l.Lanes > 1 {
		s += fmt.Sprintf(", %d lanes", l.Lanes)
	}
	if l.Transport != "" {
		s += ", " + l.Transport
	}
	return s
}

// across says how an operation between hosts went: on the levels, and then each buffer on both.
func across(levels []Level) string {
	at := &levels[len(levels)-1]
	steps := []string{at.does()}
	if len(levels) > 1 {
		in := &levels[0]
		if in.Before != "" {
			steps = slices.Insert(steps, 0, "two-level: "+in.Before+" "+in.Where)
		} else {
			steps[0] = "two-level: " + steps[0]
		}
		if in.After != "" {
			steps = append(steps, in.After+" "+in.Where)
		}
	}
	s := strings.Join(steps, ", ")
	src := passed(levels, func(l *Level) *BufferInfo { return &l.Source })
	dst := passed(levels, func(l *Level) *BufferInfo { return &l.Destination })
	switch {
	case src == dst && src != "":
		return s + "; source and destination " + src
	case src != "":
		s += "; source " + src
	}
	if dst != "" {
		s += "; destination " + dst
	}
	return s
}

// passed says how a buffer went in the host and between hosts; "" if there was none. Why it was staged comes last.
func passed(levels []Level, of func(*Level) *BufferInfo) string {
	at, in := &levels[len(levels)-1], of(&levels[0])
	b, s := of(at), "left to other ranks"
	switch {
	case !in.Used:
		return ""
	case b.Used:
		s = cmp.Or(at.Why, b.Route())
	}
	s += " " + at.Where
	switch {
	case len(levels) > 1 && in.Direct:
		return "direct " + levels[0].Where + ", " + s
	case len(levels) > 1:
		return s + ", staged " + levels[0].Where + ": " + in.Why
	case b.staged() && at.Why != "" && b.Why != at.Why:
		return s + ", " + b.Route()
	}
	return s
}

// Refused is the Algorithm of an operation that a rank has refused.
const Refused = "refused"

// Op is the operation's name.
func (o OpInfo) Op() string {
	if o.Seq == 0 {
		return ""
	}
	return o.Kind.String()
}

// Text is one line about an operation with that name. Within a host it has the algorithm, and for each buffer that it was
// direct or why it was staged. Between hosts it says what the ranks of a host do, if there are several, and what the hosts
// do, by the names that the field has for that, and how each buffer went on both levels: "all_reduce #7: 4194304 bytes;
// two-level: reduce-scatter in the host, halving-doubling over 4 hosts, 4 lanes, tcp eth0, all-gather in the host; source and
// destination direct in the host, copied by the kernel between hosts". Last comes how long it took, if that was measured.
func (o OpInfo) Text(op string) string {
	return Text(op, o.Seq, len(o.Members), o.Title(), o.Bytes, o.Levels(), o.Took, o.Waited)
}

// Title is the algorithm's name.
func (o *OpInfo) Title() string {
	if o.Between != nil && o.Algorithm != Refused {
		return o.Algorithm + " " + BetweenHosts
	}
	return strings.TrimSpace(o.Algorithm)
}

// Text is OpInfo.Text for an operation of a group or launch of that many members; 0 if it was a single one.
func Text(op string, seq uint64, members int, algorithm string, bytes int, levels []Level, took, waited time.Duration) string {
	if seq == 0 {
		return "no operation yet"
	}
	s := fmt.Sprintf("%s #%d", op, seq)
	if members > 0 {
		s += fmt.Sprintf(", the last of %d in one", members)
	}
	if n := len(levels); n > 0 && levels[n-1].Where == BetweenHosts {
		s += fmt.Sprintf(": %d bytes; %s", bytes, across(levels))
	} else {
		s += fmt.Sprintf(": %s, %d bytes", algorithm, bytes)
		for i := range levels {
			s += levels[i].inHost()
		}
	}
	if took > 0 {
		s += fmt.Sprintf("; took %v", took)
	}
	if waited > 0 {
		s += fmt.Sprintf(", %v of it until all ranks had come", waited)
	}
	return s
}

// inHost is what Text says of the only level.
func (l *Level) inHost() (s string) {
	if _, shared, ok := strings.Cut(l.Transport, onShared); ok {
		s = "," + onShared + shared
	}
	for _, b := range [2]struct{ name, route string }{{"source", l.Source.Route()}, {"destination", l.Destination.Route()}} {
		if b.route != "" {
			s += "; " + b.name + ": " + b.route
		}
	}
	return s
}

// Staged is how many buffers were staged.
func (o *OpInfo) Staged() (n uint64) {
	for _, b := range [2]*BufferInfo{&o.Src, &o.Dst} {
		if b.staged() {
			n++
		}
	}
	return n
}

// MessageNote says how a message went, in the least memory: groups keep one for each message.
type MessageNote struct {
	Kind      OpKind // KindRefused: it is not done
	Direct    bool
	Device    bool
	Seq       uint64
	Bytes     int
	Algorithm string // "": it travelled with its announcement
	Why       string // it was staged, if it was
	Between   *Link  // how it went to another host, or nil
}

// Info is the OpInfo of the message.
func (n *MessageNote) Info() OpInfo {
	o := OpInfo{Kind: n.Kind, Seq: n.Seq, Algorithm: n.Algorithm, Bytes: n.Bytes, Device: n.Device, Between: n.Between}
	b := BufferInfo{Used: n.Bytes > 0 || !n.Device, Direct: n.Direct, Why: n.Why}
	if n.Algorithm == "" {
		o.Algorithm, b.Why = "eager", "small enough to travel with the announcement"
	}
	if n.Kind == KindRecv {
		o.Dst = b
	} else {
		o.Src = b
	}
	return o
}
