package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/doctor"
	"github.com/ubcoll/ubcoll/internal/env"
)

const doctorUsage = `doctor [flags]

Looks for what keeps jobs from running, or from running fast, on this machine, and says what to do about it. Under mpirun or
ubcoll launch it looks on all ranks, and prints what the first found and where others differ. The last line says what will work. A FAIL makes the exit code 5.`

// examine is the command doctor.
func examine(args []string, out io.Writer) error {
	fs := newFlags("doctor")
	asJSON := fs.Bool("json", false, "as JSON")
	if err := parseFlags(fs, args, doctorUsage, out); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	findings := doctor.Examine(machine())
	m, err := meet()
	if err != nil { // each rank then reports for itself
		findings = append(findings, doctor.Finding{Check: "job", Status: doctor.Fail, Reason: err.Error(),
			Cure: "see mpi above; docs/clusters.md says how ranks are started"})
	}
	findings = append(findings, doctor.NVLink(nvlink(m))...)
	groups, err := asks(m, findings)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	failed := slices.ContainsFunc(groups, func(g group[[]doctor.Finding]) bool { return doctor.Failed(g.Answer) })
	if m.job == nil || m.job.Rank() == 0 {
		if *asJSON {
			err = writeJSON(out, groups)
		} else {
			err = printGroups(out, groups, func(all []doctor.Finding) string {
				var b bytes.Buffer
				_ = doctor.Print(&b, all) // writing to a buffer cannot fail
				return b.String() + doctor.Verdict(all) + "\n"
			})
		}
	}
	if failed {
		err = errors.Join(err, exitError{errReported, exitSupport})
	}
	return err
}

// machine returns what doctor.Examine is to know of this machine.
func machine() *doctor.View {
	v := &doctor.View{FS: os.DirFS("/"), Getenv: os.Getenv, Write: writable, Room: room, Memory: shm.Have().Err,
		Processors: len(cpu.Affinity()), Cores: cpu.Cores(), BuiltMPI: bootstrap.MPILibrary(), Mpirun: mpirunVersion,
		Lookup: func(name string) ([]string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return net.DefaultResolver.LookupHost(ctx, name)
		}}
	v.Job, v.Death = ranksFrom(), bootstrap.AfterDeath()
	if v.Launcher, v.Ranks = bootstrap.Launcher(); bootstrap.EnvSource() != "" { // MPI has no part in it
		v.Launcher = ""
	}
	for _, q := range cpu.Quotas() {
		if v.Quota == 0 || q.CPUs < v.Quota {
			v.Quota = q.CPUs
		}
	}
	v.Hostname, _ = os.Hostname() // doctor reports a host without a name
	v.IB, _ = env.IB.Get()        // Open reports a malformed value
	v.GPUs, v.GPUErr = gpus()
	v.NoMulticast = errors.Is(cuda.HaveMulticast().Err, cuda.ErrBuiltWithout)
	v.RDMA, v.Verbs = rdmaPorts()
	v.Fabrics = fabrics()
	all, _ := net.Interfaces() // doctor reports that there are none
	for _, i := range all {
		one := doctor.Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0, Loopback: i.Flags&net.FlagLoopback != 0}
		of, _ := i.Addrs()
		for _, a := range of {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				one.Addresses = append(one.Addresses, n.IP.String())
			}
		}
		v.Interfaces = append(v.Interfaces, one)
	}
	return v
}

func writable(folder string) error {
	f, err := os.CreateTemp(folder, "ubcoll-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func room() (int64, error) {
	if runtime.GOOS != "linux" {
		return 0, errors.New("not on " + runtime.GOOS)
	}
	var st syscall.Statfs_t
	err := syscall.Statfs("/dev/shm", &st)
	return int64(st.Bavail) * int64(st.Bsize), err
}

func mpirunVersion() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	text, err := exec.CommandContext(ctx, "mpirun", "--version").CombinedOutput()
	return string(text), err
}

func gpus() (list []doctor.GPU, err error) {
	if p := cuda.Have(); p.Err != nil {
		return nil, p.Err
	}
	all, err := cuda.Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		g := doctor.GPU{Name: d.Device.String(), VMM: d.VMM, Export: d.PosixFD, Multicast: d.Multicast}
		for _, peer := range all {
			if peer.Device == d.Device {
				continue
			}
			if link, err := cuda.P2P(d.Device, peer.Device); err != nil || !link.Access {
				g.Unreachable = append(g.Unreachable, peer.Device.String())
			}
		}
		list = append(list, g)
	}
	return list, nil
}

func rdmaPorts() (list []doctor.Port, err error) {
	if p := verbs.Have(); p.Err != nil {
		return nil, p.Err
	}
	names, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		d, err := verbs.Open(name)
		if err != nil {
			list = append(list, doctor.Port{Name: name, State: err.Error()})
			continue
		}
		for n := 1; n <= d.Limits().Ports; n++ {
			port := doctor.Port{Name: fmt.Sprintf("%s:%d", name, n)}
			if p, err := d.Port(n); err != nil {
				port.State = err.Error()
			} else {
				port.State, port.Active = fmt.Sprint(p.State), p.State == verbs.PortActive
			}
			list = append(list, port)
		}
		if err := d.Close(); err != nil {
			return list, err
		}
	}
	return list, nil
}

// fabrics asks libfabric for those fabrics of which this machine has devices. It loads the library only then.
func fabrics() (all []doctor.Fabric) {
	ctx, cancel := context.WithTimeout(context.Background(), longList)
	defer cancel()
	for _, h := range ofi.FindHardware(os.DirFS("/")) {
		f := doctor.Fabric{Name: h.Name, Library: h.Library}
		for _, p := range h.Providers {
			infos, refused, err := ofi.List(ctx, p, "")
			f.Err = errors.Join(f.Err, err)
			for _, r := range refused {
				f.Err = errors.Join(f.Err, fmt.Errorf("%v %w", &r.Description, r.Why))
			}
			for _, i := range infos {
				f.Domains = append(f.Domains, i.String())
			}
		}
		all = append(all, f)
	}
	return all
}
