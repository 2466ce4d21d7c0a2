package ofi

import (
	"io/fs"
	"path"
	"strings"
)

// Hardware is a network device that has providers of its own.
type Hardware struct {
	Name      string   // as "EFA"
	Providers []string // any of which drives it, best first
	Library   string   // where its vendor installs a libfabric that has them; "" where distributions' has
}

// FindHardware looks for such devices below root, the file system's root folder. It loads no library.
func FindHardware(root fs.FS) []Hardware {
	var found []Hardware
	some := func(pattern string) []string {
		names, _ := fs.Glob(root, pattern) // the patterns are well-formed
		return names
	}
	is := func(file, prefix string) bool {
		b, err := fs.ReadFile(root, file)
		return err == nil && strings.HasPrefix(strings.TrimSpace(string(b)), prefix)
	}
	for _, vendor := range some("sys/class/infiniband/*/device/vendor") {
		if is(vendor, "0x1d0f") && is(path.Join(path.Dir(vendor), "device"), "0xefa") { // Amazon's, as the kernel's efa_main.c
			found = append(found, Hardware{"EFA", []string{"efa"}, "/opt/amazon/efa/lib/libfabric.so.1"})
			break
		}
	}
	if len(some("sys/class/cxi/*")) > 0 {
		found = append(found, Hardware{"Slingshot (cxi)", []string{"cxi"}, ""})
	}
	if len(some("dev/hfi1_[0-9]*")) > 0 {
		found = append(found, Hardware{"Omni-Path (hfi1)", []string{"opx", "psm2"}, ""})
	}
	return found
}
