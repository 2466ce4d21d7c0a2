package team

import (
	"fmt"
	"strings"
	"time"
)

// OpInfo says how an operation went: which algorithm, and for each buffer whether peers reached it directly.
type OpInfo struct {
	Kind         OpKind
	Seq          uint64
	Algorithm    string
	Bytes        int // of the larger buffer
	Src, Dst     BufferInfo
	Took, Waited time.Duration // 0 if not measured

	// Members are the operations of a group or of a graph's launch in their order, if one was last: those that ran, and
	// the first 1024 at most. All other fields are the last member's. Nil for a single operation.
	Members []OpInfo
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

func (b BufferInfo) explain(name string) string {
	switch {
	case !b.Used:
		return ""
	case b.Direct:
		return "; " + name + ": direct"
	case b.Alone:
		return "; " + name + ": this rank's alone, there are no peers"
	}
	return "; " + name + ": staged: " + b.Why
}

// Op is the operation's name.
func (o OpInfo) Op() string {
	if o.Seq == 0 {
		return ""
	}
	return o.Kind.String()
}

// Text is one line about an operation with that name: its algorithm, for each buffer that it was direct or why it was
// staged, and how long it took.
func (o OpInfo) Text(op string) string {
	if o.Seq == 0 {
		return "no operation yet"
	}
	of, took := "", ""
	if n := len(o.Members); n > 0 {
		of = fmt.Sprintf(", the last of %d in one", n)
	}
	if o.Took > 0 {
		took = fmt.Sprintf("; took %v", o.Took)
	}
	if o.Waited > 0 {
		took += fmt.Sprintf(", %v of it until all ranks had come", o.Waited)
	}
	return fmt.Sprintf("%s #%d%s: %s, %d bytes%s%s%s", op, o.Seq, of, strings.TrimSpace(o.Algorithm), o.Bytes,
		o.Src.explain("source"), o.Dst.explain("destination"), took)
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

// SmallInfo is the OpInfo of a message that travels with its announcement.
func SmallInfo(k OpKind, seq uint64, n int) OpInfo {
	return MessageInfo(k, seq, n, "eager", BufferInfo{Used: true, Why: "small enough to travel with the announcement"})
}

// MessageInfo is the OpInfo of a message.
func MessageInfo(k OpKind, seq uint64, n int, algorithm string, b BufferInfo) OpInfo {
	o := OpInfo{Kind: k, Seq: seq, Algorithm: algorithm, Bytes: n}
	if k == KindRecv {
		o.Dst = b
	} else {
		o.Src = b
	}
	return o
}
