package ipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func dial(t testing.TB, r *rank) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", r.server.name)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(testkit.Limit)))
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

// ask answers the challenge for ref, and returns the service's answer and the length of its control message.
func ask(t testing.TB, conn *net.UnixConn, secret []byte, ref shm.Ref) (answer []byte, oob int) {
	t.Helper()
	var challenge [32]byte
	_, err := io.ReadFull(conn, challenge[:])
	require.NoError(t, err)
	req := make([]byte, 24)
	binary.LittleEndian.PutUint64(req, uint64(ref.FD))
	binary.LittleEndian.PutUint64(req[8:], ref.Inode)
	binary.LittleEndian.PutUint64(req[16:], uint64(ref.Size))
	_, err = conn.Write(append(sign(secret, challenge[:], req), req...))
	require.NoError(t, err)
	return receive(t, conn)
}

// receive reads everything that the service sends, and closes received descriptors.
func receive(t testing.TB, conn *net.UnixConn) (answer []byte, oob int) {
	t.Helper()
	buf, control := make([]byte, 100), make([]byte, 100)
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, control)
		n, oobn = max(n, 0), max(oobn, 0)
		if fd, err := oneDescriptor(control[:oobn]); err == nil {
			syscall.Close(fd)
		}
		answer, oob = append(answer, buf[:n]...), oob+oobn
		if err != nil || n == 0 {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			return answer, oob
		}
	}
}

func TestService(t *testing.T) {
	a, other := newRank(t, false, secret), newRank(t, false, secret)
	a.alloc(t, 1, "")
	other.alloc(t, 1, "")
	self, err := shm.Self()
	require.NoError(t, err)
	dir, arena := a.heap.DirectoryRef(), a.heap.Directory().Arena(0, self)
	for _, c := range []struct {
		name   string
		secret []byte
		ref    shm.Ref
		ok     bool
	}{
		{"the directory", secret, dir, true},
		{"an arena", secret, arena, true},
		{"a wrong secret", []byte("another secret"), dir, false},
		{"no secret", nil, dir, false},
		{"no such inode", secret, shm.Ref{FD: dir.FD, Inode: 1, Size: dir.Size}, false},
		{"a wrong size", secret, shm.Ref{FD: dir.FD, Inode: dir.Inode, Size: 1}, false},
		{"another descriptor", secret, shm.Ref{FD: 0, Inode: dir.Inode, Size: dir.Size}, false},
		{"one file's inode with another's descriptor", secret, shm.Ref{FD: arena.FD, Inode: dir.Inode, Size: dir.Size}, false},
		{"another rank's directory", secret, other.heap.DirectoryRef(), false},
		{"another rank's arena", secret, other.heap.Directory().Arena(0, self), false},
		{"nothing", secret, shm.Ref{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, oob := ask(t, dial(t, a), c.secret, c.ref)
			if c.ok {
				require.Equal(t, []byte{1}, answer)
				require.NotZero(t, oob)
				return
			}
			require.Equal(t, []byte{0}, answer)
			require.Zero(t, oob, "no descriptor may come with a refusal")
			// The client reports it, too.
			c.ref.Process = self
			_, err := request(context.Background(), a.server.name, c.secret, c.ref)
			require.ErrorIs(t, err, os.ErrPermission)
		})
	}
	t.Run("an answer to an old challenge", func(t *testing.T) {
		var challenge [32]byte
		first, second := dial(t, a), dial(t, a)
		_, err := io.ReadFull(first, challenge[:])
		require.NoError(t, err)
		req := make([]byte, 24)
		binary.LittleEndian.PutUint64(req, uint64(dir.FD))
		binary.LittleEndian.PutUint64(req[8:], dir.Inode)
		binary.LittleEndian.PutUint64(req[16:], uint64(dir.Size))
		msg := append(sign(secret, challenge[:], req), req...)
		_, err = io.ReadFull(second, challenge[:])
		require.NoError(t, err)
		_, err = second.Write(msg)
		require.NoError(t, err)
		answer, oob := receive(t, second)
		require.Equal(t, []byte{0}, answer)
		require.Zero(t, oob)
	})
}

// A rank with another secret is not let in, and reports why.
func TestWrongSecret(t *testing.T) {
	viaSocket(t)
	a, b := newRank(t, false, []byte("another")), newRank(t, false, secret)
	_, err := a.Attach(context.Background(), b.card(t))
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "refused to hand out descriptor")
	_, err = newRank(t, false, secret).Attach(context.Background(), b.card(t))
	require.NoError(t, err)
}

// Clients that send nothing, or only half a request, do not delay a close.
func TestCloseWithSilentClients(t *testing.T) {
	unhurried(t)
	before := measure(t)
	a := newRank(t, false, secret)
	for i := range 10 {
		conn := dial(t, a)
		_, err := io.ReadFull(conn, make([]byte, 32)) // wait until it is being served
		require.NoError(t, err)
		_, err = conn.Write(make([]byte, i*5))
		require.NoError(t, err)
		defer conn.Close()
	}
	start := time.Now()
	a.close()
	require.Less(t, time.Since(start), testkit.Limit)
	requireFoot(t, left{before.descriptors + 10, before.mappings}) // the clients' own descriptors
	_, err := net.Dial("unix", a.server.name)
	require.Error(t, err)
}

// FuzzService checks that garbage gets no descriptor.
func FuzzService(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(make([]byte, 56))
	f.Add(bytes.Repeat([]byte{0xff}, 57))
	random := testkit.Random(f)
	for range 50 {
		b := make([]byte, random.IntN(300))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		f.Add(b)
	}
	a := newRank(f, false, secret)
	before := measure(f)
	f.Fuzz(func(t *testing.T, garbage []byte) {
		conn := dial(t, a)
		if _, err := conn.Write(garbage); err != nil {
			require.ErrorIs(t, err, syscall.EPIPE) // refused before all of it was sent
		}
		conn.CloseWrite()
		answer, oob := receive(t, conn)
		require.Zero(t, oob)
		require.GreaterOrEqual(t, len(answer), 32)
		require.LessOrEqual(t, len(answer), 33)
		if len(answer) == 33 {
			require.Zero(t, answer[32])
		}
		conn.Close()
		testkit.Eventually(t, func() bool { return measure(t).descriptors <= before.descriptors })
	})
}

// The client does not trust the service: a false service, whatever it sends, causes only an error.
func TestFalseService(t *testing.T) {
	f, err := shm.Create("false", 1)
	require.NoError(t, err)
	defer f.Close()
	ref := f.Ref()
	ref.Inode++ // so that nothing it sends is right
	rights := func(n int) []byte {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = f.FD()
		}
		return syscall.UnixRights(fds...)
	}
	address := fmt.Sprintf("@ubcoll-test-%d-%x", os.Getpid(), rand.Uint64())
	for _, c := range []struct {
		name   string
		answer []byte
		oob    []byte
		want   error // nil: any error
	}{
		{"closes at once", nil, nil, nil},
		{"yes, and nothing", []byte{1}, nil, fault.ErrStale},
		{"yes, and another file", []byte{1}, rights(1), fault.ErrStale},
		{"yes, and two files", []byte{1}, rights(2), fault.ErrStale},
		{"yes, and more than fit", []byte{1}, rights(50), fault.ErrStale},
		{"no, and a file", []byte{0}, rights(1), os.ErrPermission},
		{"what?", []byte{7}, nil, os.ErrPermission},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
			require.NoError(t, err)
			defer l.Close()
			before := measure(t)
			served := make(chan error, 1)
			go func() {
				conn, err := l.AcceptUnix()
				if err == nil && c.answer != nil {
					conn.Write(make([]byte, 32))
					io.ReadFull(conn, make([]byte, 56))
					_, _, err = conn.WriteMsgUnix(c.answer, c.oob, nil)
				}
				conn.Close()
				served <- err
			}()
			_, err = request(context.Background(), l.Addr().String(), secret, ref)
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.NoError(t, <-served)
			requireFoot(t, before)
		})
	}
	t.Run("says nothing", func(t *testing.T) {
		unhurried(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
		require.NoError(t, err)
		defer l.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = request(ctx, l.Addr().String(), secret, ref)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, time.Since(start), testkit.Limit)
	})
}
