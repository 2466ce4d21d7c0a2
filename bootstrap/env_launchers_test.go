package bootstrap_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// asSrun is what Slurm 22.05 tells a process of `srun -N 2 -n 5 --mpi=none`, as far as it may matter.
func asSrun(rank int) map[string]string {
	return map[string]string{"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_STEPID": "3", "SLURM_PROCID": strconv.Itoa(rank),
		"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "nn[01-02]", "SLURMD_NODENAME": "nn01",
		"SLURM_JOB_NODELIST": "nn[01-04]", "SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "5", "SLURM_LOCALID": "0"}
}

// asTorchrun is what torchrun tells a process.
func asTorchrun(rank int) map[string]string {
	return map[string]string{"TORCHELASTIC_RUN_ID": "none", "RANK": strconv.Itoa(rank), "WORLD_SIZE": "4", "LOCAL_RANK": "0",
		"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0"}
}

// with returns base with these changes; "" removes a variable.
func with(base map[string]string, changes ...string) map[string]string {
	m := maps.Clone(base)
	for i := 0; i < len(changes); i += 2 {
		m[changes[i]] = changes[i+1]
	}
	return m
}

const given = "UBCOLL_SECRET"

func TestEnvOfLaunchers(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want bootstrap.Place // if there is no error
		errs []string        // parts of the error
	}{
		{"srun", with(asSrun(1), given, secret), bootstrap.Place{1, 5, "tcp", "nn01:63496", ":63496", "srun's step 12.3", false}, nil},
		{"another step of the job", with(asSrun(1), given, secret, "SLURM_STEP_ID", "4"),
			bootstrap.Place{1, 5, "tcp", "nn01:63497", ":63497", "srun's step 12.4", false}, nil},
		{"the last job id", with(asSrun(1), given, secret, "SLURM_JOB_ID", "4294967295"),
			bootstrap.Place{1, 5, "tcp", "nn01:63709", ":63709", "srun's step 4294967295.3", false}, nil},
		{"srun on one node, without a secret", with(asSrun(1), "SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_NODELIST", "nn02"),
			bootstrap.Place{1, 5, "unix", bootstrap.Here("srun's step 12.3"), "", "srun's step 12.3", true}, nil},
		{"srun on one node, with a secret", with(asSrun(1), given, secret, "SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_NODELIST", "nn02"),
			bootstrap.Place{1, 5, "unix", bootstrap.Here("srun's step 12.3"), "", "srun's step 12.3", false}, nil},
		{"srun and a place", with(asSrun(0), given, secret, "UBCOLL_RENDEZVOUS", "nn02:99", "SLURM_STEP_NODELIST", "?[", "SLURMD_NODENAME",
			"nn02"), bootstrap.Place{0, 5, "tcp", "nn02:99", "", "srun's step 12.3", false}, nil},
		{"srun and a socket, without a secret", with(asSrun(0), "UBCOLL_RENDEZVOUS", "unix:@x"),
			bootstrap.Place{0, 5, "unix", "@x", "", "srun's step 12.3", true}, nil},
		{"srun on two nodes, without a secret", asSrun(1), bootstrap.Place{},
			[]string{"UBCOLL_SECRET is not set, and ranks that meet over TCP need it", "export UBCOLL_SECRET=$(openssl rand -hex 16)"}},
		{"srun with a short secret", with(asSrun(1), given, "swordfish"), bootstrap.Place{}, []string{"UBCOLL_SECRET has 9 bytes"}},
		{"srun, incomplete", with(asSrun(1), "SLURM_PROCID", "", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NODELIST", "",
			"SLURM_STEP_NUM_NODES", ""), bootstrap.Place{}, []string{"SLURM_PROCID is not set; SLURM_STEP_NUM_TASKS is not set; " +
			"SLURM_STEP_NUM_NODES is not set; SLURM_STEP_NODELIST is not set"}},
		{"srun without the job", with(asSrun(1), "SLURM_JOB_ID", ""), bootstrap.Place{}, []string{"SLURM_JOB_ID is not set"}},
		{"srun, malformed", with(asSrun(1), "SLURM_PROCID", "x", "SLURM_STEP_NUM_TASKS", "0"), bootstrap.Place{},
			[]string{`SLURM_PROCID="x": want a whole number from 0`, `SLURM_STEP_NUM_TASKS="0": want a whole number from 1`}},
		{"srun, a rank too many", asSrun(5), bootstrap.Place{}, []string{"SLURM_PROCID=5 does not fit SLURM_STEP_NUM_TASKS=5"}},
		{"srun, another number of nodes", with(asSrun(1), given, secret, "SLURM_STEP_NUM_NODES", "3"), bootstrap.Place{},
			[]string{"SLURM_STEP_NUM_NODES=3 contradicts SLURM_STEP_NODELIST=nn[01-02], which are 2"}},
		{"srun, no list", with(asSrun(1), given, secret, "SLURM_STEP_NODELIST", "nn[01"), bootstrap.Place{},
			[]string{`SLURM_STEP_NODELIST="nn[01": a bracket is not closed`}},
		{"srun -m arbitrary, rank 0", with(asSrun(0), given, secret, "SLURMD_NODENAME", "nn02"), bootstrap.Place{},
			[]string{"rank 0 is on nn02 (SLURMD_NODENAME), and the other ranks look for it on nn01", "UBCOLL_RENDEZVOUS=nn02:port"}},
		{"a batch script", map[string]string{"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "4294967291"},
			bootstrap.Place{}, []string{"UBCOLL_RANK is not set"}},
		{"an mpirun in slurm", with(asSrun(0), "OMPI_COMM_WORLD_SIZE", "5"), bootstrap.Place{}, []string{"UBCOLL_RANK is not set"}},
		{"ours in slurm", with(asSrun(0), "UBCOLL_RANK", "2", "UBCOLL_SIZE", "3", "UBCOLL_RENDEZVOUS", "unix:@x", given, secret),
			bootstrap.Place{2, 3, "unix", "@x", "", "", false}, nil},
		{"half of ours in slurm", with(asSrun(0), "UBCOLL_RANK", "2"), bootstrap.Place{}, []string{"UBCOLL_SIZE is not set"}},

		{"torchrun", with(asTorchrun(3), given, secret),
			bootstrap.Place{3, 4, "tcp", "gpu7:64900", ":64900", "torchrun's run none with MASTER_PORT=29500", false}, nil},
		{"torchrun, IPv6", with(asTorchrun(3), given, secret, "MASTER_ADDR", "fd00::7"),
			bootstrap.Place{3, 4, "tcp", "[fd00::7]:64900", ":64900", "torchrun's run none with MASTER_PORT=29500", false}, nil},
		{"torchrun on one host, without a secret", with(asTorchrun(3), "LOCAL_WORLD_SIZE", "4"),
			bootstrap.Place{3, 4, "unix", bootstrap.Here("torchrun's run none with MASTER_PORT=29500"), "", "torchrun's run none with MASTER_PORT=29500", true}, nil},
		{"torchrun in slurm", func() map[string]string {
			m := asSrun(0)
			maps.Copy(m, asTorchrun(2))
			return with(m, given, secret)
		}(), bootstrap.Place{2, 4, "tcp", "gpu7:64900", ":64900", "torchrun's run none with MASTER_PORT=29500", false}, nil},
		{"torchrun on two hosts, without a secret", asTorchrun(1), bootstrap.Place{}, []string{"UBCOLL_SECRET is not set"}},
		{"torchrun, incomplete", with(asTorchrun(0), "RANK", "", "WORLD_SIZE", "", "LOCAL_WORLD_SIZE", "", "MASTER_ADDR", "", "MASTER_PORT", ""),
			bootstrap.Place{}, []string{"RANK is not set; WORLD_SIZE is not set; LOCAL_WORLD_SIZE is not set; MASTER_ADDR is not set; MASTER_PORT is not set"}},
		{"torchrun, contradictory", with(asTorchrun(4), "LOCAL_WORLD_SIZE", "5"), bootstrap.Place{},
			[]string{"RANK=4 does not fit WORLD_SIZE=4", "LOCAL_WORLD_SIZE=5 contradicts WORLD_SIZE=4"}},
		{"torchrun, malformed", with(asTorchrun(0), "MASTER_PORT", "65536"), bootstrap.Place{},
			[]string{`MASTER_PORT="65536": want a whole number from 1 to 65535`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearLaunchers(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			got, err := bootstrap.EnvPlace()
			if c.errs == nil {
				require.NoError(t, err)
				require.Equal(t, c.want, got)
				return
			}
			require.ErrorIs(t, err, fault.ErrArgument)
			for _, part := range c.errs {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "swordfish")
		})
	}
}

// started is what a process that a launcher has started, or its stand-in here, tells the test.
type started struct {
	Rank, Size int
	Seen       []string
	Key        []byte
	Error      string
}

// standIn is the child that joins as Env does.
func standIn() error {
	var s started
	b, err := bootstrap.Env()
	if err == nil {
		s.Rank, s.Size, s.Key = b.Rank(), b.Size(), b.(bootstrap.Keyed).Key()
		var all [][]byte
		all, err = b.AllGather(context.Background(), fmt.Append(nil, os.Getenv("TEST_PART")))
		for _, part := range all {
			s.Seen = append(s.Seen, string(part))
		}
		if closed := b.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		s.Error = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// stand starts a process with the variables of a launcher that this machine need not have.
func stand(vars map[string]string, part string) *exec.Cmd {
	cmd := testkit.Child("stand-in", testkit.NoSleep, "TEST_PART="+part)
	for k, v := range vars {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// hear runs processes at the same time and returns what they tell.
func hear(t *testing.T, cmds ...*exec.Cmd) []started {
	t.Helper()
	told := make([]started, len(cmds))
	errs := make([]error, len(cmds))
	var wg sync.WaitGroup
	for i, cmd := range cmds {
		wg.Go(func() {
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &told[i])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return told
}

// Processes join as srun and torchrun would have started them. No Slurm and no PyTorch runs here: the test sets their
// variables.
func TestEnvStandIns(t *testing.T) {
	clearLaunchers(t)
	id := strconv.Itoa(1 + rand.IntN(1<<31)) // it gives the port, which other runs of this test must not have
	t.Log("job", id)
	oneNode := func(rank int) map[string]string {
		return with(asSrun(rank), "SLURM_JOB_ID", id, "SLURM_STEP_NUM_TASKS", "3", "SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_NODELIST", "nn01")
	}
	for _, c := range []struct {
		name  string
		vars  func(rank int) map[string]string
		peers bool
	}{
		{"srun on one node", oneNode, true},
		{"srun on several", func(rank int) map[string]string {
			return with(oneNode(rank), "SLURM_STEP_NUM_NODES", "2", "SLURM_STEP_NODELIST", "127.0.0.[1-2]", "SLURMD_NODENAME", "127.0.0.1",
				given, secret)
		}, false},
		{"torchrun on one host", func(rank int) map[string]string {
			return with(asTorchrun(rank), "TORCHELASTIC_RUN_ID", id, "WORLD_SIZE", "3", "LOCAL_WORLD_SIZE", "3")
		}, true},
		{"torchrun on several", func(rank int) map[string]string {
			return with(asTorchrun(rank), "TORCHELASTIC_RUN_ID", id, "WORLD_SIZE", "3", "LOCAL_WORLD_SIZE", "1", "MASTER_ADDR", "127.0.0.1",
				given, secret)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var keys []string
			for range 2 {
				var cmds []*exec.Cmd
				for rank := range 3 {
					cmds = append(cmds, stand(c.vars(rank), strconv.Itoa(rank)))
				}
				for rank, s := range hear(t, cmds...) {
					require.Empty(t, s.Error, "rank %d", rank)
					require.Equal(t, started{rank, 3, []string{"0", "1", "2"}, s.Key, ""}, s)
					keys = append(keys, string(s.Key))
				}
				if !testkit.Full() && !c.peers {
					break
				}
			}
			require.Len(t, slices.Compact(slices.Clone(keys[:3])), 1, "all ranks have the same key")
			if c.peers { // which nobody could compute from the variables
				require.NotEqual(t, keys[0], keys[3])
			}
		})
	}
}

// Two jobs with one secret whose ports are the same by chance refuse each other, and the one that was there first goes
// on.
func TestEnvOtherJob(t *testing.T) {
	clearLaunchers(t)
	job := 1 + rand.IntN(1<<31)
	t.Log("job", job)
	place := func(job, step, rank int) map[string]string {
		return with(asSrun(rank), "SLURM_JOB_ID", strconv.Itoa(job), "SLURM_STEP_ID", strconv.Itoa(step), "SLURM_STEP_NUM_TASKS", "2",
			"SLURM_STEP_NODELIST", "127.0.0.[1-2]", "SLURMD_NODENAME", "127.0.0.1", given, secret)
	}
	first := stand(place(job, 41, 0), "a")
	told := make(chan started, 1)
	go func() { told <- hear(t, first)[0] }()
	stranger := hear(t, stand(place(job+1, 0, 1), "x"))[0] // waits until something listens
	require.Contains(t, stranger.Error, "rank 0 has another UBCOLL_SECRET, or is of another job")
	require.Contains(t, stranger.Error, fmt.Sprintf("srun's step %d.0", job+1))
	taken := hear(t, stand(place(job+1, 0, 0), "x"))[0]
	require.Contains(t, taken.Error, "address already in use: by another job, or a server; UBCOLL_RENDEZVOUS")
	second := hear(t, stand(place(job, 41, 1), "b"))[0]
	require.Empty(t, second.Error)
	require.Equal(t, "a b", strings.Join(second.Seen, " "))
	require.Equal(t, "a b", strings.Join((<-told).Seen, " "))
}
