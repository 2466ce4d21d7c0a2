package team

import (
	"fmt"
	"strings"
	"time"
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
	Sharers      int           // so many ranks have the device; 0: it was not asked

	// Between is how the data went between hosts; nil if they stayed on one. Src and Dst are then about this host, and
	// Inner has the algorithms of its ranks: before the exchange with other hosts, and after it.
	Between *Link
	Inner   [2]string
	Lanes   int // ranks of each host that exchange data with other hosts

	// Members are the operations of a group or of a graph's launch in their order, if one was last: those that ran, and
	// the first 1024 at most. All other fields are the last member's. Nil for a single operation.
	Members []OpInfo
}

// Link is how data goes between hosts.
type Link struct {
	Name        string // "tcp eth0"
	Connections int    // to a peer, that carry data beside each other
	Choice      string // of the algorithm: see Level
	Asked       string // the algorithm that Options ask for, perhaps of other operations; or ""
	Why         string // what it does to the data
	Leader      bool   // this rank exchanges what its host exchanges on one lane
	Owner       bool   // this rank exchanges a part of what its host exchanges on several lanes
	Single      bool   // this host has one rank
}

// Level says how the data moved on one level of the machine.
type Level struct {
	Where               string // InHost or BetweenHosts
	Algorithm           string
	Transport           string
	Lanes               int
	Source, Destination BufferInfo
	Why                 string
	Choice              string // what the algorithm was chosen by, if not by what was measured or asked for: "default costs"
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
		}
		all = append(all, l)
	}
	if t := o.Between; t != nil {
		l := Level{Where: BetweenHosts, Algorithm: o.Algorithm, Transport: t.Name, Lanes: max(o.Lanes, 1),
			Source: o.carried(o.Src), Destination: o.carried(o.Dst), Why: t.Why}
		if t.Connections > 1 {
			l.Transport += fmt.Sprintf(" (%d connections)", t.Connections)
		}
		if o.Lanes > 0 && o.Algorithm != t.Asked && o.Kind < KindAllToAll { // the others have one way
			l.Choice = t.Choice
		}
		all = append(all, l)
	}
	return all
}

// carried describes a buffer of this rank between hosts, which b describes on its host.
func (o *OpInfo) carried(b BufferInfo) BufferInfo {
	l := o.Between
	switch {
	case !l.Leader && !(l.Owner && o.Lanes > 1) || !b.Used:
		return BufferInfo{}
	case l.Single && !b.Direct:
		return b
	}
	return BufferInfo{Used: true, Why: l.Why}
}

// Buffers describes the source and the destination over all levels: direct only if no level copied them.
func (o *OpInfo) Buffers() (src, dst BufferInfo) {
	src, dst = o.Src, o.Dst
	for _, b := range [2]*BufferInfo{&src, &dst} {
		if o.Between != nil && b.Used && b.Direct {
			b.Direct, b.Why = false, o.Between.Why+" "+BetweenHosts
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
	Why    string // why it was staged
}

func (b BufferInfo) staged() bool { return b.Used && !b.Direct && !b.Alone }

// Route says how peers reached the buffer: "direct", or "staged: " and why; "" if there was none.
func (b BufferInfo) Route() string {
	switch {
	case !b.Used:
		return ""
	case b.Direct:
		return "direct"
	case b.Alone:
		return "this rank's alone, there are no peers"
	}
	return "staged: " + b.Why
}

// String is one line: "between hosts ring by default costs, tcp eth0: copied by the kernel".
func (l Level) String() string {
	s := strings.TrimSpace(l.Where + " " + l.Algorithm)
	if l.Choice != "" {
		s += " by " + l.Choice
	}
	if l.Transport != "" {
		s += ", " + l.Transport
	}
	if l.Lanes > 1 {
		s += fmt.Sprintf(", %d lanes", l.Lanes)
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

// Refused is the Algorithm of an operation that a rank has refused.
const Refused = "refused"

// Op is the operation's name.
func (o OpInfo) Op() string {
	if o.Seq == 0 {
		return ""
	}
	return o.Kind.String()
}

// Text is one line about an operation with that name: its algorithm; for each level, if there are several, how the data
// moved there, otherwise for each buffer that it was direct or why it was staged; and how long it took.
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
	s += fmt.Sprintf(": %s, %d bytes", algorithm, bytes)
	for i := range levels {
		l := &levels[i]
		if len(levels) > 1 || l.Where != InHost {
			s += "; " + l.String()
			continue
		}
		if _, shared, ok := strings.Cut(l.Transport, onShared); ok {
			s += "," + onShared + shared
		}
		for _, b := range [2]struct{ name, route string }{{"source", l.Source.Route()}, {"destination", l.Destination.Route()}} {
			if b.route != "" {
				s += "; " + b.name + ": " + b.route
			}
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
}

// Info is the OpInfo of the message.
func (n *MessageNote) Info() OpInfo {
	o := OpInfo{Kind: n.Kind, Seq: n.Seq, Algorithm: n.Algorithm, Bytes: n.Bytes, Device: n.Device}
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
