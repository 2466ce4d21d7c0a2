// Package env has the one table of all environment variables that the project reads. Nothing else in the tree reads a
// UBCOLL_ variable, so that the documentation, `ubcoll info -env` and the agreement of the ranks use the same list.
package env

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/faults"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Info describes one variable.
type Info struct {
	Name    string
	Kind    string // "number", "duration", "text", "bytes, ..." or the possible values: "auto|explicit|off", "list of mpi, cuda"
	Default string // the value of an unset or empty variable; "" for none
	JobWide bool   // ranks must agree on it; Open compares the effective values
	Secret  bool   // never print the value
	Doc     string // one sentence
}

// Var is one variable with values of type T. All methods are local and safe for concurrent use; they read the
// environment at each call.
type Var[T any] struct {
	Info
	parse func(string) (T, error)
}

// IsSet reports whether the environment has the variable with a value that is not empty.
func (v *Var[T]) IsSet() bool { return os.Getenv(v.Name) != "" }

// Get returns the variable's value, or its default if it is unset or empty. The error wraps ErrArgument and names the
// variable, its possible values and, unless it is a secret, its value.
func (v *Var[T]) Get() (T, error) {
	s := os.Getenv(v.Name)
	if s == "" {
		s = v.Default
		if s == "" {
			var zero T
			return zero, nil
		}
	}
	x, err := v.parse(s)
	switch {
	case err == nil:
		return x, nil
	case v.Secret:
		return x, fmt.Errorf("%s: %w: %w", v.Name, err, fault.ErrArgument)
	}
	return x, fmt.Errorf("%s=%q: %w: %w", v.Name, s, err, fault.ErrArgument)
}

// effective is the value in force, in one form whatever the user's spelling.
func (v *Var[T]) effective() (string, error) {
	x, err := v.Get()
	return fmt.Sprint(x), err
}

func (v *Var[T]) info() Info { return v.Info }

// The variables.
var (
	Rank = define(Info{Name: "UBCOLL_RANK", Kind: "number",
		Doc: "This process's rank, for jobs started without MPI; from 0."}, number(0, maxRanks-1))
	Size = define(Info{Name: "UBCOLL_SIZE", Kind: "number",
		Doc: "How many processes the job has, for jobs started without MPI."}, number(1, maxRanks))
	Rendezvous = define(Info{Name: "UBCOLL_RENDEZVOUS", Kind: "text",
		Doc: "Where rank 0 listens: host:port, unix:@name (an abstract socket) or unix:/path."}, text)
	Secret = define(Info{Name: "UBCOLL_SECRET", Kind: "text", Secret: true,
		Doc: "The job's secret, at least 16 bytes; ranks prove that they know it and never send it."}, text)
	Require = define(Info{Name: "UBCOLL_REQUIRE", Kind: "list of mpi, cuda, verbs, hosts, libfabric",
		Doc: "What must be there: tests that lack it fail where they would skip, ubcoll and allreduce_ub where they would " +
			"do without; hosts: that this machine can make several of itself; verbs: an RDMA device, and with UBCOLL_IB that no two ranks of different hosts go without; libfabric: the library, and with UBCOLL_OFI=on that no two ranks of different hosts go without."}, list("mpi", "cuda", "verbs", "hosts", "libfabric"))
	Timeout = define(Info{Name: "UBCOLL_TIMEOUT", Kind: "duration", Default: "10m", JobWide: true,
		Doc: "The longest wait inside one operation."}, duration)
	NetTimeout = define(Info{Name: "UBCOLL_NET_TIMEOUT", Kind: "duration, 1s to 1h", Default: "5s", JobWide: true,
		Doc: "How long another host may be silent before the connection to it counts as cut; a process that ends is seen at once."},
		within(time.Second, time.Hour))
	Register = define(Info{Name: "UBCOLL_REGISTER", Kind: "auto|explicit|off", Default: "auto", JobWide: true,
		Doc: "Which buffers the library registers: those it meets, those the program names, or none."},
		choice("auto", "explicit", "off"))
	Pin = define(Info{Name: "UBCOLL_PIN", Kind: "auto|required", Default: "auto", JobWide: true,
		Doc: "Whether host memory must be locked in memory to be registered: as far as ulimit -l allows, or else registering fails."},
		choice("auto", "required"))
	Algorithm = define(Info{Name: "UBCOLL_ALGO", Kind: "ring|one-shot|two-shot|push|doubling|halving|chain|tree|scatter|pairwise|collnet", JobWide: true,
		Doc: "The algorithm of all-reduces on one host (the first four), or of collectives between hosts (ring and those from doubling on), where it can be had; empty lets the plan choose."},
		choice("ring", "one-shot", "two-shot", "push", "doubling", "halving", "chain", "tree", "scatter", "pairwise", "collnet"))
	Tuning = define(Info{Name: "UBCOLL_TUNING", Kind: "text",
		Doc: "A tuning table as ubcoll tune writes it; what it lacks is the default. Open compares what it says."}, text)
	MaxRegions = define(Info{Name: "UBCOLL_MAX_REGIONS", Kind: "number", Default: "0",
		Doc: "How many regions a rank's registration cache may hold; idle automatic ones make room; 0 is no limit."},
		number(0, 1<<40))
	MaxPinned = define(Info{Name: "UBCOLL_MAX_PINNED", Kind: "bytes, as 512M or 4G", Default: "0",
		Doc: "How many bytes a rank's registration cache may hold registered; they are locked in memory as far as ulimit -l allows. 0 is no limit."}, size(1<<60))
	CUDA = define(Info{Name: "UBCOLL_CUDA", Kind: "auto|share|off", Default: "auto", JobWide: true,
		Doc: "Whether ranks use CUDA devices: auto, where each has one; share, where they may share them. Open then takes 10 MiB of each (8 ranks: 20) for a rank, beside what the driver takes for a process, and longer."},
		choice("auto", "share", "off"))
	NVLS = define(Info{Name: "UBCOLL_NVLS", Kind: "off|on", Default: "off", JobWide: true,
		Doc: "Whether multicast objects may be made on GPUs (NVLS), in builds with tag nvls and unless NCCL_NVLS_ENABLE is 0; memory of Alloc on GPUs is then rounded to what can be bound to one. Never on a host that others use without its operator's leave."},
		choice("off", "on"))
	CPU = define(Info{Name: "UBCOLL_CPU", Kind: "avx512|avx2|neon|portable|go",
		Doc: "The instructions that reductions on host memory use; empty takes the best that this machine has."},
		choice("avx512", "avx2", "neon", "portable", "go"))
	Threads = define(Info{Name: "NTHREADS", Kind: "number", Default: "1",
		Doc: "How many goroutine ranks a program runs when nothing launched it as several processes."},
		number(1, maxRanks))
	RanksPerProcess = define(Info{Name: "UBCOLL_RANKS_PER_PROCESS", Kind: "number", Default: "1",
		Doc: "How many goroutine ranks each process of a job runs, the same in all: as many as it has GPUs, say."},
		number(1, maxRanks))
	HostID = define(Info{Name: "UBCOLL_HOSTID", Kind: "text",
		Doc: "Replaces the identity of this host, where containers of one host, or hosts with one identity, mislead it."},
		text)
	Net = define(Info{Name: "UBCOLL_NET", Kind: "list of interfaces, subnets or addresses",
		Doc: "Where ranks of other hosts may connect to this one (eth1,10.0.0.0/8), the fastest first; data go over all networks that both hosts name: 4 addresses at most; empty: the first 4."},
		places)
	Ports = define(Info{Name: "UBCOLL_PORTS", Kind: "range of ports",
		Doc: "The ports that ranks of several hosts listen on, one each (20000-20100); empty: the system's choice."}, ports)
	IB = define(Info{Name: "UBCOLL_IB", Kind: "off|auto|on", Default: "auto",
		Doc: "Whether RDMA devices register what a rank registers, and carry the data between hosts: never, in jobs of several hosts where they can (else TCP does), or else Open fails."},
		choice("off", "auto", "on"))
	IBDevices = define(Info{Name: "UBCOLL_IB_HCA", Kind: "list of devices",
		Doc: "Which RDMA devices: beginnings of names (mlx5,rxe0:1), whole names after =, all others after ^ or ^=; empty: all. A rank uses the nearest of them, up to 4."}, text)
	IBRelaxed = define(Info{Name: "UBCOLL_IB_PCI_RELAXED_ORDERING", Kind: "number", Default: "2",
		Doc: "Whether RDMA devices may write memory in another order than data came: 0 never, 1 or 2 where they can."},
		number(0, 2))
	IBGIDIndex = define(Info{Name: "UBCOLL_IB_GID_INDEX", Kind: "number", Default: "-1",
		Doc: "Which row of a port's table of GIDs is its address; -1: one that suits the link, of IPv4 and RoCE v2 if there is one."},
		number(-1, 255))
	IBTrafficClass = define(Info{Name: "UBCOLL_IB_TC", Kind: "number", Default: "0",
		Doc: "The traffic class of RDMA packets, 0 to 255; on RoCE v2 the DSCP times 4."}, number(0, 255))
	IBServiceLevel = define(Info{Name: "UBCOLL_IB_SL", Kind: "number", Default: "0",
		Doc: "The service level of RDMA packets, 0 to 15; on RoCE the VLAN's priority."}, number(0, 15))
	IBTimeout = define(Info{Name: "UBCOLL_IB_TIMEOUT", Kind: "number", Default: "20",
		Doc: "How long an RDMA device waits for an answer before it sends again: 4.096 us times 2 to this power, 1 to 31."},
		number(1, 31))
	IBRetries = define(Info{Name: "UBCOLL_IB_RETRY_CNT", Kind: "number", Default: "7",
		Doc: "How often an RDMA device sends again before it gives up, 0 to 7."}, number(0, 7))
	IBPKey = define(Info{Name: "UBCOLL_IB_PKEY", Kind: "number", Default: "0",
		Doc: "Which row of a port's table of partition keys is used."}, number(0, 65535))
	IBQueuePairs = define(Info{Name: "UBCOLL_IB_QPS_PER_CONNECTION", Kind: "number", Default: "1",
		Doc: "How many queue pairs carry the data of two ranks on each of their RDMA devices, 1 to 8; the lesser of both ranks' numbers counts; 8 in all at most."}, number(1, 8))
	CollNet = define(Info{Name: "UBCOLL_COLLNET_PLUGIN", Kind: "text", JobWide: true,
		Doc: "A plugin of NCCL's CollNet interface (version 10 or 11), which does all-reduces, all-gathers and reduce-scatters between hosts in the network: its path, or NAME for libnccl-net-NAME.so."}, text)
	OFILibrary = define(Info{Name: "UBCOLL_OFI_LIB", Kind: "text",
		Doc: "The libfabric to load, as a vendor's own build; unset, the system's libfabric.so.1."}, text)
	GDR = define(Info{Name: "UBCOLL_GDR", Kind: "off|auto|on", Default: "auto",
		Doc: "Whether RDMA devices read and write memory of GPUs themselves (GPUDirect RDMA), by a dma-buf or nvidia_peermem: never, where they share a PCI switch with the GPU or it is not known, or wherever they can."},
		choice("off", "auto", "on"))
	OFI = define(Info{Name: "UBCOLL_OFI", Kind: "off|auto|on", Default: "auto",
		Doc: "Whether libfabric carries the data between hosts, in place of RDMA devices and TCP: never; where there is a fabric that needs it (EFA, Slingshot, Omni-Path); or else Open fails."},
		choice("off", "auto", "on"))
	OFIProvider = define(Info{Name: "UBCOLL_OFI_PROVIDER", Kind: "text",
		Doc: "The provider of libfabric to use (efa, tcp, tcp;ofi_rxm), also where no fabric needs it; empty: the fabric's, or with UBCOLL_OFI=on the best one."}, text)
	OFIDomain = define(Info{Name: "UBCOLL_OFI_DOMAIN", Kind: "text",
		Doc: "The provider's domain (network device) to use; empty: all on interfaces in use, up to 4."}, text)
	OFIRMA = define(Info{Name: "UBCOLL_OFI_RMA", Kind: "auto|off", Default: "auto",
		Doc: "Whether a long put over libfabric goes from memory to memory where the provider can do that, or everything in messages: around a provider that does it badly."},
		choice("auto", "off"))
	RSH = define(Info{Name: "UBCOLL_RSH", Kind: "text",
		Default: "ssh -x -o BatchMode=yes -o ConnectTimeout=10",
		Doc:     "The command by which ubcoll launch runs another on a host, in place of ssh: host and command come behind its words."},
		fields)
	Dump = define(Info{Name: "UBCOLL_DUMP", Kind: "text",
		Doc: "A folder, which is made if it is not there: each rank writes its last operations there when a wait times out, a rank is lost or aborts, and at SIGUSR2 where Main takes that; ubcoll dump reads it."}, text)
	Trace = define(Info{Name: "UBCOLL_TRACE", Kind: "0|1", Default: "0",
		Doc: "Whether operations are regions in traces of runtime/trace, and goroutines have their rank's labels in profiles."},
		choice("0", "1"))
	Fault = define(Info{Name: "UBCOLL_FAULT", Kind: "list of kill, stop, slow and cut, each as kill:rank=2,after=100",
		Doc: "Ranks that are to fail, for tests of what a program does then: kill:rank=2,after=100; stop:rank=1,after=2s,for=5s; slow:rank=1,by=1ms; cut:rank=3; several with semicolons. docs/errors.md describes it."},
		faults.Parse)
	Log = define(Info{Name: "UBCOLL_LOG", Kind: "error|warn|info|debug", Default: "warn",
		Doc: "The least severe message that the library writes to standard error, unless the program gives it a logger."},
		choice("error", "warn", "info", "debug"))
)

// maxRanks only catches nonsense early; the transports have their own limits.
const maxRanks = 1 << 16

// All lists every variable in the order of the table. The caller owns the slice.
func All() []Info {
	var all []Info
	for _, v := range table {
		all = append(all, v.info())
	}
	return all
}

// JobWide returns the effective values of all variables on which the ranks must agree, by name. Values have one
// spelling ("60s" and "1m" are both "1m0s"), so that equal settings compare equal. The caller owns the map.
func JobWide() (map[string]string, error) {
	values := map[string]string{}
	for _, v := range table {
		if !v.info().JobWide {
			continue
		}
		s, err := v.effective()
		if err != nil {
			return nil, err
		}
		values[v.info().Name] = s
	}
	return values, nil
}

// Validate reports every variable that begins with UBCOLL_ and has a malformed value. Open calls it, so that no such
// value is ignored. It leaves out NTHREADS, which other programs use, too: that is checked when it is used.
func Validate() error {
	var errs []error
	for _, v := range table {
		if strings.HasPrefix(v.info().Name, prefix) {
			_, err := v.effective()
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Unknown returns the names in environ (in the form of os.Environ) that begin with UBCOLL_ but are no variable of the
// project, each with the nearest variable, or "".
func Unknown(environ []string) (names, near []string) {
	var known []string
	for _, v := range table {
		known = append(known, v.info().Name)
	}
	for _, s := range environ {
		name, _, _ := strings.Cut(s, "=")
		if strings.HasPrefix(name, prefix) && !slices.Contains(known, name) &&
			!slices.ContainsFunc(hooks, func(h string) bool { return strings.HasPrefix(name, h) }) {
			names, near = append(names, name), append(near, nearest.Word(name, known))
		}
	}
	return names, near
}

const prefix = "UBCOLL_"

// hooks are prefixes of variables that tests set for themselves. They are no settings, and are not documented for
// users.
var hooks = []string{"UBCOLL_TEST_", "UBCOLL_EMULATE"}

// Requires reports whether UBCOLL_REQUIRE lists what.
func Requires(what string) bool {
	l, err := Require.Get()
	return err == nil && slices.Contains(l, what)
}

type entry interface {
	info() Info
	effective() (string, error)
}

var table []entry

func define[T any](i Info, parse func(string) (T, error)) *Var[T] {
	v := &Var[T]{i, parse}
	table = append(table, v)
	return v
}

func text(s string) (string, error) { return s, nil }

// fields splits a command at spaces.
func fields(s string) ([]string, error) {
	l := strings.Fields(s)
	if len(l) == 0 {
		return nil, errors.New("want a command")
	}
	return l, nil
}

func number(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("want a whole number from %d to %d", low, high)
		}
		return n, nil
	}
}

// size takes bytes from 0 to high.
func size(high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := ParseSize(s)
		if err != nil || n > int64(high) {
			return 0, fmt.Errorf("want a size from 0 to %dG: %s", high>>30, sizeForm)
		}
		return int(n), nil
	}
}

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err := TooLong(s); err != nil {
		return 0, err
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("want a duration over zero, as 30s or 10m")
	}
	return d, nil
}

// within is duration between least and most.
func within(least, most time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		if d, err := time.ParseDuration(s); err == nil && least <= d && d <= most {
			return d, nil
		}
		return 0, fmt.Errorf("want a duration from %v to %v, as 10s", least, most)
	}
}

// TooLong returns an error if s is a duration that exceeds what a time.Duration can hold, else nil.
func TooLong(s string) error {
	if _, err := time.ParseDuration(s); err == nil {
		return nil
	}
	if _, err := time.ParseDuration(numbers.ReplaceAllString(s, "1")); err != nil {
		return nil
	}
	return fmt.Errorf("too long, %vh at most", int64(math.MaxInt64/time.Hour))
}

var numbers = regexp.MustCompile(`[0-9]+(\.[0-9]*)?`)

func list(words ...string) func(string) ([]string, error) {
	return func(s string) ([]string, error) {
		var l []string
		for part := range strings.SplitSeq(s, ",") {
			switch part = strings.TrimSpace(part); {
			case slices.Contains(words, part):
				l = append(l, part)
			case part != "":
				return nil, fmt.Errorf("%q: want some of %s, with commas", part, strings.Join(words, ", "))
			}
		}
		return l, nil
	}
}

func words(s string) ([]string, error) {
	var l []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			l = append(l, part)
		}
	}
	return l, nil
}

// places checks that each word could be an interface's name, a subnet or an address, but not whether it exists.
func places(s string) ([]string, error) {
	l, err := words(s)
	for _, w := range l {
		_, notAddress := netip.ParseAddr(w)
		_, notSubnet := netip.ParsePrefix(w)
		if notAddress != nil && notSubnet != nil && !interfaceName.MatchString(w) {
			return nil, fmt.Errorf("want names of interfaces, subnets and addresses, with commas between, not %q", w)
		}
	}
	return l, err
}

// interfaceName matches the names that the system's tools accept for an interface: at most 15 characters.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}$`)

// PortRange is the value of UBCOLL_PORTS. It includes both ports; both are 0 if the variable is unset.
type PortRange struct{ First, Last uint16 }

// String is the value in the variable's form.
func (r PortRange) String() string {
	if r == (PortRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

func ports(s string) (PortRange, error) {
	first, last, two := strings.Cut(s, "-")
	if !two {
		last = first
	}
	a, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errLast := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || errLast != nil || a == 0 || a > b {
		return PortRange{}, errors.New("want ports from 1 to 65535, as 20000-20100")
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

func choice(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("want one of %s%s", strings.Join(words, ", "), nearest.Hint(s, words))
		}
		return s, nil
	}
}
