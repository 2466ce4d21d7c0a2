package fdtrace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing is noted before Start. Descriptors are told in the order of their opening, with a stack.
func TestTrace(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Open(1000, "early one")
		Close(1000)
	}))
	Open(1000, "early one")
	Forget()
	require.Empty(t, Since(0))
	require.Zero(t, Mark())

	Start()
	Open(1003, "first one")
	mark := Mark()
	Start() // keeps what is known
	Open(1002, "second one")
	Open(1001, "third one")
	Open(-1, "none")
	require.Regexp(t, `(?s)^descriptor 1003, a first one, was opened by\n\t[^\n]*fdtrace.TestTrace\n\t\t[^\n]*fdtrace_test.go:\d+\n`+
		`.*descriptor 1002, .*descriptor 1001, `, Since(0))
	require.Regexp(t, `(?s)^descriptor 1002, .*descriptor 1001, `, Since(mark))
	Close(1002)
	Close(1001)
	Close(1001)
	require.Empty(t, Since(mark))
	Open(1003, "again") // was closed without a word
	require.NotContains(t, Since(0), "first one")
	Forget()
	require.Empty(t, Since(0))
}
