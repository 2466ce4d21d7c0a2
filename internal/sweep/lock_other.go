//go:build !unix

package sweep

import "os"

// lock opens the file. On this system it keeps no other process away.
func lock(name string) (*os.File, error) { return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644) }
