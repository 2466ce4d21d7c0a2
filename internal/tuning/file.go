package tuning

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Version is the version of the format.
const Version = 2

// File has numbers of a table by name: sizes in bytes, and of hosts and RDMA, what their names say. Those of messages are set by
// hand, and how many connections hosts have; the others are measured. For what it lacks, the default holds.
type File struct {
	Version  int            `json:"version"`
	Machine  string         `json:"machine,omitempty"` // where Host was measured
	Host     map[string]int `json:"host,omitempty"`
	Devices  string         `json:"devices,omitempty"` // where Device was measured
	Device   map[string]int `json:"device,omitempty"`
	Messages map[string]int `json:"messages,omitempty"`
	Network  string         `json:"network,omitempty"` // where Hosts was measured
	Hosts    map[string]int `json:"hosts,omitempty"`
	Fabric   string         `json:"rdma_network,omitempty"` // where RDMA was measured
	RDMA     map[string]int `json:"rdma,omitempty"`
}

// Parse parses the content of a file; name is for errors. Unknown keys are errors.
func Parse(name string, data []byte) (File, error) {
	f, err := parse(data)
	if err != nil {
		err = fmt.Errorf("tuning table %s: %w: %w", name, err, fault.ErrArgument)
	}
	return f, err
}

func parse(data []byte) (f File, err error) {
	var v struct{ Version int } // whatever else there is
	if err := json.Unmarshal(data, &v); err != nil {
		return f, err
	}
	if v.Version != Version {
		return f, fmt.Errorf("version is %d, this build reads %d: have ubcoll tune write a new one", v.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return f, err
	}
	var t Table
	return f, errors.Join(check("host", f.Host, t.sizes()), check("device", f.Device, t.GPU.Sizes()),
		check("messages", f.Messages, t.Messages.sizes()), checkRoom(f.Messages),
		check("hosts", f.Hosts, t.Hosts.numbers()), checkConnections(f.Hosts), check("rdma", f.RDMA, prices(&t.RDMA)))
}

// check reports everything that is wrong with a part of a file.
func check(part string, sizes map[string]int, known map[string]*int) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if _, is := known[name]; !is {
			errs = append(errs, fmt.Errorf("unknown key %q in %q%s", name, part,
				nearest.Hint(name, slices.Sorted(maps.Keys(known)))))
		} else if sizes[name] < 0 {
			errs = append(errs, fmt.Errorf("%s of %q is %d", name, part, sizes[name]))
		}
	}
	return errors.Join(errs...)
}

// checkRoom reports the limits of messages for which boxes have no room.
func checkRoom(limits map[string]int) error {
	var errs []error
	room := MessageRoom()
	most := room.sizes()
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if m := most[name]; m != nil && limits[name] > *m {
			errs = append(errs, fmt.Errorf("%s of %q is %d, and a message's box has room for %d", name, "messages",
				limits[name], *m))
		}
	}
	return errors.Join(errs...)
}

// checkConnections reports a number of connections that ranks cannot have.
func checkConnections(hosts map[string]int) error {
	if n, is := hosts["connections"]; is && (n == 0 || n > transport.MostConnections) {
		return fmt.Errorf("connections of %q is %d: want 1 to %d", "hosts", n, transport.MostConnections)
	}
	return nil
}

// Load returns the table from the file that UBCOLL_TUNING names, or the default. agreed must be the same on all ranks:
// it is the file's hash. Default tables may still differ between hosts, but for Hosts: what hosts decide together depends on
// nothing else. The ranks of one host have the same one.
func Load() (t Table, agreed string, err error) {
	name, err := env.Tuning.Get()
	if err != nil || name == "" {
		return Default(), "default", err
	}
	f, err := Read(name)
	if err != nil {
		return Default(), "", fmt.Errorf("%s: %w", env.Tuning.Name, err)
	}
	return f.Table(), f.Hash(), nil
}

// Read reads the file of that name.
func Read(name string) (File, error) {
	data, err := read(name)
	if err != nil {
		return File{}, fmt.Errorf("tuning table: %w", err)
	}
	return Parse(name, data)
}

// maxFile is longer than any table.
const maxFile = 64 << 10

// read reads a file of a table's size. Other things than regular files might never end, or never have a writer.
func read(name string) ([]byte, error) {
	if i, err := os.Stat(name); err != nil {
		return nil, err
	} else if !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: name one that ubcoll tune wrote: %w", name, fault.ErrArgument)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes: name a table that ubcoll tune wrote: %w", name, maxFile, fault.ErrLimit)
	}
	return data, err
}

// Table returns the default table, with f's sizes in place of its own.
func (f File) Table() Table {
	t := Default()
	apply := func(sizes map[string]int, to map[string]*int, measured string) (is []string) {
		for name, n := range sizes {
			*to[name], is = n, []string{measured}
		}
		return is
	}
	machine := slices.Concat(apply(f.Host, t.sizes(), f.Machine), apply(f.Device, t.GPU.Sizes(), f.Devices),
		apply(f.Messages, t.Messages.sizes(), "messages set by hand"), apply(f.Hosts, t.Hosts.numbers(), cmp.Or(f.Network, "hosts set by hand")),
		apply(f.RDMA, prices(&t.RDMA), cmp.Or(f.Fabric, "rdma set by hand")))
	if len(machine) > 0 {
		t.Machine = strings.Join(machine, "; ")
	}
	return t
}

// SetHost copies t's sizes for the host to f.
func (f *File) SetHost(t Table) {
	f.Machine, f.Host = t.Machine, map[string]int{}
	for name, n := range t.sizes() {
		f.Host[name] = *n
	}
}

// SetHosts copies the costs between hosts to f, as measured on a network, over RDMA or over TCP. How many connections they have
// stays.
func (f *File) SetHosts(network string, rdma bool, m schedule.Model) {
	where, to := &f.Network, &f.Hosts
	if rdma {
		where, to = &f.Fabric, &f.RDMA
	}
	*where, *to = network, maps.Clone(*to)
	if *to == nil {
		*to = map[string]int{}
	}
	for name, n := range prices(&m) {
		(*to)[name] = *n
	}
}

// Bytes returns the file's content.
func (f File) Bytes() []byte {
	f.Version = Version
	b, _ := json.MarshalIndent(f, "", "  ") // plain values: it cannot fail
	return append(b, '\n')
}

// Hash is short, and differs if the ranks would decide something differently that they must decide alike. How a rank
// writes its results does not count: its default depends on the caches of the processor to which the rank is bound.
func (f File) Hash() string {
	f.Machine, f.Devices, f.Network, f.Host = "", "", "", maps.Clone(f.Host)
	delete(f.Host, "stream_from")
	sum := sha256.Sum256(f.Bytes())
	return hex.EncodeToString(sum[:8])
}
