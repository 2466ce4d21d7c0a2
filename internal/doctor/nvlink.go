package doctor

import (
	"fmt"
	"slices"
)

// OnHost is what a process of a job tells of the NVLink fabrics that its GPUs belong to.
type OnHost struct {
	ID      string   `json:"id"`   // of the host
	Name    string   `json:"name"` // likewise
	Fabrics []string `json:"fabrics"`
}

// fewHosts: more hosts than this are not all named.
const fewHosts = 4

// SharedFabrics returns a sentence for each NVLink fabric that GPUs of several hosts share, in the order in which the processes
// of the job name them.
func SharedFabrics(all []OnHost) (texts []string) {
	var fabrics []string
	ids, names := map[string][]string{}, map[string][]string{} // of the hosts, by fabric
	for _, h := range all {
		for _, f := range h.Fabrics {
			if !slices.Contains(fabrics, f) {
				fabrics = append(fabrics, f)
			}
			if !slices.Contains(ids[f], h.ID) {
				ids[f], names[f] = append(ids[f], h.ID), append(names[f], h.Name)
			}
		}
	}
	for _, f := range fabrics {
		hosts := names[f]
		if len(hosts) < 2 {
			continue
		}
		if n := len(hosts); n > fewHosts {
			hosts = append(slices.Clone(hosts[:fewHosts-1]), fmt.Sprintf("%d others", n-fewHosts+1))
		}
		texts = append(texts, fmt.Sprintf("NVLink fabric %s: GPUs of hosts %s share it; ubcoll does not use it between hosts", f,
			list(hosts, "and")))
	}
	return texts
}

// NVLink is the finding of what SharedFabrics has returned, if that is anything.
func NVLink(texts []string) (all []Finding) {
	for _, t := range texts {
		all = append(all, Finding{Check: "nvlink", Status: Pass, Reason: t})
	}
	return all
}
