// Package doctor looks for what keeps jobs on a machine from running, or from running fast. Each check has a name, a
// reason and a cure.
package doctor

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Status is the outcome of a check.
type Status string

// The outcomes. Fail means that jobs will not run as they should; Warn, that they may be slow or limited; Skip, that
// the check does not apply here or could not look.
const (
	Pass Status = "PASS"
	Warn Status = "WARN"
	Fail Status = "FAIL"
	Skip Status = "SKIP"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Reason string `json:"reason"`
	Cure   string `json:"cure,omitempty"` // unless the status is PASS
}

// View is what the checks see of a system. Tests make their own.
type View struct {
	FS     fs.FS                     // the root folder
	Getenv func(name string) string  // of this process
	Room   func() (int64, error)     // free bytes of /dev/shm
	Write  func(folder string) error // makes a file there and removes it
	Memory error                     // why ranks cannot share memory; nil if they can

	Processors int     // that this process may use
	Quota      float64 // processors' worth of time that its control groups allow; 0 = all
	Cores      int

	BuiltMPI string // the linked MPI library; "" = none
	Launcher string // what started this process for MPI; "" = none
	Ranks    int    // as the launcher says
	Death    string // what its launcher does when a rank dies; "" = nothing that is known
	Job      string // whose variables give this process its place in a job; "" = it is no part of one
	Mpirun   func() (string, error)

	GPUs   []GPU
	GPUErr error // why there are none
	// NoMulticast: this build has no multicast, whatever the GPUs have.
	NoMulticast bool

	RDMA  []Port
	Verbs error // why there are none
	IB    string
	// Fabrics are those of which this machine has devices, and that libfabric reaches.
	Fabrics []Fabric

	Hostname   string
	Lookup     func(name string) ([]string, error)
	Interfaces []Interface
}

// GPU is a device, with the devices whose memory it cannot reach.
type GPU struct {
	Name        string
	Unreachable []string
	VMM, Export bool
	Multicast   bool
}

// Port is a port of an RDMA device.
type Port struct {
	Name   string
	Active bool
	State  string
}

// Fabric is a network with a provider of its own in libfabric.
type Fabric struct {
	Name    string
	Library string   // where its vendor installs libfabric
	Domains []string // that the provider offers
	Err     error    // why there is none, or not all; or nil
}

// Interface is a network interface.
type Interface struct {
	Name      string
	Up        bool
	Loopback  bool
	Addresses []string
}

// checks are all checks, in printing order.
var checks = []struct {
	name string
	look func(v *View) Finding
}{
	{"ranks", ranks}, {"mpi", mpi}, {"memlock", memlock}, {"shared-memory", shared}, {"processors", processors}, {"gpu", gpu},
	{"rdma", rdma}, {"libfabric", libfabric}, {"network", network}, {"host-name", hostName}, {"nccl", nccl}, {"faults", faults},
}

// Examine runs all checks. Local; it starts no job.
func Examine(v *View) (all []Finding) {
	for _, c := range checks {
		f := c.look(v)
		f.Check = c.name
		all = append(all, f)
	}
	return all
}

// Failed reports whether a check failed.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Status == Fail })
}

// Print writes findings as lines, each with its cure below.
func Print(w io.Writer, all []Finding) error {
	for _, f := range all {
		if _, err := fmt.Fprintf(w, "%s  %-13s  %s\n", f.Status, f.Check, f.Reason); err != nil {
			return err
		}
		if f.Cure != "" {
			if _, err := fmt.Fprintf(w, "      %-13s  %s\n", "", f.Cure); err != nil {
				return err
			}
		}
	}
	return nil
}

func found(s Status, reason, cure string, args ...any) Finding {
	return Finding{Status: s, Reason: fmt.Sprintf(reason, args...), Cure: cure}
}

// family returns the MPI implementation that a text names.
func family(text string) string {
	text = strings.ToLower(text)
	for _, f := range []struct{ word, name string }{
		{"open mpi", "Open MPI"}, {"openrte", "Open MPI"}, {"prrte", "Open MPI"}, {"intel", "Intel MPI"}, {"mvapich", "MVAPICH"},
		{"mpich", "MPICH"}, {"hydra", "MPICH"},
	} {
		if strings.Contains(text, f.word) {
			return f.name
		}
	}
	return ""
}

// kin reports whether the launcher of one starts programs of the other: all but Open MPI descend from MPICH.
func kin(a, b string) bool { return a == b || a != "Open MPI" && b != "Open MPI" }

func faults(v *View) Finding {
	if s := v.Getenv("UBCOLL_FAULT"); s != "" {
		return found(Warn, "UBCOLL_FAULT=%s is set: ranks of each job fail on request", "unset UBCOLL_FAULT, unless that is what you test", s)
	}
	return found(Pass, "no rank fails on request", "")
}

func ranks(v *View) Finding {
	if v.Job == "" {
		return found(Skip, "nothing started this process as a rank of a job", "")
	}
	if v.Death != "" {
		return found(Pass, "%s; when a rank dies, %s", "", v.Job, v.Death)
	}
	return found(Pass, "%s", "", v.Job)
}

func mpi(v *View) Finding {
	of := family(v.BuiltMPI)
	switch {
	case v.BuiltMPI == "" && v.Launcher != "" && v.Ranks != 1:
		return found(Fail, "%s started this, and this program was built without MPI", "build it with MPI: eval \"$(ubcoll env)\"; go "+
			"build -tags mpi; or start it with ubcoll launch", v.Launcher)
	case v.BuiltMPI == "":
		return found(Skip, "built without MPI", "")
	case v.Launcher != "" && family(v.Launcher) != "" && !kin(family(v.Launcher), of):
		return found(Fail, "%s started this, and this program was built with %s: each rank would run alone",
			"start it with the mpirun of "+of+", which ubcoll env names", v.Launcher, v.BuiltMPI)
	case v.Launcher != "":
		return found(Pass, "%s, started by %s", "", v.BuiltMPI, v.Launcher)
	}
	text, err := v.Mpirun()
	switch run := family(text); {
	case err != nil:
		return found(Warn, "built with %s, and mpirun cannot be run: %v", "install its launcher, or add it to PATH; ubcoll env names it",
			v.BuiltMPI, err)
	case run == "":
		return found(Warn, "built with %s, and whose the mpirun in PATH is cannot be told", "start with what ubcoll env names", v.BuiltMPI)
	case !kin(run, of):
		return found(Fail, "built with %s, and the mpirun in PATH is %s's", "start with the mpirun that ubcoll env names, or build with MPICC "+
			"of the other", v.BuiltMPI, run)
	}
	return found(Pass, "%s, and the mpirun in PATH is of the same", "", v.BuiltMPI)
}
