package bootstrap

import (
	"os"
	"strconv"
)

// launchers are the variables in which each launcher tells a process how many ranks the job has. The order matters: an
// mpirun inside a Slurm job sets both, and then mpirun counts.
var launchers = []struct{ name, size string }{
	{"mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE"},
	{"mpirun of MVAPICH2", "MV2_COMM_WORLD_SIZE"},
	{"mpirun of MPICH or Intel MPI", "PMI_SIZE"},
	{"mpirun of MPICH or Intel MPI", "MPI_LOCALNRANKS"}, // of this host only, but callers only ask whether there are several
}

// Launcher says which launcher started this process, and how many ranks the launcher says the job has, from the
// environment alone. It returns "" and 0 if there is none, and size 0 if the launcher does not say. Local, does not
// block.
func Launcher() (name string, size int) {
	for _, l := range launchers {
		if s := os.Getenv(l.size); s != "" {
			return l.name, atoi(s)
		}
	}
	// SLURM_NTASKS is also there for the batch script itself, which srun did not start. The ids from 0xfffffff0 up
	// are Slurm's own steps (batch, interactive shell), which run one plain process.
	if id, err := strconv.ParseUint(os.Getenv("SLURM_STEP_ID"), 10, 32); err == nil && id < 0xfffffff0 {
		return "srun", atoi(os.Getenv("SLURM_STEP_NUM_TASKS"))
	}
	if os.Getenv("PMIX_RANK") != "" {
		return "a PMIx launcher", 0
	}
	return "", 0
}

// atoi is 0 for a string that is no count.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
