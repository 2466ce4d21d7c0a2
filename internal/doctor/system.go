package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/internal/plural"
)

// littleLock: less locked memory than this is too little for registration; the library's own areas take about this
// much.
const littleLock = 64 << 20

func memlock(v *View) Finding {
	text, err := fs.ReadFile(v.FS, "proc/self/limits")
	if err != nil {
		return found(Skip, "the limits cannot be read: %v", "", err)
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if soft == "unlimited" {
			return found(Pass, "no limit on locked memory", "")
		}
		n, err := strconv.ParseInt(soft, 10, 64)
		if err != nil {
			return found(Skip, "the limit on locked memory is %q", "", soft)
		}
		if n < littleLock {
			beyond := "registered memory beyond that may be paged out"
			if v.Getenv("UBCOLL_PIN") == "required" {
				beyond = "registering more fails (UBCOLL_PIN=required)"
			}
			return found(Warn, "at most %d KiB of locked memory: %s, and RDMA devices refuse it",
				"raise it: ulimit -l unlimited, LimitMEMLOCK= of a systemd unit, memlock in limits.conf, --ulimit memlock=-1 of a container",
				n>>10, beyond)
		}
		return found(Pass, "%d MiB of locked memory", "", n>>20)
	}
	return found(Skip, "the system does not say how much memory may be locked", "")
}

// littleShared: less shared memory than this may be too little for jobs under MPI; containers have less by default.
const littleShared = 256 << 20

func shared(v *View) Finding {
	if v.Memory != nil {
		return found(Fail, "ranks cannot share memory here: %v", "Linux is what runs jobs, with memfd_create allowed", v.Memory)
	}
	info, err := fs.Stat(v.FS, "dev/shm")
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return found(Warn, "there is no /dev/shm: the library does without, MPI may not", "mount a tmpfs there")
	} else if err != nil {
		return found(Skip, "/dev/shm: %v", "", err)
	}
	if err := v.Write("/dev/shm"); err != nil {
		return found(Warn, "/dev/shm cannot be written: %v; the library does without, MPI may not", "chmod 1777 /dev/shm", err)
	}
	free, err := v.Room()
	switch {
	case err != nil:
		return found(Skip, "how much is free in /dev/shm cannot be told: %v", "", err)
	case free < littleShared:
		return found(Warn, "%d MiB are free in /dev/shm: MPI may want more", "--shm-size=1g of a container; an emptyDir of medium Memory on "+
			"Kubernetes; else remove what dead jobs have left there", free>>20)
	}
	return found(Pass, "%d MiB are free in /dev/shm", "", free>>20)
}

func processors(v *View) Finding {
	switch {
	case v.Quota > 0 && v.Quota < float64(v.Processors):
		return found(Warn, "%s, and a control group that allows %.1f processors' time: ranks are stopped for the rest of each period",
			"raise the quota (--cpus of a container, limits.cpu of a pod), or start no more ranks than it allows",
			plural.Count(v.Processors, "processor"), v.Quota)
	case v.Processors < 2:
		return found(Warn, "1 processor: ranks of this host take turns", "give the job more (--bind-to none of mpirun, a larger cpuset)")
	}
	return found(Pass, "%s, %s", "", plural.Count(v.Processors, "processor"), plural.Count(v.Cores, "core"))
}

func gpu(v *View) Finding {
	if len(v.GPUs) == 0 {
		if v.GPUErr != nil {
			return found(Skip, "no GPU: %v", "", v.GPUErr)
		}
		return found(Skip, "no GPU", "")
	}
	for _, g := range v.GPUs {
		switch {
		case !g.VMM || !g.Export:
			return found(Fail, "%s cannot share memory with other processes (VMM %v, export %v)", "use a newer driver; else UBCOLL_CUDA=off", g.Name,
				g.VMM, g.Export)
		case len(g.Unreachable) > 0:
			return found(Fail, "%s has no access to %s", "look at nvidia-smi topo -p2p r; ACS and IOMMU of the machine forbid it, or "+
				"CUDA_VISIBLE_DEVICES mixes kinds; else UBCOLL_CUDA=off", g.Name, strings.Join(g.Unreachable, ", "))
		}
	}
	reason := "1 GPU"
	if len(v.GPUs) > 1 {
		reason = fmt.Sprintf("%d GPUs, each with access to all others", len(v.GPUs))
	} else if v.Getenv("UBCOLL_CUDA") == "" {
		reason += ", of one rank; UBCOLL_CUDA=share lets ranks share it"
	}
	if v.NoMulticast && slices.ContainsFunc(v.GPUs, func(g GPU) bool { return g.Multicast }) {
		reason += "; this GPU has multicast, this build has not"
		if len(v.GPUs) > 1 {
			reason = strings.Replace(reason, "this GPU has", "these GPUs have", 1)
		}
	}
	return found(Pass, "%s", "", reason)
}

func rdma(v *View) Finding {
	wanted := v.IB == "on"
	status := func(s Status) Status {
		if wanted {
			return Fail
		}
		return s
	}
	const cure = "install libibverbs and the provider, load ib_uverbs, and give a container /dev/infiniband; or UBCOLL_IB=off"
	switch {
	case v.Verbs != nil && wanted:
		return found(Fail, "UBCOLL_IB=on, and no RDMA: %v", cure, v.Verbs)
	case v.Verbs != nil:
		return found(Skip, "no RDMA: %v", "", v.Verbs)
	case len(v.RDMA) == 0 && wanted:
		return found(Fail, "UBCOLL_IB=on, and no RDMA device", cure)
	case len(v.RDMA) == 0:
		return found(Skip, "no RDMA device", "")
	}
	var active, down []string
	for _, p := range v.RDMA {
		if p.Active {
			active = append(active, p.Name)
		} else {
			down = append(down, p.Name+" ("+p.State+")")
		}
	}
	switch {
	case len(active) == 0:
		return found(status(Warn), "no port is active: %s", "look at rdma link and at the cable", strings.Join(down, ", "))
	case len(down) > 0:
		return found(Warn, activePorts+"%s; not: %s", "look at rdma link; UBCOLL_IB_HCA names the devices to use", strings.Join(active, ", "),
			strings.Join(down, ", "))
	}
	return found(Pass, activePorts+"%s", "", strings.Join(active, ", "))
}

func libfabric(v *View) Finding {
	var there []string
	for _, f := range v.Fabrics {
		if len(f.Domains) > 0 {
			there = append(there, f.Domains...)
			continue
		}
		cure := "install the libfabric of the fabric's vendor"
		if f.Library != "" {
			cure += " and set UBCOLL_OFI_LIB=" + f.Library
		}
		why := ""
		if f.Err != nil {
			why = ": " + strings.ReplaceAll(f.Err.Error(), "\n", "; ")
		}
		return found(Warn, "a device of %s, and no provider for it%s", cure, f.Name, why)
	}
	if there == nil {
		return found(Skip, "no fabric with a provider of its own in libfabric", "")
	}
	return found(Pass, "%s", "", strings.Join(there, ", "))
}

func network(v *View) Finding {
	var names []string
	addresses := 0
	for _, i := range v.Interfaces {
		if i.Up && !i.Loopback && len(i.Addresses) > 0 {
			names = append(names, fmt.Sprintf("%s (%s)", i.Name, strings.Join(i.Addresses, ", ")))
			addresses += len(i.Addresses)
		}
	}
	switch {
	case addresses == 0:
		return found(Warn, onlyLoopback+": no job spans several hosts", "ip link set DEV up; a container wants a network")
	case addresses > mostAddresses && v.Getenv("UBCOLL_NET") == "":
		return found(Warn, "%d addresses, of which the first 4 are used: %s", "name those of the job's network with UBCOLL_NET", addresses,
			strings.Join(names, ", "))
	}
	return found(Pass, "%s", "", strings.Join(names, ", "))
}

func hostName(v *View) Finding {
	if v.Hostname == "" {
		return found(Warn, "this host has no name", "hostnamectl set-hostname NAME")
	}
	list, err := v.Lookup(v.Hostname)
	if err != nil || len(list) == 0 {
		return found(Warn, "the host's own name, %s, has no address: launchers wait for it, or fail", "add it to /etc/hosts", v.Hostname)
	}
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err != nil || !a.IsLoopback() {
			return found(Pass, "%s is %s", "", v.Hostname, strings.Join(list, ", "))
		}
	}
	return found(Warn, "%s is %s here: as UBCOLL_RENDEZVOUS, or in mpirun's list, other hosts do not reach this one by it", "give the address "+
		"of an interface in its place, or put it into /etc/hosts", v.Hostname, strings.Join(list, ", "))
}
