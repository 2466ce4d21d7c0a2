package doctor

import (
	"slices"
	"strings"
)

// Beginnings of reasons by which Verdict tells findings of one status apart.
const (
	activePorts  = "active: "
	onlyLoopback = "only loopback is up"
)

// Verdict says in one sentence what will work on a machine with these findings. Why something does not, the findings say.
func Verdict(all []Finding) string {
	of := func(check string) Finding {
		i := slices.IndexFunc(all, func(f Finding) bool { return f.Check == check })
		if i < 0 {
			return Finding{}
		}
		return all[i]
	}
	gpus, devices := of("gpu"), of("rdma")
	switch {
	case of("shared-memory").Status == Fail:
		return "No job runs on this machine: " + of("shared-memory").Reason + "."
	case devices.Status == Fail:
		return "As it is set, no job opens on this machine: " + devices.Reason + "."
	}
	memory, ways := "host memory", []string{"as goroutines", "by ubcoll launch"}
	var not []string
	if of("job").Status == Fail {
		not = append(not, "as the job that this was started in")
	}
	if of("mpi").Status == Pass {
		ways = append(ways, "by MPI's launcher")
	} else {
		not = append(not, "by MPI's launcher")
	}
	switch gpus.Status {
	case Pass:
		memory += " and GPUs"
	case Fail:
		memory += " (with UBCOLL_CUDA=off)"
		fallthrough
	default:
		not = append(not, "on GPUs")
	}
	if !strings.HasPrefix(devices.Reason, activePorts) {
		not = append(not, "with RDMA devices")
	}
	s := "This machine runs ranks on " + memory + ", " + list(ways, "and")
	hosts := "; whether it reaches other hosts was not tried."
	if strings.HasPrefix(of("network").Reason, onlyLoopback) {
		not, hosts = append(not, "across hosts"), "."
	}
	if len(not) > 0 {
		s += "; not " + list(not, "or")
	}
	return s + hosts
}

// list joins words with commas, the last with a conjunction.
func list(words []string, conjunction string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
