package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/stats"
	"github.com/ubcoll/ubcoll/internal/team"
)

// SchemaVersion is the version of the files that Report.Write writes. It changes when a key disappears or changes its
// meaning.
const SchemaVersion = 1

// Report holds everything that a run has found. Keys that nccl-tests' files also have are named as there.
type Report struct {
	Schema    int               `json:"schema_version"`
	Version   string            `json:"ubcoll_version"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"` // the project's own variables that are set, without secrets
	Start     time.Time         `json:"start_time"`
	End       time.Time         `json:"end_time"`
	Config    Settings          `json:"config"`
	Ranks     []RankInfo        `json:"devices"`
	ClockCost float64           `json:"clock_ns"` // subtracted from every time of a single call

	Device  *DeviceBytes `json:"device_bytes"` // null for host memory
	Setup   *Setup       `json:"registration"` // null for Go slices
	Results []Row        `json:"results"`
	Cache   *CacheTimes  `json:"cache"`
	Wrong   Bounds       `json:"out_of_bounds"`
	Average BusBW        `json:"average_bus_bandwidth"`
	Errors  []string     `json:"errors"`
}

// DeviceBytes says how much of rank 0's device memory the library itself used, in bytes: after the communicator was
// opened, and at the end.
type DeviceBytes struct {
	Open int64 `json:"open"`
	End  int64 `json:"end"`
}

// Settings is the part of a Config that results depend on.
type Settings struct {
	Op           string `json:"operation"`
	Ranks        int    `json:"ranks"`
	Threads      int    `json:"nthreads"`
	MinBytes     int    `json:"minimum_bytes"`
	MaxBytes     int    `json:"maximum_bytes"`
	StepBytes    int    `json:"step_bytes"`
	StepFactor   int    `json:"step_factor"`
	Iterations   int    `json:"iterations"` // 0 = by size and time
	Warmup       int    `json:"warmup_iters"`
	Aggregate    int    `json:"aggregated_iterations"`
	Window       int    `json:"window,omitempty"` // messages in flight in each pair
	Graphs       int    `json:"graph"`            // launches; a quarter as many from 64 MiB on; 0 = no graph
	Checks       int    `json:"validation"`
	Registration string `json:"registration"` // "none", "local"
	Device       string `json:"device"`       // "host", "cuda": where the buffers were
	Protocol     string `json:"protocol"`     // "each": calls timed by themselves on rewritten buffers; "loop"
	Average      string `json:"average"`      // how the ranks' times became one: "rank0", "avg", "min", "max"
	Level        string `json:"instructions"`
	Algorithm    string `json:"requested_algorithm"` // of all-reduces; "" = the library chose
	NVLS         string `json:"nvls,omitempty"`      // "on" if multicast objects might be made
}

// RankInfo describes one rank.
type RankInfo struct {
	Rank     int    `json:"rank"`
	PID      int    `json:"pid"`
	Hostname string `json:"hostname"`
	Local    int    `json:"local_rank"`
	Device   string `json:"device"`        // where its buffers were: "host", "cuda:1"
	Index    int    `json:"device_number"` // the CUDA device's number; for host memory, the local rank
	Name     string `json:"device_name"`
	PCI      string `json:"pci"` // "0000:1b:00.0"
}

// Row has the results of one size, type, reduction and root.
type Row struct {
	Size      int     `json:"size"`
	Count     int     `json:"count"`
	Type      string  `json:"type"`
	Reduction string  `json:"redop"`
	Root      int     `json:"root"`
	Out       *Result `json:"out_of_place"`
	In        *Result `json:"in_place"`           // null if it was not measured; some operations cannot run in place
	Model     float64 `json:"model_us,omitempty"` // what it should take by the costs of moving data between hosts; 0 on one host
}

// timedEach reports whether r has times of single calls out of place.
func (r *Row) timedEach() bool { return r.Out != nil && r.Out.Spread != nil }

// Result is one variant of a row.
type Result struct {
	Time   float64       `json:"time"` // microseconds: the median call, or with the loop the mean
	AlgBW  float64       `json:"alg_bw"`
	BusBW  float64       `json:"bus_bw"`
	Rate   float64       `json:"messages_per_second,omitempty"` // of all pairs
	Wrong  *int          `json:"nwrong"`                        // elements, on all ranks and in all checks; null if not checked
	Spread *stats.Spread `json:"per_iter"`

	Overlap *Overlap `json:"overlap,omitempty"`

	Algorithm   string  `json:"algorithm"`
	Source      string  `json:"source"`      // "direct", "staged: why", "" where the operation has none; see over
	Destination string  `json:"destination"` // on rank 0, as are the source and the levels
	Levels      []Level `json:"levels"`
	Way         string  `json:"way"`        // the algorithm of the level between hosts; "" on one host
	Wire        string  `json:"wire"`       // its transport: "tcp eth0"
	Hits        int64   `json:"cache_hits"` // of rank 0's registration cache during the timed calls
	Misses      int64   `json:"cache_misses"`
}

// Level says how the data moved on one level of the machine. See ubcoll.Level.
type Level struct {
	Where       string `json:"where"` // "in the host", "between hosts"
	Algorithm   string `json:"algorithm"`
	Transport   string `json:"transport"`
	Lanes       int    `json:"lanes"`
	Hosts       int    `json:"hosts"`  // that exchange data; 0 within a host
	Source      string `json:"source"` // as in Result
	Destination string `json:"destination"`
	Why         string `json:"why"`
	Choice      string `json:"choice,omitempty"`
	Text        string `json:"text"` // all of it in one line
}

// LevelsText is one line about all levels.
func (r *Result) LevelsText() string {
	var all []string
	for _, l := range r.Levels {
		all = append(all, l.Text)
	}
	return strings.Join(all, "; ")
}

// Hosts is how many hosts exchanged data, or 0 on one.
func (r *Result) Hosts() int {
	if n := len(r.Levels); n > 0 {
		return r.Levels[n-1].Hosts
	}
	return 0
}

// several reports whether data moved on more levels than the host's.
func several(levels []Level) bool { return len(levels) > 0 && levels[len(levels)-1].Why != "" }

// over says how a buffer was reached: on one level as the level says, on several "in the host direct; between hosts copied
// by the kernel".
func over(levels []Level, buffer func(*Level) string) string {
	if !several(levels) && len(levels) > 0 {
		return buffer(&levels[0])
	}
	var all []string
	for i := range levels {
		l := &levels[i]
		if how := buffer(l); how != "" {
			all = append(all, l.Where+" "+cmp.Or(l.Why, how))
		}
	}
	return strings.Join(all, "; ")
}

func levels(op ubcoll.OpInfo) []Level {
	all := []Level{}
	for _, l := range op.Levels {
		all = append(all, Level{Where: l.Where, Algorithm: l.Algorithm, Transport: l.Transport, Lanes: l.Lanes, Hosts: l.Hosts,
			Source: l.Source.String(), Destination: l.Destination.String(), Why: l.Why, Choice: l.Choice, Text: l.String()})
	}
	return all
}

// moved notes how the data of an operation moved.
func (r *Result) moved(op ubcoll.OpInfo) {
	r.Algorithm, r.Levels = op.Algorithm, levels(op)
	r.Source = over(r.Levels, func(l *Level) string { return l.Source })
	r.Destination = over(r.Levels, func(l *Level) string { return l.Destination })
	if n := len(r.Levels); n > 0 && r.Levels[n-1].Hosts > 0 {
		r.Way, r.Wire = r.Levels[n-1].Algorithm, r.Levels[n-1].Transport
	}
}

// crossed notes of an operation between two ranks that it went to another host, if it did.
func (r *Result) crossed(c *ubcoll.Comm, o *operation) {
	h := (*inside.Comm)(c).View().Team().Hosts
	if h == nil || o.peers == nil || !slices.ContainsFunc(o.peers(placeOf(c, -1)), func(peer int) bool { return h.Of(peer) != h.Host() }) {
		return
	}
	k := h.Link()
	l := Level{Where: team.BetweenHosts, Algorithm: r.Algorithm, Transport: k.Name, Lanes: 1, Hosts: k.Hosts, Source: r.Source,
		Destination: r.Destination}
	l.Text = fmt.Sprintf("%s over %d hosts, %s", l.Algorithm, l.Hosts, l.Transport)
	if r.Levels, r.Wire = []Level{l}, l.Transport; o.open == nil { // the others have one way
		r.Way = l.Algorithm
	}
}

// Bounds counts the wrong elements.
type Bounds struct {
	Count int  `json:"count"`
	OK    bool `json:"okay"`
}

// BusBW is the mean of all results, in GB/s.
type BusBW struct {
	Bandwidth float64 `json:"bandwidth"`
	OK        *bool   `json:"okay"` // null if no minimum was asked for
}

// Setup says what the first use of the buffers cost, in microseconds on the slowest rank. On devices it also counts how
// often ranks mapped each other's memory, summed over all ranks: until the end of the first use the buffers, and later
// also staging memory, which ranks that share a device need for smaller messages than others. For one-sided operations
// the times are rank 0's.
type Setup struct {
	Bytes    int     `json:"bytes"` // of each of the two buffers; of the region of one-sided operations
	Alloc    float64 `json:"alloc_us"`
	Register float64 `json:"register_us"`

	FirstUse    float64 `json:"first_use_us"` // of both buffers, with the wait until all peers have mapped them
	Opened      int     `json:"opened"`       // until then
	OpenedLater int     `json:"opened_later"` // during all other calls
}

// CacheTimes says what the registration cache costs on rank 0, and for Churn on the slowest rank.
type CacheTimes struct {
	Hits            int64        `json:"hits"`
	Misses          int64        `json:"misses"`
	HitRate         float64      `json:"hit_rate"` // 0 to 1; of the lookups of the whole run
	HitP50          float64      `json:"hit_p50_ns"`
	HitP99          float64      `json:"hit_p99_ns"`
	HitMax          float64      `json:"hit_max_ns"`
	Again           stats.Spread `json:"register_again"` // register and close, of memory that is registered already
	Churn           stats.Spread `json:"churn"`          // allocate, register, all-reduce, close, free
	ChurnBytes      int          `json:"churn_bytes"`
	Regions         int          `json:"regions"`
	RegisteredBytes int64        `json:"registered_bytes"`
	PinnedBytes     int64        `json:"pinned_bytes"` // the part of them that is locked in memory
	RegisterTime    float64      `json:"backends_us"`  // total time in the backends
}
