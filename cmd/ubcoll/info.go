package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/nvml"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

const infoUsage = `info [flags]

Says what this build and this machine have; under mpirun or ubcoll launch, what rank 0's have and where others' differ.`

// info is the command info.
func info(args []string, out io.Writer) error {
	fs := newFlags("info")
	withEnv := fs.Bool("env", false, "the environment variables too")
	asJSON := fs.Bool("json", false, "as JSON")
	if err := parseFlags(fs, args, infoUsage, out); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	m, alone := meet()
	lines, err := facts(*withEnv, m)
	if err != nil {
		return errors.Join(err, m.close())
	}
	if alone != nil { // each process then answers for itself
		lines = append(lines, pair{"job", alone.Error()})
	}
	groups, err := asks(m, lines)
	switch {
	case err != nil:
		return fmt.Errorf("info: %w", err)
	case m.job != nil && m.job.Rank() != 0:
		return nil
	case *asJSON:
		return writeJSON(out, groups)
	}
	return printGroups(out, groups, func(lines []pair) string {
		var b strings.Builder
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, l := range lines {
			fmt.Fprintf(w, "%s\t%s\n", l.Name, l.Value)
		}
		_ = w.Flush() // writing to a builder cannot fail
		return b.String()
	})
}

// facts returns the lines that info prints. Collective over m's job.
func facts(withEnv bool, m meeting) (lines []pair, err error) {
	held, why := holders(m)
	shared := nvlink(m)
	line := func(name, format string, args ...any) {
		lines = append(lines, pair{name, fmt.Sprintf(format, args...)})
	}
	line("version", "%s", version())
	line("go", "%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	b := built()
	line("mpi", "%s", or(b.MPI, "not built in"))
	line("cgo", "%s", map[bool]string{true: "built in", false: "not built in"}[b.Cgo])
	if name, n := bootstrap.Launcher(); name != "" {
		line("launcher", "%s, %s", name, plural.Count(n, "rank"))
	} else {
		line("launcher", "none")
	}
	if death := bootstrap.AfterDeath(); death != "" {
		line("", "when a rank dies, %s", death)
	}
	line("ranks", "%s", or(ranksFrom(), "goroutines of this process"))
	host, _ := os.Hostname()
	line("host", "%s", host)
	line("processors", "%d allowed, %s, last-level cache %d KiB", len(cpu.Affinity()), plural.Count(cpu.Cores(), "core"),
		cpu.LastLevelCacheBytes()>>10)
	for i, n := range []int{8, 64, 512} {
		line([]string{"memory", "", ""}[i], "%s", hosts.MemoryText(n, n))
	}
	table, _, err := tuning.Load()
	if err != nil {
		return nil, err
	}
	line("tuning", "%s", table.Machine)
	if table.Assumed(false) {
		line("", "default costs between hosts: ubcoll tune measures them in a job of several hosts")
	}
	if verbs.Have().Err == nil && table.Assumed(true) {
		line("", "default costs of RDMA between hosts: it measures them where all ranks have RDMA devices")
	}
	line("instructions", "%s", cpu.Level())
	if err := cpu.LevelError(); err != nil {
		line("", "%v", err)
	}
	for _, probe := range []hw.Probe{shm.Have(), cuda.Have(), verbs.Have()} {
		name, state, _ := strings.Cut(probe.String(), ": ")
		line(name, "%s", state)
	}
	if err := devices(line, held, why); err != nil {
		return nil, err
	}
	for _, text := range shared {
		what, rest, _ := strings.Cut(text, " fabric ")
		line(what, "fabric %s", rest)
	}
	rdma(line)
	libfabric(line)
	collNet(line)
	if withEnv {
		line("", "")
		for _, v := range env.All() {
			line(v.Name, "%s\t%s\t%s", value(v), v.Kind, v.Doc)
		}
	}
	return lines, nil
}

// devices lists the CUDA devices, if there is a driver. held has the ranks that have each; unused is why ranks have none.
func devices(line func(name, format string, args ...any), held [][]int, unused error) error {
	if cuda.Have().Err != nil {
		return nil
	}
	major, minor, err := cuda.Version()
	if err != nil {
		return err
	}
	line("CUDA driver", "%d.%d", major, minor)
	if unused != nil {
		line("ranks' devices", "none: %v", unused)
	}
	all, err := cuda.Devices()
	if err != nil {
		return err
	}
	for i, d := range all {
		_, rest, _ := strings.Cut(d.String(), " ")
		if i < len(held) {
			rest += ofRanks(held[i])
		}
		line(d.Device.String(), "%s", rest)
		var can []string
		for _, c := range []struct {
			name string
			has  bool
		}{
			{"VMM", d.VMM}, {"export as descriptor", d.PosixFD}, {"fabric handles", d.Fabric}, {"RDMA", d.DirectRDMA},
			{"dma-buf", d.DMABuf}, {"host atomics", d.HostAtomics}, {"multicast", d.Multicast},
			{"MPS", d.MPS},
		} {
			if c.has {
				can = append(can, c.name)
			}
		}
		if f, ok := nvml.FabricOf(d.PCI); ok {
			can = append(can, fmt.Sprintf("NVLink fabric (%v)", f))
		}
		for _, peer := range all {
			if peer.Device == d.Device {
				continue
			}
			link, err := cuda.P2P(d.Device, peer.Device)
			if err != nil {
				return err
			}
			if link.Access {
				can = append(can, "access to "+peer.Device.String())
			}
		}
		line("", "%s", strings.Join(can, ", "))
		if d.Multicast {
			line("", "%s", multicast())
		}
		if s := mr.Describe(d.PCI, d.DMABuf); s != "" {
			line("", "GPUDirect RDMA: %s", s)
		}
	}
	return nil
}

// multicast says what becomes of the multicast that a GPU has.
func multicast() string {
	switch err := cuda.HaveMulticast().Err; {
	case errors.Is(err, cuda.ErrBuiltWithout):
		return "this GPU has multicast, this build has not"
	case err != nil:
		return fmt.Sprintf("this GPU and this build have multicast: %v", err)
	}
	return "this GPU and this build have multicast, which operations use (NVLS)"
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

func value(v env.Info) string {
	s, ok := os.LookupEnv(v.Name)
	switch {
	case ok && v.Secret:
		return "(set)"
	case ok:
		return s
	case v.Default != "":
		return v.Default + " (default)"
	}
	return "-"
}

// rdma lists the ports of the RDMA devices, if the library is there. For a device that does not open it prints the
// error.
func rdma(line func(name, format string, args ...any)) {
	if verbs.Have().Err != nil {
		return
	}
	names, err := verbs.Devices()
	if err != nil {
		line("RDMA devices", "%v", err)
	}
	for _, name := range names {
		if err := ports(name, line); err != nil {
			line(name, "%v", err)
		}
	}
}

// ports lists the ports of one RDMA device, each with the GID or LID from which a queue pair would send.
func ports(name string, line func(name, format string, args ...any)) (err error) {
	d, err := verbs.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for n := 1; n <= d.Limits().Ports; n++ {
		p, err := d.Port(n)
		if err != nil {
			return err
		}
		table, err := d.GIDs(n)
		if err != nil {
			return err
		}
		from := fmt.Sprintf("LID %d", p.LID)
		if p.Link == verbs.LinkEthernet {
			if g, err := verbs.ChooseGID(p.Link, table, -1); err != nil {
				from = err.Error()
			} else {
				from = fmt.Sprintf("%v, GID %d, %v", g.Type, g.Index, g.GID)
			}
		}
		line(fmt.Sprintf("%s:%d", name, n), "%v, %v, %g Gb/s, MTU %d, %s, atomics %v", p.State, p.Link, p.Gbits, p.MTU, from,
			d.Limits().Atomics)
	}
	return nil
}
