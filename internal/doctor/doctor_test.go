package doctor

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
	"Max open files            1024                 1048576              files     \n" +
	"Max locked memory         %SOFT                unlimited            bytes     \n"

func withLock(soft string) fs.FS {
	return fstest.MapFS{
		"proc/self/limits": {Data: bytes.ReplaceAll([]byte(limits), []byte("%SOFT"), []byte(soft))},
		"dev/shm":          {Mode: fs.ModeDir | 0o777},
	}
}

// healthy is a machine that passes every check.
func healthy() *View {
	return &View{FS: withLock("unlimited"), Getenv: func(string) string { return "" }, Room: func() (int64, error) { return 1 << 30, nil },
		Write: func(string) error { return nil }, Processors: 8, Cores: 4, BuiltMPI: "Open MPI v4.1.4", Job: "processes, by MPI",
		Mpirun: func() (string, error) { return "mpirun (Open MPI) 4.1.4", nil },
		GPUs:   []GPU{{"cuda:0", nil, true, true, false}, {"cuda:1", nil, true, true, false}}, RDMA: []Port{{"mlx5_0:1", true, "active"}},
		Fabrics:  []Fabric{{Name: "EFA", Domains: []string{"efa rdmap0s6"}}},
		Hostname: "a", Lookup: func(string) ([]string, error) { return []string{"10.0.0.1"}, nil },
		Interfaces: []Interface{{"lo", true, true, []string{"127.0.0.1"}}, {"eth0", true, false, []string{"10.0.0.1"}}}}
}

// set is an environment of these assignments.
func set(assignments ...string) func(string) string {
	return func(name string) string {
		for _, a := range assignments {
			if n, v, _ := strings.Cut(a, "="); n == name {
				return v
			}
		}
		return ""
	}
}

// many are interfaces with two addresses on the last.
func many() []Interface {
	one := []string{"10.0.0.1"}
	return []Interface{{"lo", true, true, one}, {"eth0", true, false, one}, {"eth01", true, false, one}, {"eth1", false, false, one},
		{"eth2", true, false, nil}, {"ib1", true, false, one}, {"ib2", true, false, []string{"10.0.0.2", "10.0.0.3"}}}
}

func TestHealthy(t *testing.T) {
	all := Examine(healthy())
	require.Len(t, all, len(checks))
	for _, f := range all {
		require.Equal(t, Pass, f.Status, "%+v", f)
		require.NotEmpty(t, f.Reason)
		require.Empty(t, f.Cure)
	}
	require.False(t, Failed(all))
}

func TestChecks(t *testing.T) {
	nothing := errors.New("no such library")
	for _, c := range []struct {
		name   string
		check  string
		change func(v *View)
		status Status
		reason string
	}{
		{"no job", "ranks", func(v *View) { v.Job = "" }, Skip, "nothing started this process as a rank"},
		{"that a launcher ends", "ranks", func(v *View) { v.Death = "it ends the others" }, Pass, "processes, by MPI; when a rank dies, it ends the others"},
		{"by srun", "ranks", func(v *View) { v.Job = "processes, by srun's variables" }, Pass, "by srun's variables"},
		{"no MPI", "mpi", func(v *View) { v.BuiltMPI = "" }, Skip, "built without MPI"},
		{"no MPI under mpirun", "mpi", func(v *View) { v.BuiltMPI, v.Launcher, v.Ranks = "", "mpirun of Open MPI", 4 }, Fail,
			"mpirun of Open MPI started this, and this program was built without MPI"},
		{"no MPI, one rank", "mpi", func(v *View) { v.BuiltMPI, v.Launcher, v.Ranks = "", "srun", 1 }, Skip, "built without MPI"},
		{"under another", "mpi", func(v *View) { v.Launcher = "mpirun of MPICH or Intel MPI" }, Fail, "each rank would run alone"},
		{"under its own", "mpi", func(v *View) { v.Launcher = "mpirun of Open MPI" }, Pass, "started by mpirun of Open MPI"},
		{"under srun", "mpi", func(v *View) { v.Launcher = "srun" }, Pass, "started by srun"},
		{"another in PATH", "mpi", func(v *View) { v.BuiltMPI = "MPICH Version: 4.0.2" }, Fail, "the mpirun in PATH is Open MPI's"},
		{"a relative in PATH", "mpi", func(v *View) {
			v.BuiltMPI = "Intel(R) MPI Library 2021"
			v.Mpirun = func() (string, error) { return "HYDRA build details", nil }
		}, Pass, "of the same"},
		{"none in PATH", "mpi", func(v *View) { v.Mpirun = func() (string, error) { return "", nothing } }, Warn, "cannot be run"},
		{"strange mpirun", "mpi", func(v *View) { v.Mpirun = func() (string, error) { return "mpirun 1", nil } }, Warn, "cannot be told"},
		{"little to lock", "memlock", func(v *View) { v.FS = withLock("8388608") }, Warn, "at most 8192 KiB"},
		{"too little to lock", "memlock", func(v *View) {
			v.FS, v.Getenv = withLock("8388608"), func(string) string { return "required" }
		}, Warn, "registering more fails (UBCOLL_PIN=required)"},
		{"enough to lock", "memlock", func(v *View) { v.FS = withLock("1073741824") }, Pass, "1024 MiB"},
		{"strange limit", "memlock", func(v *View) { v.FS = withLock("much") }, Skip, `"much"`},
		{"no limits", "memlock", func(v *View) { v.FS = fstest.MapFS{} }, Skip, "cannot be read"},
		{"no such limit", "memlock", func(v *View) { v.FS = fstest.MapFS{"proc/self/limits": {}} }, Skip, "does not say"},
		{"no shared memory", "shared-memory", func(v *View) { v.Memory = nothing }, Fail, "ranks cannot share memory here: no such library"},
		{"no /dev/shm", "shared-memory", func(v *View) { v.FS = fstest.MapFS{} }, Warn, "there is no /dev/shm"},
		{"/dev/shm is a file", "shared-memory", func(v *View) { v.FS = fstest.MapFS{"dev/shm": {}} }, Warn, "there is no /dev/shm"},
		{"/dev/shm of others", "shared-memory", func(v *View) { v.Write = func(string) error { return fs.ErrPermission } }, Warn,
			"cannot be written: permission denied"},
		{"/dev/shm of containers", "shared-memory", func(v *View) { v.Room = func() (int64, error) { return 64 << 20, nil } }, Warn, "64 MiB are free"},
		{"/dev/shm of unknown size", "shared-memory", func(v *View) { v.Room = func() (int64, error) { return 0, nothing } }, Skip, "cannot be told"},
		{"quota", "processors", func(v *View) { v.Quota = 1.5 }, Warn, "8 processors, and a control group that allows 1.5"},
		{"one core", "processors", func(v *View) { v.Processors, v.Cores = 2, 1 }, Pass, "2 processors, 1 core"},
		{"quota that is no limit", "processors", func(v *View) { v.Quota = 8 }, Pass, "8 processors, 4 cores"},
		{"one processor", "processors", func(v *View) { v.Processors = 1 }, Warn, "1 processor"},
		{"no GPU", "gpu", func(v *View) { v.GPUs, v.GPUErr = nil, nothing }, Skip, "no GPU: no such library"},
		{"a driver without GPU", "gpu", func(v *View) { v.GPUs = nil }, Skip, "no GPU"},
		{"GPUs apart", "gpu", func(v *View) { v.GPUs[1].Unreachable = []string{"cuda:0"} }, Fail, "cuda:1 has no access to cuda:0"},
		{"an old GPU", "gpu", func(v *View) { v.GPUs[0].VMM = false }, Fail, "cuda:0 cannot share memory"},
		{"a build without multicast", "gpu", func(v *View) { v.NoMulticast, v.GPUs[1].Multicast = true, true }, Pass,
			"2 GPUs, each with access to all others; these GPUs have multicast, this build has not"},
		{"a build without multicast, one GPU", "gpu", func(v *View) {
			v.NoMulticast, v.GPUs = true, v.GPUs[:1]
			v.GPUs[0].Multicast = true
		}, Pass, "lets ranks share it; this GPU has multicast, this build has not"},
		{"GPUs without multicast", "gpu", func(v *View) { v.NoMulticast = true }, Pass, "2 GPUs, each with access to all others"},
		{"one GPU", "gpu", func(v *View) { v.GPUs = v.GPUs[:1] }, Pass, "1 GPU, of one rank; UBCOLL_CUDA=share lets"},
		{"no library for RDMA", "rdma", func(v *View) { v.RDMA, v.Verbs = nil, nothing }, Skip, "no RDMA: no such library"},
		{"none where it must be", "rdma", func(v *View) { v.RDMA, v.Verbs, v.IB = nil, nothing, "on" }, Fail, "UBCOLL_IB=on, and no RDMA"},
		{"no device", "rdma", func(v *View) { v.RDMA = nil }, Skip, "no RDMA device"},
		{"no device where it must be", "rdma", func(v *View) { v.RDMA, v.IB = nil, "on" }, Fail, "no RDMA device"},
		{"a port is down", "rdma", func(v *View) { v.RDMA = append(v.RDMA, Port{"mlx5_1:1", false, "down"}) }, Warn,
			"active: mlx5_0:1; not: mlx5_1:1 (down)"},
		{"all are down", "rdma", func(v *View) { v.RDMA[0] = Port{"mlx5_0:1", false, "init"} }, Warn, "no port is active: mlx5_0:1 (init)"},
		{"all are down, and must not", "rdma", func(v *View) { v.RDMA[0].Active, v.IB = false, "on" }, Fail, "no port is active"},
		{"no fabric", "libfabric", func(v *View) { v.Fabrics = nil }, Skip, "no fabric"},
		{"a fabric without provider", "libfabric", func(v *View) {
			v.Fabrics = []Fabric{{Name: "Omni-Path", Domains: []string{"opx hfi1_0"}}, {Name: "EFA", Library: "/opt/lib.so"}}
		}, Warn, "a device of EFA, and no provider for it"},
		{"a fabric without library", "libfabric", func(v *View) { v.Fabrics = []Fabric{{Name: "EFA", Err: errors.Join(nothing, nothing)}} }, Warn,
			"no provider for it: no such library; no such library"},
		{"loopback alone", "network", func(v *View) { v.Interfaces = v.Interfaces[:1] }, Warn, "only loopback is up"},
		{"a link is down", "network", func(v *View) { v.Interfaces[1].Up = false }, Warn, "only loopback is up"},
		{"many addresses", "network", func(v *View) { v.Interfaces[1].Addresses = make([]string, 5) }, Warn, "5 addresses, of which the first 4"},
		{"many addresses, and a choice", "network", func(v *View) {
			v.Interfaces[1].Addresses = make([]string, 5)
			v.Getenv = func(name string) string { return map[string]string{"UBCOLL_NET": "eth0"}[name] }
		}, Pass, "eth0"},
		{"no name", "host-name", func(v *View) { v.Hostname = "" }, Warn, "no name"},
		{"unknown name", "host-name", func(v *View) { v.Lookup = func(string) ([]string, error) { return nil, nothing } }, Warn, "has no address"},
		{"Debian's name", "host-name", func(v *View) { v.Lookup = func(string) ([]string, error) { return []string{"127.0.1.1"}, nil } }, Warn,
			"a is 127.0.1.1 here"},
		{"NCCL's interface", "nccl", func(v *View) { v.Getenv = set("NCCL_SOCKET_IFNAME=eth0") }, Warn,
			"NCCL_SOCKET_IFNAME=eth0 is set: UBCOLL_NET=eth0 does that here"},
		{"and ours", "nccl", func(v *View) { v.Getenv = set("NCCL_SOCKET_IFNAME=eth0", "UBCOLL_NET=10.0.0.0/8") }, Pass, "no setting of NCCL"},
		{"beginnings", "nccl", func(v *View) { v.Interfaces, v.Getenv = many(), set("NCCL_SOCKET_IFNAME=eth,ib1") }, Warn,
			": UBCOLL_NET=eth0,eth01,ib1 does that here"},
		{"a whole name", "nccl", func(v *View) { v.Interfaces, v.Getenv = many(), set("NCCL_SOCKET_IFNAME==eth0,ib") }, Warn,
			"NCCL_SOCKET_IFNAME==eth0,ib is set: UBCOLL_NET=eth0 does that here"},
		{"all but some", "nccl", func(v *View) { v.Interfaces, v.Getenv = many(), set("NCCL_SOCKET_IFNAME=^eth,ib2") }, Warn,
			": UBCOLL_NET=ib1 does that here"},
		{"all but whole names", "nccl", func(v *View) { v.Interfaces, v.Getenv = many(), set("NCCL_SOCKET_IFNAME=^=eth0,ib2") }, Warn,
			": UBCOLL_NET=eth01,ib1 does that here"},
		{"NCCL's interface is elsewhere", "nccl", func(v *View) { v.Getenv = set("NCCL_SOCKET_IFNAME=ib") }, Warn,
			"NCCL_SOCKET_IFNAME=ib is set, and UBCOLL_NET has no counterpart here: no interface with an address matches it"},
		{"too many", "nccl", func(v *View) { v.Interfaces, v.Getenv = many(), set("NCCL_SOCKET_IFNAME=^docker") }, Warn,
			"eth0, eth01, ib1, ib2 have 5 addresses, and a rank listens on 4 at most"},
		{"NCCL's RDMA devices", "nccl", func(v *View) { v.IB, v.Getenv = "on", set("NCCL_IB_HCA=^=mlx5_3") }, Warn,
			"NCCL_IB_HCA=^=mlx5_3 is set: UBCOLL_IB_HCA=^=mlx5_3 does that here"},
		{"NCCL's RDMA devices, without RDMA", "nccl", func(v *View) { v.IB, v.Getenv = "off", set("NCCL_IB_HCA=mlx5_3") }, Pass, "no setting"},
		{"a fault on request", "faults", func(v *View) { v.Getenv = set("UBCOLL_FAULT=kill:rank=1") }, Warn, "UBCOLL_FAULT=kill:rank=1 is set"},
		{"both", "nccl", func(v *View) { v.IB, v.Getenv = "auto", set("NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_HCA=mlx5_3") }, Warn,
			"NCCL_SOCKET_IFNAME=eth0 is set: UBCOLL_NET=eth0 does that here; NCCL_IB_HCA=mlx5_3 is set: UBCOLL_IB_HCA=mlx5_3 does that here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := healthy()
			c.change(v)
			for _, f := range Examine(v) {
				if f.Check != c.check {
					continue
				}
				require.Equal(t, c.status, f.Status, "%+v", f)
				require.Contains(t, f.Reason, c.reason)
				require.Equal(t, f.Status == Warn || f.Status == Fail, f.Cure != "", "who is told of a fault is told the cure")
				require.Equal(t, c.status == Fail, Failed([]Finding{f}))
				var b bytes.Buffer
				require.NoError(t, Print(&b, []Finding{f}))
				require.Contains(t, b.String(), string(c.status)+"  "+c.check)
				require.Contains(t, b.String(), f.Cure)
				return
			}
			t.Fatalf("no check %s", c.check)
		})
	}
}

// The last line says what will work on a machine.
func TestVerdict(t *testing.T) {
	nothing := errors.New("no such library")
	for _, c := range []struct {
		name   string
		change func(v *View)
		want   string
	}{
		{"everything", func(v *View) {}, "This machine runs ranks on host memory and GPUs, as goroutines, by ubcoll launch and by MPI's launcher; " +
			"whether it reaches other hosts was not tried."},
		{"a laptop", func(v *View) { v.BuiltMPI, v.GPUs, v.GPUErr, v.RDMA, v.Verbs = "", nil, nothing, nil, nothing },
			"This machine runs ranks on host memory, as goroutines and by ubcoll launch; not by MPI's launcher, on GPUs or with RDMA devices; " +
				"whether it reaches other hosts was not tried."},
		{"a container", func(v *View) { v.RDMA, v.Interfaces = nil, v.Interfaces[:1] }, "This machine runs ranks on host memory and GPUs, as goroutines, " +
			"by ubcoll launch and by MPI's launcher; not with RDMA devices or across hosts."},
		{"a loopback alone, all else there", func(v *View) { v.Interfaces = v.Interfaces[:1] }, "This machine runs ranks on host memory and GPUs, as " +
			"goroutines, by ubcoll launch and by MPI's launcher; not across hosts."},
		{"another mpirun", func(v *View) { v.BuiltMPI = "MPICH Version: 4.0.2" }, "This machine runs ranks on host memory and GPUs, as goroutines and " +
			"by ubcoll launch; not by MPI's launcher; whether it reaches other hosts was not tried."},
		{"no mpirun", func(v *View) { v.Mpirun = func() (string, error) { return "", nothing } }, "This machine runs ranks on host memory and GPUs, as " +
			"goroutines and by ubcoll launch; not by MPI's launcher; whether it reaches other hosts was not tried."},
		{"GPUs apart", func(v *View) { v.GPUs[1].Unreachable = []string{"cuda:0"} }, "This machine runs ranks on host memory (with UBCOLL_CUDA=off), as " +
			"goroutines, by ubcoll launch and by MPI's launcher; not on GPUs; whether it reaches other hosts was not tried."},
		{"a port is down", func(v *View) { v.RDMA = append(v.RDMA, Port{"mlx5_1:1", false, "down"}) }, "This machine runs ranks on host memory and GPUs, " +
			"as goroutines, by ubcoll launch and by MPI's launcher; whether it reaches other hosts was not tried."},
		{"all ports are down", func(v *View) { v.RDMA[0] = Port{"mlx5_0:1", false, "init"} }, "This machine runs ranks on host memory and GPUs, as " +
			"goroutines, by ubcoll launch and by MPI's launcher; not with RDMA devices; whether it reaches other hosts was not tried."},
		{"many addresses", func(v *View) { v.Interfaces[1].Addresses = make([]string, 5) }, "This machine runs ranks on host memory and GPUs, as " +
			"goroutines, by ubcoll launch and by MPI's launcher; whether it reaches other hosts was not tried."},
		{"no RDMA where it must be", func(v *View) { v.RDMA, v.IB = nil, "on" }, "As it is set, no job opens on this machine: UBCOLL_IB=on, and no RDMA device."},
		{"no memory", func(v *View) { v.Memory = nothing }, "No job runs on this machine: ranks cannot share memory here: no such library."},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := healthy()
			c.change(v)
			require.Equal(t, c.want, Verdict(Examine(v)))
		})
	}
	require.Equal(t, "This machine runs ranks on host memory and GPUs, as goroutines, by ubcoll launch and by MPI's launcher; not as the job that this "+
		"was started in; whether it reaches other hosts was not tried.", Verdict(append(Examine(healthy()), Finding{Check: "job", Status: Fail})))
}
