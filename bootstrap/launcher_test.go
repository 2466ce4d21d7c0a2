package bootstrap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// clearLaunchers makes the test independent of the launcher that started it.
func clearLaunchers(t *testing.T) {
	t.Helper()
	for _, v := range []string{"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_JOBID", "PMI_RANK", "PMI_CONTROL_PORT",
		"MPI_LOCALNRANKS", "I_MPI_PMI_LIBRARY", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
		"PMIX_RANK", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "UBCOLL_RANK", "UBCOLL_SIZE", "UBCOLL_RENDEZVOUS", "UBCOLL_SECRET",
		"UBCOLL_REQUIRE"} {
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
		{"srun with pmi2", map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "5",
			"PMI_JOBID": "7.2", "PMI_SIZE": "5", "PMI_RANK": "3"}, "srun", 5},
		{"srun with pmix", map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "5",
			"PMIX_RANK": "3"}, "srun", 5},
		{"hydra inside slurm", map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2",
			"PMI_SIZE": "8", "PMI_RANK": "3"}, "mpirun of MPICH or Intel MPI", 8},
		{"torchrun", map[string]string{"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"}, "torchrun", 4},
		{"torchrun inside slurm", map[string]string{"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "SLURM_JOB_ID": "7",
			"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "torchrun", 8},
		{"pytorch's names alone", map[string]string{"RANK": "0", "WORLD_SIZE": "4"}, "", 0},
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

func TestAfterDeath(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing", nil, ""},
		{"ours", map[string]string{"UBCOLL_RANK": "0"}, "ubcoll launch ends the others, unless started with -survive"},
		{"open mpi", map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun of Open MPI ends the others: --enable-recovery lets them go on"},
		{"open mpi with recovery", map[string]string{"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_orte_enable_recovery": "1"},
			"mpirun of Open MPI lets the others go on (--enable-recovery)"},
		{"hydra", map[string]string{"PMI_SIZE": "2"}, "mpirun of MPICH or Intel MPI ends the others, unless started with -disable-auto-cleanup"},
		{"srun", map[string]string{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16"}, "srun ends the others if started with --kill-on-bad-exit, or if Slurm is set so"},
		{"torchrun", map[string]string{"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"}, "torchrun ends the others"},
		{"mvapich2", map[string]string{"MV2_COMM_WORLD_SIZE": "8"}, "mpirun of MVAPICH2 ends the others, unless told not to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearLaunchers(t)
			t.Setenv("OMPI_MCA_orte_enable_recovery", "")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			require.Equal(t, c.want, bootstrap.AfterDeath())
		})
	}
}

// Which bootstrap a process of a job takes, by what started it.
func TestEnvSource(t *testing.T) {
	srun := map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "5"}
	withPMI := "srun" // without MPI there is no other way
	if bootstrap.MPILibrary() != "" {
		withPMI = ""
	}
	for _, c := range []struct {
		name string
		base map[string]string
		more map[string]string
		want string
	}{
		{"nothing", nil, nil, ""},
		{"ours", nil, map[string]string{"UBCOLL_RANK": "1"}, "UBCOLL_RANK"},
		{"half of ours", nil, map[string]string{"UBCOLL_SIZE": "2"}, "UBCOLL_RANK"},
		{"srun", srun, nil, "srun"},
		{"srun of one", srun, map[string]string{"SLURM_STEP_NUM_TASKS": "1"}, ""},
		{"srun that does not say of how many", srun, map[string]string{"SLURM_STEP_NUM_TASKS": ""}, "srun"},
		{"srun with pmix", srun, map[string]string{"PMIX_RANK": "1"}, withPMI},
		{"srun with pmi2", srun, map[string]string{"PMI_RANK": "1", "PMI_SIZE": "5", "PMI_JOBID": "7.2"}, withPMI},
		{"srun, and MPI is a must", srun, map[string]string{"UBCOLL_REQUIRE": "mpi"}, ""},
		{"mpirun in slurm", srun, map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, ""},
		{"hydra in slurm", srun, map[string]string{"PMI_SIZE": "4", "PMI_RANK": "0"}, ""},
		{"ours in slurm", srun, map[string]string{"UBCOLL_RANK": "1"}, "UBCOLL_RANK"},
		{"ours under mpirun", map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, map[string]string{"UBCOLL_RANK": "1"}, "UBCOLL_RANK"},
		{"batch script", map[string]string{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "5"}, nil, ""},
		{"torchrun", nil, map[string]string{"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, "torchrun"},
		{"torchrun of one", nil, map[string]string{"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}, ""},
		{"torchrun in slurm", srun, map[string]string{"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, "torchrun"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearLaunchers(t)
			for _, m := range []map[string]string{c.base, c.more} {
				for k, v := range m {
					t.Setenv(k, v)
				}
			}
			require.Equal(t, c.want, bootstrap.EnvSource())
		})
	}
}
