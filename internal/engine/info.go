package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// OpInfo says how an operation went.
type OpInfo = team.OpInfo

// BufferInfo says how a buffer took part in an operation.
type BufferInfo = team.BufferInfo

const maxMembers = 1024

// infos is what LastOp and Stats know of a communicator's operations.
type infos struct {
	// Belong to the holder of the turn. inGroup: the running operation is a group or a launch; fresh: none of its
	// members has been noted yet.
	inGroup, fresh bool

	infoM              sync.Mutex // guards the fields below
	last               OpInfo
	grouped            bool               // last is the last of members, or of replayed
	members            []OpInfo           // its memory is reused
	replayed           *Replay            // instead of members; or nil
	messages           []team.MessageNote // instead of members, if there are any; its memory is reused
	at                 [2]uint64
	ops, bytes, staged uint64
	lastSmall          atomic.Uint64             // a small message that was sent after last
	lastFar            atomic.Pointer[team.Link] // how it went to another host, if it did
	late               map[int]*lateness         // by rank, of those that came last
	latest             int                       // the rank that did most often
}

// NoteInGroup says whether the operations that run next are members of one group or launch. Only in the caller's turn.
func (c *Comm) NoteInGroup(group bool) { c.inGroup, c.fresh = group, true }

// Replay is what is noted for each launch of a device's graph, except for sequence numbers: those of members count from
// the first of their kind, collective or message, in the graph.
type Replay struct {
	members       []OpInfo
	Counts        [2]uint64 // how many sequence numbers a launch takes
	bytes, staged uint64
}

// kindOf is the index of an operation's kind in Replay.Counts.
func kindOf(o *OpInfo) int {
	if o.Kind == team.KindSend || o.Kind == team.KindRecv {
		return 1
	}
	return 0
}

// Stats counts what a communicator and its rank's domain have done. The root's Stats says what each field is. It is another
// type, since go doc shows its fields and names nothing internal; the root copies them.
type Stats struct {
	Operations, Bytes, Staged, Puts, Gets, OneSided, Opened, Failures uint64

	Cache        register.Stats
	Memory       mem.Stats
	Hosts        []hosts.Traffic
	LastArrivals []LastArrival
}

// note records what LastOp and Stats return. Every call comes here, so it is short: one lock, no conversion.
func (c *Comm) note(w *team.Work, algorithm string) {
	if w.Of == nil { // whose parts are not told of
		c.NoteAs(w, algorithm, c.team.Number())
	}
}

// NoteAs is note for an operation with a sequence number of its own, as on a device.
func (c *Comm) NoteAs(w *team.Work, algorithm string, seq uint64) {
	if w.Algorithm != "" && algorithm != Refused.Name {
		algorithm = w.Algorithm
	}
	c.infoM.Lock()
	i := &c.last
	c.Describe(i, w, algorithm, seq)
	c.ops++
	c.bytes += uint64(i.Bytes)
	c.staged += i.Staged()
	if i.Took != 0 { // they are the previous operation's
		i.Took, i.Waited = 0, 0
	}
	c.messages = c.messages[:0]
	if c.grouped, c.replayed = c.inGroup, nil; c.inGroup {
		if c.fresh {
			c.members, c.fresh = c.members[:0], false
		}
		if len(c.members) < maxMembers {
			c.members = append(c.members, *i)
		}
	}
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
	if c.debug {
		c.logOperation()
	}
}

// Measures reports whether w is large enough to be timed, if it is not eager.
func (c *Comm) Measures(w *team.Work) bool {
	return c.size > 1 && w.Of == nil && max(w.Src.Bytes(), w.Dst.Bytes()) > c.team.Tuning().EagerTotal
}

// NoteTook adds to a noted collective how long it took, and how much of that this rank waited for all to come. Small
// collectives are not timed, so their path does not pay for it.
func (c *Comm) NoteTook(k team.OpKind, seq uint64, took, waited time.Duration) {
	c.infoM.Lock()
	defer c.infoM.Unlock()
	if c.last.Kind != k || c.last.Seq != seq { // a message has been noted since
		return
	}
	c.last.Took, c.last.Waited = took, waited
	if n := len(c.members); c.grouped && c.replayed == nil && n > 0 && c.members[n-1].Seq == seq {
		c.members[n-1] = c.last
	}
}

// Describe fills i from w.
func (c *Comm) Describe(i *OpInfo, w *team.Work, algorithm string, seq uint64) {
	i.Kind, i.Seq, i.Algorithm, i.Bytes = w.Kind, seq, algorithm, max(w.Src.Bytes(), w.Dst.Bytes())
	used := algorithm != Refused.Name
	i.Src, i.Dst = bufferInfo(&w.SrcBuf, &w.Src, used), bufferInfo(&w.DstBuf, &w.Dst, used)
	if i.Device = w.Kernel.Name != "" || w.Phased > 0; c.stage != nil {
		i.Between, i.Inner, i.Lanes, i.NotCollNet = c.stage.Link(), w.Inner, w.Lanes, w.NotCollNet
		i.Routed = w.Path != nil && w.Path.Route != nil
		if l := i.Between; l.RDMA && l.Single {
			c.inPlace(&i.Src, &w.SrcBuf)
			c.inPlace(&i.Dst, &w.DstBuf)
		}
	}
	if c.size == 1 {
		i.Src, i.Dst = BufferInfo{Used: i.Src.Used, Alone: i.Src.Used}, BufferInfo{Used: i.Dst.Used, Alone: i.Dst.Used}
	}
}

// inPlace says of a buffer that its own rank has used whether the RDMA devices have done so, too.
func (c *Comm) inPlace(i *BufferInfo, b *team.Buf) {
	if i.Used && i.Direct {
		i.Direct, i.Why = c.ByRDMA(b)
	}
}

func bufferInfo(b *team.Buf, v *team.Vec, used bool) BufferInfo {
	return BufferInfo{Used: used && v.Len > 0, Direct: b.Claim != nil || b.WasDirect, Why: b.Why}
}

// NoteReplay notes a launch of r's graph. at has the sequence numbers before it, of collectives and of messages.
func (c *Comm) NoteReplay(r *Replay, at [2]uint64) {
	if len(r.members) == 0 {
		return
	}
	c.recordReplay(r, at[0])
	c.infoM.Lock()
	c.last = r.members[len(r.members)-1]
	c.last.Seq += at[kindOf(&c.last)]
	c.ops += r.Counts[0]
	c.bytes += r.bytes
	c.staged += r.staged
	c.grouped, c.replayed, c.messages, c.at = true, r, c.messages[:0], at
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
	if c.debug {
		c.logOperation()
	}
}

// Add adds the next operation of a graph: a collective, or messages that share a number.
func (r *Replay) Add(os ...OpInfo) {
	if len(os) == 0 {
		return
	}
	k := kindOf(&os[0])
	r.Counts[k]++
	for _, o := range os {
		o.Seq = r.Counts[k]
		if k == 0 {
			r.bytes += uint64(o.Bytes)
		}
		r.staged += o.Staged()
		r.members = append(r.members, o)
	}
}

// LastOp says how the last operation of this communicator went.
func (c *Comm) LastOp() OpInfo {
	o := c.lastOp()
	if c.gpuWhy == nil && c.dom != nil {
		o.SharedBy(len(c.dom.device.Ranks()))
	}
	return o
}

func (c *Comm) lastOp() OpInfo {
	if v := c.lastSmall.Load(); v != 0 {
		n := team.MessageNote{Kind: team.KindSend, Seq: v >> smallBits, Bytes: int(v & (farSmall - 1))}
		if v&farSmall != 0 {
			n.Between = c.lastFar.Load()
		}
		return n.Info()
	}
	c.infoM.Lock()
	defer c.infoM.Unlock()
	o := c.last
	switch {
	case !c.grouped:
	case c.replayed != nil:
		o.Members = slices.Clone(c.replayed.members[:min(len(c.replayed.members), maxMembers)])
		for i := range o.Members {
			m := &o.Members[i]
			m.Seq += c.at[kindOf(m)]
		}
	case len(c.messages) > 0:
		for i := range c.messages {
			o.Members = append(o.Members, c.messages[i].Info())
		}
	default:
		o.Members = slices.Clone(c.members)
	}
	return o
}

// Stats returns the counters.
func (c *Comm) Stats() Stats {
	if c.dom == nil {
		return Stats{}
	}
	c.infoM.Lock()
	s := Stats{Operations: c.ops, Bytes: c.bytes, Staged: c.staged,
		Opened: c.dom.Exports.Opened(), Failures: c.dom.failures.Load(), Cache: c.dom.Cache.Stats(),
		Memory: c.dom.Heap.Stats(), LastArrivals: c.lastArrivals()}
	c.infoM.Unlock()
	s.Hosts = c.dom.traffic()
	for _, a := range c.attached {
		a.Count(&s)
	}
	return s
}

// NoteSmall records for LastOp that a message of n bytes was sent with its announcement: one store, no wait.
func (c *Comm) NoteSmall(seq uint64, n int) { spin.Release(&c.lastSmall, seq<<smallBits|uint64(n)) }

// lastSmall is a message's number, whether it went to another host, and how many bytes it had.
const (
	farSmall  = 1 << 16
	smallBits = 17
)

// NoteSmallFar is NoteSmall of a message to another host.
func (c *Comm) NoteSmallFar(seq uint64, n int, by *team.Link) {
	if c.lastFar.Load() != by {
		c.lastFar.Store(by)
	}
	spin.Release(&c.lastSmall, seq<<smallBits|farSmall|uint64(n))
}

// NoteMessage records for LastOp and Stats how a message went.
func (c *Comm) NoteMessage(o OpInfo) {
	c.infoM.Lock()
	c.last, c.grouped = o, false
	c.staged += o.Staged()
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
}

// NoteGroup groups messages that have already been noted: in the communicator's turn with the collectives of their
// group, otherwise by themselves.
func (c *Comm) NoteGroup(ms []team.MessageNote, turn bool) {
	if len(ms) == 0 {
		return
	}
	c.infoM.Lock()
	c.last, c.grouped, c.replayed, c.messages = ms[len(ms)-1].Info(), true, nil, c.messages[:0]
	if turn {
		if c.fresh {
			c.members, c.fresh = c.members[:0], false
		}
		for i := range ms[:min(len(ms), maxMembers-len(c.members))] {
			c.members = append(c.members, ms[i].Info())
		}
	} else { // members belong to the holder of the turn
		c.messages = append(c.messages, ms[:min(len(ms), maxMembers)]...)
	}
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
}
