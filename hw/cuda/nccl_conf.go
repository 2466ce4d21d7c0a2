//go:build linux && cgo && (amd64 || arm64)

package cuda

import (
	"os"
	"path/filepath"
	"strings"
)

// ncclSetting returns the value that NCCL would have for a variable, and the file it is from, "" for the environment: that
// comes first, then the user's file, then the system's. Source: NCCL's src/misc/param.cc (initEnv, setEnvFile), and its
// user guide, "Environment Variables", NCCL_CONF_FILE.
func ncclSetting(name, system string) (value, file string) {
	if v, ok := os.LookupEnv(name); ok {
		return v, ""
	}
	own := os.Getenv("NCCL_CONF_FILE")
	if home, err := os.UserHomeDir(); own == "" && err == nil {
		own = filepath.Join(home, ".nccl.conf")
	}
	for _, file := range []string{own, system} {
		b, _ := os.ReadFile(file) // one that is not there, or not readable, says nothing
		for line := range strings.Lines(string(b)) {
			if key, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.TrimSpace(key) == name {
				return strings.TrimSpace(v), file
			}
		}
	}
	return "", ""
}

const ncclSystemFile = "/etc/nccl.conf"
