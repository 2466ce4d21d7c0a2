// Package experiment reads the TOML files of configs/: what to run, on what sizes and types, with which options.
// Reading is strict: an unknown key, a value of the wrong type and a value out of range are errors, and one reading
// reports all of them, each with its line. Everything here is local, and blocks on nothing but the file.
package experiment

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/register"
)

// Experiment is the contents of one file. Default has the values for what a file leaves out.
type Experiment struct {
	Title     string    `toml:"title,omitempty"`
	Job       Job       `toml:"job"`
	AllReduce AllReduce `toml:"allreduce"`
	Options   Options   `toml:"options"`
}

// Job says how many ranks run.
type Job struct {
	Ranks int `toml:"ranks"` // 0: as many as were launched
}

// AllReduce is the job of cmd/allreduce_ub.
type AllReduce struct {
	Elements     *Size           `toml:"elements,omitempty"` // elements per buffer, or
	Bytes        *Size           `toml:"bytes,omitempty"`    // bytes per buffer; with neither, 4M bytes
	Type         dtype.Type      `toml:"type"`
	Op           string          `toml:"op"` // sum, prod, min, max or avg
	Iterations   int             `toml:"iterations"`
	InPlace      bool            `toml:"in_place"`
	Registration register.Policy `toml:"registration"` // explicit: by the job; auto: by the library; off: never
	Device       string          `toml:"device"`       // host; cuda; auto: each rank's GPU if all have one, else host
}

// Options are options of the library, as in ubcoll.Options.
type Options struct {
	Timeout    Duration     `toml:"timeout,omitempty"`     // 0: from the environment, or the library's default
	NetTimeout Duration     `toml:"net_timeout,omitempty"` // how long another host may be silent; 0: the same
	Algorithm  string       `toml:"algorithm"`             // "": the library chooses
	Pin        register.Pin `toml:"pin"`                   // required: registering fails where memory cannot be locked

	Devices ubcoll.DevicePolicy `toml:"devices"` // whether ranks use GPUs, and may share them
	Net     string              `toml:"net"`     // what carries data between hosts: "", tcp, verbs, ofi, ofi:PROVIDER
	NVLS    string              `toml:"nvls"`    // whether multicast objects may be made on GPUs: off, on; "": UBCOLL_NVLS says
}

// The values that strings may have. The first of each is the default.
var (
	Ops     = []string{"sum", "prod", "min", "max", "avg"}
	Devices = []string{"auto", "host", "cuda"}
)

const (
	defaultBytes = 4 << 20
	maxBytes     = 1 << 40 // per buffer

	maxIterations = 10_000_000 // whose times are kept
)

// Default is the experiment of an empty file.
func Default() *Experiment {
	return &Experiment{
		AllReduce: AllReduce{Type: dtype.Float32, Op: Ops[0], Iterations: 1, Registration: register.Explicit,
			Device: Devices[0]},
	}
}

// Load reads the experiment in the file at path. If the file cannot be read, the error says why. If it has faults, the
// error is a Faults with all of them.
func Load(path string) (*Experiment, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// ReadFile returns the text of the file at path; of a file that is too long to be parsed, enough to see that.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	switch i, _ := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("config: %w%s", err, nearest.File(path))
	case err != nil:
		return nil, fmt.Errorf("config: %w", err)
	case i != nil && i.IsDir():
		return nil, errors.Join(fmt.Errorf("config: %s is a folder: want a file, as x.toml", path), f.Close())
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return data, nil
}

// Parse reads an experiment from data. name is the file name in its faults. Keys that data leaves out have their
// defaults. The error, if any, is a Faults in the order of lines.
func Parse(name string, data []byte) (*Experiment, error) {
	e := Default()
	if err := ParseInto(name, data, e); err != nil {
		return nil, err
	}
	return e, nil
}

// ParseInto is Parse for files of another kind. e points to a struct that has their keys as tags, and the defaults.
// e.Validate, which reports Faults by Key, is called in any case.
func ParseInto(name string, data []byte, e interface{ Validate() error }) error {
	if line, msg := limits(string(data)); msg != "" {
		return Faults{{File: name, Line: line, Msg: msg, limit: true}}
	}
	var table map[string]toml.Primitive
	md, err := toml.Decode(string(data), &table)
	if err != nil {
		return Faults{syntaxFault(name, err)}
	}
	faults, lines := decode(&md, table, reflect.ValueOf(e).Elem())
	// A value that could not be read keeps its default, which is valid, so nothing is reported twice.
	var invalid Faults
	if errors.As(e.Validate(), &invalid) {
		faults = append(faults, invalid...)
	}
	if len(faults) == 0 {
		return nil
	}
	for i := range faults {
		path := faults[i].path
		if path == nil {
			path = strings.Split(faults[i].Key, ".")
		}
		faults[i].File, faults[i].Line = name, lines.of(path)
	}
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(a.Line-b.Line, strings.Compare(a.Key, b.Key))
	})
	return faults
}

// syntaxFault returns the TOML parser's error with its line. The parser stops at the first one, since it cannot
// reliably read what follows.
func syntaxFault(name string, err error) Fault {
	var pe toml.ParseError
	if !errors.As(err, &pe) {
		return Fault{File: name, Msg: err.Error()}
	}
	msg := pe.Message
	if msg == "" { // some of the parser's errors have their text only in Error()
		msg = strings.TrimPrefix(pe.Error(), "toml: ")
	}
	return Fault{File: name, Line: max(pe.Position.Line, 1), Key: pe.LastKey, Msg: strings.TrimSuffix(msg, ".")}
}

// Validate reports every value that is out of range, as a Faults without lines; nil if there is none.
func (e *Experiment) Validate() error {
	var faults Faults
	bad := func(key, format string, args ...any) {
		faults = append(faults, Fault{Key: key, Msg: fmt.Sprintf(format, args...), path: strings.Split(key, ".")})
	}
	oneOf := func(key, value string, words []string) {
		if !slices.Contains(words, value) {
			bad(key, "%s", nearest.Unknown("value", value, words))
		}
	}
	if e.Job.Ranks < 0 {
		bad("job.ranks", "must be 0 (as launched) or more, not %d", e.Job.Ranks)
	}
	a := &e.AllReduce
	size := int64(a.Type.Size())
	if !a.Type.Valid() {
		bad("allreduce.type", "missing")
		size = 1
	}
	if n := a.Elements; n != nil {
		switch {
		case a.Bytes != nil:
			bad("allreduce.bytes", "given beside elements: give one of them")
		case *n < 1 || int64(*n) > maxBytes/size:
			bad("allreduce.elements", "must be 1 to %d (1 TiB of %v), not %d", maxBytes/size, a.Type, int64(*n))
		}
	} else if n := a.Bytes; n != nil {
		switch {
		case *n < 1 || *n > maxBytes:
			bad("allreduce.bytes", "must be 1 to 1024G, not %d", int64(*n))
		case int64(*n)%size != 0:
			bad("allreduce.bytes", "%d bytes are not a whole number of %v elements (%d bytes each)", int64(*n), a.Type,
				size)
		}
	}
	oneOf("allreduce.op", a.Op, Ops)
	if a.Type == dtype.Bool && slices.Contains(Ops, a.Op) && a.Op != "max" && a.Op != "min" {
		bad("allreduce.op", "there is no %s of bools: only max, which is or, and min, which is and", a.Op)
	}
	if a.Iterations < 1 || a.Iterations > maxIterations {
		bad("allreduce.iterations", "must be 1 to %d, not %d", maxIterations, a.Iterations)
	}
	if _, err := a.Registration.MarshalText(); err != nil {
		bad("allreduce.registration", "%v", err)
	}
	oneOf("allreduce.device", a.Device, Devices)
	if _, err := e.Options.Pin.MarshalText(); err != nil {
		bad("options.pin", "%v", err)
	}
	if _, err := e.Options.Devices.MarshalText(); err != nil {
		bad("options.devices", "%v", err)
	}
	if e.Options.NVLS != "" {
		oneOf("options.nvls", e.Options.NVLS, NVLS)
	}
	if e.Options.Timeout < 0 {
		bad("options.timeout", "must be 0 (the library's default) or longer, not %v", e.Options.Timeout)
	}
	if err := (ubcoll.Options{NetTimeout: time.Duration(e.Options.NetTimeout)}).Validate(); err != nil {
		bad("options.net_timeout", "%v", err)
	}
	if err := (ubcoll.Options{Net: ubcoll.Net(e.Options.Net)}).Validate(); err != nil {
		bad("options.net", "%v", err)
	}
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// Count returns the number of elements per buffer of a valid experiment.
func (a *AllReduce) Count() int {
	switch {
	case a.Elements != nil:
		return int(min(int64(*a.Elements), math.MaxInt))
	case a.Bytes != nil:
		return int(min(int64(*a.Bytes)/int64(a.Type.Size()), math.MaxInt))
	}
	return defaultBytes / a.Type.Size()
}

// String returns the whole experiment, defaults included, as TOML. Parse reads it back to an equal one.
func (e *Experiment) String() string {
	var b bytes.Buffer
	enc := toml.NewEncoder(&b)
	enc.Indent = ""
	if err := enc.Encode(e); err != nil {
		return fmt.Sprintf("# %v\n", err) // only an invalid experiment cannot be written
	}
	return b.String()
}

// Duration is a time.Duration that reads and prints as "10m".
type Duration time.Duration

// String returns the duration in time.Duration's form: "10m0s".
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses what time.ParseDuration parses.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if long := env.TooLong(string(b)); long != nil {
		return fmt.Errorf("duration %q: %w", b, long)
	}
	if err != nil {
		return fmt.Errorf("invalid duration %q (as in 90s, 10m, 1h30m)", b)
	}
	*d = Duration(v)
	return nil
}
