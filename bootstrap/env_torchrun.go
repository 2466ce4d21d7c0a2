package bootstrap

import (
	"fmt"
	"hash/fnv"
	"io"
)

// What torchrun tells the processes that it starts (_start_workers in PyTorch's
// torch/distributed/elastic/agent/server/local_elastic_agent.py). The master is the host of rank 0. torchrun's own store
// may listen on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), so rank 0 listens elsewhere.
const (
	torchRank       = "RANK"
	torchSize       = "WORLD_SIZE"
	torchLocal      = "LOCAL_WORLD_SIZE"
	torchMaster     = "MASTER_ADDR"
	torchMasterPort = "MASTER_PORT"
	torchRun        = "TORCHELASTIC_RUN_ID"
)

// torchrun reads the place of a process that torchrun has started.
func (f *faults) torchrun() (c config) {
	f.place(&c, torchRank, torchSize)
	local := f.number(torchLocal, 1, maxHosts)
	master, port := f.text(torchMaster), f.number(torchMasterPort, 1, 1<<16-1)
	run := f.text(torchRun) // "none" unless the user names it: the port tells runs apart
	c.job = fmt.Sprintf("torchrun's run %s with %s=%d", run, torchMasterPort, port)
	if c.size > 0 && local > c.size {
		f.bad(fmt.Errorf("%s=%d contradicts %s=%d", torchLocal, local, torchSize, c.size))
	}
	switch {
	case f.given(&c) || len(*f) > 0:
	case local == c.size:
		f.onOneHost(&c)
	default:
		h := fnv.New32a()
		io.WriteString(h, run)
		f.onHosts(&c, master, uint64(h.Sum32())+uint64(port))
	}
	return c
}
