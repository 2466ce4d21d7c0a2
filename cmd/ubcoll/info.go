package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
)

// info says what is here. It starts no MPI and no job.
func info(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("info", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	withEnv := fs.Bool("env", false, "")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return usageError("info takes -env and nothing else")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("version", "%s", version())
	line("go", "%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	line("mpi", "%s", built(strings.Contains(","+setting("-tags")+",", ",mpi,")))
	line("cgo", "%s", built(setting("CGO_ENABLED") == "1"))
	if name, n := bootstrap.Launcher(); name != "" {
		line("launcher", "%s, %d ranks", name, n)
	} else {
		line("launcher", "none")
	}
	host, _ := os.Hostname()
	line("host", "%s", host)
	line("processors", "%d allowed, %d cores, last-level cache %d KiB", len(cpu.Affinity()), cpu.Cores(),
		cpu.LastLevelCacheBytes()>>10)
	line("instructions", "%s", cpu.Level())
	if err := cpu.LevelError(); err != nil {
		line("", "%v", err)
	}
	for _, probe := range []hw.Probe{shm.Have(), cuda.Have(), verbs.Have()} {
		name, state, _ := strings.Cut(probe.String(), ": ")
		line(name, "%s", state)
	}
	if err := devices(line); err != nil {
		return err
	}
	rdma(line)
	if *withEnv {
		fmt.Fprintln(w)
		for _, v := range env.All() {
			line(v.Name, "%s\t%s\t%s", value(v), v.Kind, v.Doc)
		}
	}
	return w.Flush()
}

// devices lists the CUDA devices, if the driver and some are there.
func devices(line func(name, format string, args ...any)) error {
	if cuda.Have().Err != nil {
		return nil
	}
	major, minor, err := cuda.Version()
	if err != nil {
		return err
	}
	line("CUDA driver", "%d.%d", major, minor)
	all, err := cuda.Devices()
	if err != nil {
		return err
	}
	for _, d := range all {
		_, rest, _ := strings.Cut(d.String(), " ")
		line(d.Device.String(), "%s", rest)
		var can []string
		for _, c := range []struct {
			name string
			has  bool
		}{
			{"VMM", d.VMM}, {"export as descriptor", d.PosixFD}, {"fabric handles", d.Fabric}, {"RDMA", d.DirectRDMA},
			{"dma-buf", d.DMABuf}, {"host atomics", d.HostAtomics}, {"multicast", d.Multicast},
		} {
			if c.has {
				can = append(can, c.name)
			}
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
	}
	return nil
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

func built(in bool) string {
	if in {
		return "built in"
	}
	return "not built in"
}

// version is the module's version, and the commit if the build knows it.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := b.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	if r := setting("vcs.revision"); r != "" && !strings.Contains(v, r[:min(12, len(r))]) {
		v += " " + r[:min(12, len(r))]
		if setting("vcs.modified") == "true" {
			v += "+dirty"
		}
	}
	return v
}

// setting is a setting of the build, "" if it is not known.
func setting(key string) string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == key {
				return s.Value
			}
		}
	}
	return ""
}

// rdma lists the ports of the RDMA devices, if the library and some are there. One that does not open is said.
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

// ports lists the ports of one RDMA device, by the GID that a queue pair would send from.
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
