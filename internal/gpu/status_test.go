package gpu

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// quiet is a Client that has only an error.
type quiet struct {
	Client
	err error
}

func (q *quiet) Collect() error { return q.err }

// Each Sync of a stream collects errors, so this must not allocate while there are none.
func TestCollectAllocates(t *testing.T) {
	q := &quiet{}
	d := &Device{gone: true, clients: []Client{&quiet{}, q}} // without a status page
	require.Zero(t, testing.AllocsPerRun(100, func() { d.Collect() }))
	q.err = errors.New("a message")
	d.pending = []error{errors.New("before")}
	require.Equal(t, "before\na message", errors.Join(d.Collect()...).Error())
	q.err = nil
	require.Empty(t, d.Collect())
}
