package onesided

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/roster"
)

var (
	testIdentity = roster.Identity{Secret: []byte("secret"), Job: roster.Hash("job", []byte("secret")), Host: 11,
		Process: shm.Process{PID: 12, Start: 13}}
	testExport = engine.Export{At: mem.Location{Arena: 1, Slot: 2, Generation: 3, Offset: 4}, Bytes: 5,
		Grant: mem.Location{Slot: 6, Generation: 7}, Access: engine.LocalWrite | engine.RemoteRead,
		Transports: engine.HostMemory | engine.RDMA}
)

func TestHandleRoundTrip(t *testing.T) {
	h := marshal(&testIdentity, 99, 5, testExport)
	require.Len(t, h, handleBytes)
	got, err := unmarshal(&testIdentity, h)
	require.NoError(t, err)
	require.Equal(t, handle{Export: testExport, host: testIdentity.Host, process: testIdentity.Process, domain: 99, rank: 5}, got)
}

// TestHandleRefused tries handles that are well signed but come from somewhere else, and handles that are not well
// signed.
func TestHandleRefused(t *testing.T) {
	other := testIdentity
	other.Secret = []byte("another")
	other.Job = roster.Hash("job", other.Secret)
	impostor := testIdentity // knows the job's number but not its secret
	impostor.Secret = other.Secret
	whole := marshal(&testIdentity, 99, 5, testExport)
	device := append([]byte{}, whole[:handleBytes-codeBytes]...)
	device[84] = 2
	device = append(device, code(&testIdentity, device)...)
	of := func(version uint16) []byte {
		h := append([]byte{}, whole...)
		binary.LittleEndian.PutUint16(h[4:], version)
		return h
	}
	for _, k := range []struct {
		name   string
		handle []byte
		want   error
		text   string
	}{
		{"nil", nil, fault.ErrArgument, "0 bytes"},
		{"text", []byte("no handle at all"), fault.ErrArgument, "begins with"},
		{"truncated", whole[:handleBytes-1], fault.ErrArgument, "truncated"},
		{"another length", append([]byte{whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], 121}, whole[7:]...),
			fault.ErrArgument, "120 bytes, which says that it has 121, and a handle has 120"},
		{"longer", append(append([]byte{}, whole...), 0), fault.ErrArgument, "truncated, changed, or with more"},
		{"older version", of(3), fault.ErrArgument, "version 3, this library has 4"},
		{"newer version", of(5), fault.ErrArgument, "version 5, this library has 4"},
		{"another job", marshal(&other, 99, 5, testExport), fault.ErrStale, "another job"},
		{"a forger", marshal(&impostor, 99, 5, testExport), fault.ErrArgument, "changed"},
		{"a device", device, fault.ErrNotSupported, "unknown kind of memory"},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := unmarshal(&testIdentity, k.handle)
			require.ErrorIs(t, err, k.want)
			require.ErrorContains(t, err, k.text)
		})
	}
}

func TestHandleEveryBit(t *testing.T) {
	whole := marshal(&testIdentity, 99, 5, testExport)
	for i := range 8 * len(whole) {
		bad := append([]byte{}, whole...)
		bad[i/8] ^= 1 << (i % 8)
		_, err := unmarshal(&testIdentity, bad)
		require.Error(t, err, "bit %d", i)
	}
}

// FuzzHandle looks for bytes that are accepted as a handle although they differ from the one made.
func FuzzHandle(f *testing.F) {
	whole := marshal(&testIdentity, 99, 5, testExport)
	f.Add(whole)
	f.Add(whole[:40])
	f.Add([]byte("ubrh"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := unmarshal(&testIdentity, b); err == nil && string(b) != string(whole) {
			t.Errorf("%x was taken for a handle", b)
		}
	})
}
