package bootstrap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// clearLaunchers makes the test independent of the launcher that started it.
func clearLaunchers(t *testing.T) {
	t.Helper()
	for _, v := range []string{"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
		"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMIX_RANK"} {
		t.Setenv(v, "")
	}
}

func TestLauncher(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
		size int
	}{
		{"nothing", nil, "", 0},
		{"open mpi", map[string]string{"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}, "mpirun of Open MPI", 4},
		{"hydra", map[string]string{"PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, "mpirun of MPICH or Intel MPI", 2},
		{"hydra with pmi over a port", map[string]string{"MPI_LOCALNRANKS": "3"}, "mpirun of MPICH or Intel MPI", 3},
		{"mvapich2", map[string]string{"MV2_COMM_WORLD_SIZE": "8"}, "mpirun of MVAPICH2", 8},
		{"srun", map[string]string{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16"}, "srun", 16},
		{"mpirun inside slurm", map[string]string{"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_ID": "0",
			"SLURM_STEP_NUM_TASKS": "1"}, "mpirun of Open MPI", 4},
		{"batch script", map[string]string{"SLURM_NTASKS": "16", "SLURM_STEP_ID": "4294967291",
			"SLURM_STEP_NUM_TASKS": "1"}, "", 0},
		{"salloc", map[string]string{"SLURM_NTASKS": "16"}, "", 0},
		{"pmix alone", map[string]string{"PMIX_RANK": "0"}, "a PMIx launcher", 0},
		{"nonsense", map[string]string{"PMI_SIZE": "many"}, "mpirun of MPICH or Intel MPI", 0},
		{"negative", map[string]string{"OMPI_COMM_WORLD_SIZE": "-3"}, "mpirun of Open MPI", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearLaunchers(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			name, size := bootstrap.Launcher()
			require.Equal(t, c.want, name)
			require.Equal(t, c.size, size)
		})
	}
}
