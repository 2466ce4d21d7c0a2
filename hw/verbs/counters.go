package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/hw"
)

// counters reads one port's counters below a device's folder: those of the InfiniBand standard and the driver's own.
func counters(device string, port int) (map[string]uint64, error) {
	all := map[string]uint64{}
	var failed error
	found := false
	for _, kind := range []string{"counters", "hw_counters"} {
		dir := filepath.Join(device, "ports", strconv.Itoa(port), kind)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		failed = errors.Join(failed, err)
		found = found || err == nil
		for _, e := range entries {
			if e.Name() == "lifespan" {
				continue // a setting: for how many milliseconds the kernel returns cached numbers
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				continue // this user may not read it, or this kind of port does not have it
			}
			if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
				all[e.Name()] = n
			}
		}
	}
	if !found && failed == nil {
		return nil, fmt.Errorf("port %d has no counters below %s: %w", port, device, hw.ErrNotSupported)
	}
	return all, failed
}
