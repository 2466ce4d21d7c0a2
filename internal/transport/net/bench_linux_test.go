package net

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"github.com/ubcoll/ubcoll/internal/transport"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// answer is the other rank, as a goroutine or a process: it answers a put to place 0 with one of the same size in the
// peer's place 0, and reports puts to place 1 in place 2.
func answer(l *Link, stop func() bool) {
	buf, large := make([]byte, 64<<10), make([]byte, streamPut)
	l.Post(0, 1, at(buf), len(buf))
	for s := range uint64(streamPlaces) {
		l.Post(3+int(s), 1, at(large), len(large))
	}
	l.Put(2, 1, nil, 0)
	next, chunk := uint64(1), uint64(0)
	for spins := 0; !stop() && l.Err() == nil; spins++ {
		l.Poll()
		if l.Word(0).Load() == next {
			n := l.Landed(0)
			next++
			l.Post(0, next, at(buf), len(buf))
			l.Put(0, next-1, at(buf), n)
		}
		if place, seq := 3+int(chunk%streamPlaces), chunk/streamPlaces+1; l.Word(place).Load() == seq {
			chunk++
			l.Post(place, seq+1, at(large), len(large))
			l.Put(1, chunk, nil, 0)
		}
	}
}

const (
	streamPut    = 256 << 10
	streamPlaces = 8
)

// echo does that as a process; rows go over standard input and output.
func echo() error {
	var there []byte
	n, err := New(transport.Config{Rank: 1, Secret: secret, RowOf: func(int) []byte { return there }})
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(n.Row()))
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if there, err = hex.DecodeString(strings.TrimSpace(line)); err != nil {
		return err
	}
	n.Begin()
	w, err := n.connect(context.Background(), 0, true)
	if err != nil {
		return err
	}
	l, err := w.Link(commID, 3+streamPlaces)
	if err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil { // the other side has its link
		return err
	}
	answer(l, func() bool { return false })
	return n.Close(5 * time.Second)
}

// process is a node with a link to a node in another process, which answers.
type process struct {
	*testkit.Process
	n    *Node
	told *told
	l    *Link
}

func startProcess(t testing.TB) *process {
	t.Helper()
	n, h := node(t, 0)
	c := testkit.Child("echo", "UBCOLL_NET=lo")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { in.Close(); _ = c.Process.Kill(); _ = c.Wait() })
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(t, err)
	row, err := ParseRow(b)
	require.NoError(t, err)
	_, err = fmt.Fprintln(in, hex.EncodeToString(n.Row()))
	require.NoError(t, err)
	w, err := n.Connect(within(t), 1, row)
	require.NoError(t, err)
	l, err := w.Link(commID, 3+streamPlaces)
	require.NoError(t, err)
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	return &process{&testkit.Process{Cmd: c}, n, h, l}
}

func BenchmarkProcesses(b *testing.B) {
	p := startProcess(b)
	p.l.until(b, 2, 1)
	measure(b, p.l)
	closeAll(b, p.n)
}

func BenchmarkGoroutines(b *testing.B) {
	p := newPair(b, 3+streamPlaces)
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		answer(p.lb, func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
	}()
	p.la.until(b, 2, 1)
	measure(b, p.la)
	close(stop)
	<-done
	p.close(b)
}

func measure(b *testing.B, l *Link) {
	seq := uint64(0)
	for _, n := range []int{8, 64 << 10} {
		b.Run(fmt.Sprintf("ping-pong-%d", n), func(b *testing.B) {
			from, to := make([]byte, n), make([]byte, n)
			b.ReportAllocs()
			for b.Loop() {
				seq++
				l.Post(0, seq, at(to), n)
				l.Put(0, seq, at(from), n)
				for l.Word(0).Load() < seq {
					l.Poll()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2e3, "us/half-trip")
		})
	}
	chunks := uint64(0)
	b.Run("stream-64MiB", func(b *testing.B) {
		from := make([]byte, streamPut)
		b.SetBytes(64 << 20)
		for b.Loop() {
			for range 64 << 20 / streamPut {
				for chunks-l.Word(1).Load() >= streamPlaces {
					l.Poll()
				}
				l.Put(3+int(chunks%streamPlaces), chunks/streamPlaces+1, at(from), len(from))
				chunks++
			}
			for l.Word(1).Load() < chunks {
				l.Poll()
			}
		}
	})
}

// BenchmarkServe writes to memory of a peer in the same process, and calls it.
func BenchmarkServe(b *testing.B) {
	const large = 4 << 20
	sa, sb := &counter{memory: make([]byte, large)}, &counter{memory: make([]byte, large)}
	p := &pair{}
	p.a, _ = node(b, 0)
	p.b, _ = node(b, 1)
	connect(b, p.a, p.b)
	p.la, p.lb = serve(b, p.a, commID, sa), serve(b, p.b, commID, sb)
	require.NoError(b, p.la.Ready(within(b)))
	require.NoError(b, p.lb.Ready(within(b)))
	var answers atomic.Bool
	stop, done := make(chan struct{}), make(chan struct{})
	say := func(l *Link, from []byte) {
		l.Write(transport.Target{Key: 1, Slot: 1}, at(from), len(from), true)
		l.Call(from[:8])
	}
	go func() {
		defer close(done)
		from := make([]byte, 8)
		for n := sb.calls.Load(); ; p.lb.Poll() {
			select {
			case <-stop:
				return
			default:
			}
			if got := sb.calls.Load(); got > n {
				if n = got; answers.Load() {
					say(p.lb, from)
				}
			}
		}
	}()
	b.Run("ping-pong-8", func(b *testing.B) {
		from := make([]byte, 8)
		answers.Store(true)
		b.ReportAllocs()
		before := p.a.Traffic()[0].SentPuts
		for b.Loop() {
			n := sa.calls.Load()
			say(p.la, from)
			for sa.calls.Load() == n {
				p.la.Poll()
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2e3, "us/half-trip")
		require.EqualValues(b, 2*b.N, p.a.Traffic()[0].SentPuts-before)
		answers.Store(false)
	})
	b.Run("stream-4MiB", func(b *testing.B) {
		from := make([]byte, large)
		b.SetBytes(large)
		b.ReportAllocs()
		n := sb.calls.Load()
		for b.Loop() {
			say(p.la, from)
			n++
			for p.la.Queued()-p.la.Sent() > 4 {
				p.la.Poll()
			}
		}
		for sb.calls.Load() < n {
			p.la.Poll()
		}
	})
	close(stop)
	<-done
	p.close(b)
}

// For comparison: two sockets, polled in loops, without frames or grants.
func BenchmarkRaw(b *testing.B) {
	c := testkit.Child("raw")
	c.Stderr = os.Stderr
	fds := rawPair(b)
	f := os.NewFile(uintptr(fds[1]), "socket")
	c.ExtraFiles = []*os.File{f}
	require.NoError(b, c.Start())
	f.Close()
	for _, n := range []int{8, 64 << 10} {
		b.Run(fmt.Sprintf("ping-pong-%d", n), func(b *testing.B) {
			buf := make([]byte, 32+n)
			*(*uint64)(unsafe.Pointer(&buf[0])) = uint64(len(buf))
			for b.Loop() {
				if rawSend(fds[0], buf) != nil || rawReceive(fds[0], buf) != nil {
					b.Fatal("the other end is gone")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2e3, "us/half-trip")
		})
	}
	b.Run("stream-64MiB", func(b *testing.B) {
		buf := make([]byte, streamPut)
		b.SetBytes(64 << 20)
		for b.Loop() {
			*(*uint64)(unsafe.Pointer(&buf[0])) = 64 << 20
			for range 64 << 20 / streamPut {
				if rawSend(fds[0], buf) != nil {
					b.Fatal("the other end is gone")
				}
			}
			if rawReceive(fds[0], buf[:32]) != nil {
				b.Fatal("the other end is gone")
			}
		}
	})
	unix.Close(fds[0])
	require.NoError(b, c.Wait())
}

func rawPair(b *testing.B) (fds [2]int) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(b, err)
	require.NoError(b, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(b, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	require.NoError(b, err)
	fds[0], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(b, err)
	require.NoError(b, unix.Connect(fds[0], at))
	fds[1], _, err = unix.Accept(l)
	require.NoError(b, err)
	for _, fd := range fds {
		require.NoError(b, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		require.NoError(b, unix.SetNonblock(fd, true))
	}
	unix.Close(l)
	return fds
}

func rawSend(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := sendTo(fd, b)
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		b = b[n:]
	}
	return nil
}

func rawReceive(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := receiveFrom(fd, b)
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		if n == 0 && err == nil {
			return io.EOF
		}
		b = b[n:]
	}
	return nil
}

// raw is the other process. It answers messages, whose first word is their length, and the end of a stream.
func raw() error {
	buf := make([]byte, 32+64<<10)
	for {
		if err := rawReceive(3, buf[:8]); err != nil {
			return nil
		}
		n := int(*(*uint64)(unsafe.Pointer(&buf[0])))
		if n <= len(buf) {
			if err := rawReceive(3, buf[8:n]); err != nil {
				return err
			}
			if err := rawSend(3, buf[:n]); err != nil {
				return err
			}
			continue
		}
		for left := n - 8; left > 0; {
			k := min(left, 64<<10)
			if err := rawReceive(3, buf[:k]); err != nil {
				return err
			}
			left -= k
		}
		if err := rawSend(3, buf[:32]); err != nil {
			return err
		}
	}
}
