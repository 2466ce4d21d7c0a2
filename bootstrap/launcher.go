package bootstrap

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/internal/env"
)

// The launchers whose ranks Env reads.
const (
	torchrun = "torchrun"
	srun     = "srun"
)

const openMPI = "mpirun of Open MPI"

// launchers are the variables in which each launcher of an MPI tells a process how many ranks the job has. The order
// matters: an mpirun inside a Slurm job sets both, and then mpirun counts.
var launchers = []struct{ name, size string }{
	{openMPI, "OMPI_COMM_WORLD_SIZE"},
	{"mpirun of MVAPICH2", "MV2_COMM_WORLD_SIZE"},
	{"mpirun of MPICH or Intel MPI", "PMI_SIZE"},
	{"mpirun of MPICH or Intel MPI", "MPI_LOCALNRANKS"}, // of this host only, but callers only ask whether there are several
}

// Launcher says which launcher started this process, and how many ranks the launcher says the job has, from the
// environment alone. It returns "" and 0 if there is none, and size 0 if the launcher does not say. Local, does not
// block.
func Launcher() (name string, size int) {
	// torchrun's agents may have been started by srun or mpirun, whose variables the ranks then inherit.
	if os.Getenv(torchRun) != "" {
		return torchrun, atoi(os.Getenv(torchSize))
	}
	step := slurmStep()
	if step != "" && os.Getenv("PMI_JOBID") == step { // PMI_SIZE below is srun's, not mpirun's
		return srun, atoi(os.Getenv(slurmSize))
	}
	for _, l := range launchers {
		if s := os.Getenv(l.size); s != "" {
			return l.name, atoi(s)
		}
	}
	if step != "" {
		return srun, atoi(os.Getenv(slurmSize))
	}
	if os.Getenv("PMIX_RANK") != "" {
		return "a PMIx launcher", 0
	}
	return "", 0
}

// AfterDeath says what the launcher of this process does with the other ranks when one dies, as far as its variables tell: most
// end them, unless told not to, and then nothing is left to go on. It returns "" if no launcher has started it. Local, does not
// block.
func AfterDeath() string {
	name, _ := Launcher()
	switch {
	case env.Rank.IsSet():
		return "ubcoll launch ends the others, unless started with -survive"
	case name == "":
		return ""
	case name == torchrun:
		return "torchrun ends the others"
	case name == srun:
		return "srun ends the others if started with --kill-on-bad-exit, or if Slurm is set so"
	case name == openMPI && isTrue(os.Getenv("OMPI_MCA_orte_enable_recovery")):
		return name + " lets the others go on (--enable-recovery)"
	case name == openMPI:
		return name + " ends the others: --enable-recovery lets them go on"
	case os.Getenv("PMI_SIZE") != "":
		return name + " ends the others, unless started with -disable-auto-cleanup"
	}
	return name + " ends the others, unless told not to"
}

// isTrue reports whether a variable of Open MPI says yes.
func isTrue(s string) bool {
	return slices.Contains([]string{"1", "true", "yes", "enabled"}, strings.ToLower(s))
}

// EnvSource says whose variables make this process a rank by [Env]: "UBCOLL_RANK", "torchrun" or "srun". It returns ""
// if [MPI] or nothing makes it one: torchrun and srun count only if they started several processes, and srun only if
// the program was built without MPI or srun gives it no PMI, by which MPI would find its ranks. UBCOLL_REQUIRE=mpi
// leaves both to MPI. Local, does not block.
func EnvSource() string {
	name, size := Launcher()
	switch {
	case env.Rank.IsSet() || env.Size.IsSet():
		return env.Rank.Name
	case size == 1 || env.Requires("mpi"):
		return ""
	case name == torchrun, name == srun && (MPILibrary() == "" || !hasPMI()):
		return name
	}
	return ""
}

// pmi are variables that a process manager sets, or the user, where MPI can find its ranks under srun. PMIX_RANK and
// PMI_RANK are there with --mpi=pmix and --mpi=pmi2, PMI_CONTROL_PORT with --mpi=cray_shasta. With I_MPI_PMI_LIBRARY
// Intel MPI takes Slurm's own library (https://slurm.schedmd.com/mpi_guide.html).
var pmi = []string{"PMIX_RANK", "PMI_RANK", "PMI_CONTROL_PORT", "I_MPI_PMI_LIBRARY"}

func hasPMI() bool {
	return slices.ContainsFunc(pmi, func(name string) bool { return os.Getenv(name) != "" })
}

// atoi is 0 for a string that is no count.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
