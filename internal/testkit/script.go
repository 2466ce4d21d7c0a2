package testkit

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// WriteProgram writes a program, mostly lines of shell, to the file of that name. A process that another test starts
// meanwhile would have the file open for writing, and then nobody could start the program (ETXTBSY).
func WriteProgram(t testing.TB, name, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o755))
}
