package cpu

import (
	"fmt"
	"syscall"
)

// identity identifies a control group by its directory's device and inode: it may be mounted in many places.
func identity(dir string) string {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return dir
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
