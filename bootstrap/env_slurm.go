package bootstrap

import (
	"fmt"
	"os"
	"strconv"
)

// What Slurm tells the processes of a step. srun(1), OUTPUT ENVIRONMENT VARIABLES, lists them all. Those that begin
// with SLURM_JOB_ are the allocation's, which may be larger than the step.
const (
	slurmRank  = "SLURM_PROCID"
	slurmSize  = "SLURM_STEP_NUM_TASKS"
	slurmJob   = "SLURM_JOB_ID"
	slurmOwn   = "SLURM_STEP_ID"
	slurmCount = "SLURM_STEP_NUM_NODES"
	slurmNodes = "SLURM_STEP_NODELIST"
	slurmNode  = "SLURMD_NODENAME"
)

// slurmStep is the step of srun that this process belongs to, as job.step, or "". A batch script and the shell of
// salloc have SLURM_PROCID and SLURM_NTASKS, too, but no SLURM_STEP_ID, or one from 0xfffffff0 up: these are Slurm's
// own steps (SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP and others in slurm.h), which run one plain process.
func slurmStep() string {
	if id, err := strconv.ParseUint(os.Getenv(slurmOwn), 10, 32); err != nil || id >= 0xfffffff0 {
		return ""
	}
	return os.Getenv(slurmJob) + "." + os.Getenv(slurmOwn)
}

// slurm reads the place of a process that srun has started.
func (f *faults) slurm() (c config) {
	c.job = "srun's step " + slurmStep()
	f.place(&c, slurmRank, slurmSize)
	job, step := f.number(slurmJob, 0, 1<<32-1), f.number(slurmOwn, 0, 1<<32-1)
	count, list := f.number(slurmCount, 1, maxHosts), f.text(slurmNodes)
	if f.given(&c) || len(*f) > 0 {
		return c
	}
	nodes, err := hostlist(list)
	switch {
	case err != nil:
		f.bad(fmt.Errorf("%s=%q: %w", slurmNodes, list, err))
	case len(nodes) != count:
		f.bad(fmt.Errorf("%s=%d contradicts %s=%s, which are %d", slurmCount, count, slurmNodes, list, len(nodes)))
	case count == 1:
		f.onOneHost(&c)
	default:
		// Some distributions of the tasks (arbitrary) put rank 0 elsewhere. Only rank 0 knows.
		if here := os.Getenv(slurmNode); c.rank == 0 && here != "" && here != nodes[0] {
			f.bad(fmt.Errorf("rank 0 is on %s (%s), and the other ranks look for it on %s, the first node of the step: "+
				"set UBCOLL_RENDEZVOUS=%s:port on all ranks", here, slurmNode, nodes[0], here))
		}
		// 41 is such that the first 41 steps of 61 successive jobs all have ports of their own.
		f.onHosts(&c, nodes[0], 41*uint64(job)+uint64(step))
	}
	return c
}
