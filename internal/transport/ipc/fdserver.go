package ipc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// The descriptor service hands descriptors to peers: of this rank's memory files, if peers may not open them through
// /proc (a hardened kernel, a process that is not dumpable), and of exported device memory, which cannot be opened that
// way. It listens on an abstract Unix socket, which leaves nothing on disk. A client must run as the same user and
// prove that it knows the job's secret.
//
//	server: 32 bytes of challenge
//	client: 32 bytes HMAC-SHA256(secret, challenge + request), 24 bytes of request: descriptor, inode and size of a
//	        memory file; or number and version of an extent, and 0; or the number of a loan, 0, and the highest bit; or
//	        all ones, for a pidfd of the server
//	server: 1 byte 1 with the descriptor attached, or 1 byte 0
var requestTimeout = 10 * time.Second // a variable for tests

type server struct {
	name     string
	heap     *mem.Heap
	secret   []byte
	lend     func(extent uint32, version uint64) (fd int, err error)
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.UnixConn]bool // connections being served; nil after close
	loans map[uint64]int         // descriptors, by number
	last  uint64                 // loan's number
}

// serve starts the service. It returns nil if that fails; then peers can use only /proc.
func serve(h *mem.Heap, secret []byte, lend func(extent uint32, version uint64) (fd int, err error)) *server {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil
	}
	name := "@ubcoll-" + hex.EncodeToString(id[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil
	}
	s := &server{name: name, heap: h, secret: secret, lend: lend, listener: l, conns: map[*net.UnixConn]bool{}}
	s.serving.Add(1)
	go s.run()
	return s
}

func (s *server) close() {
	s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close() // its client may never send anything
	}
	s.conns = nil
	s.mu.Unlock()
	s.serving.Wait()
}

// hold registers conn, so that close can close it. It returns false after close.
func (s *server) hold(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[conn] = true
	return true
}

func (s *server) done(conn *net.UnixConn) {
	conn.Close()
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
}

func (s *server) run() {
	defer s.serving.Done()
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // probably out of descriptors: others may close some
			continue
		}
		if !s.hold(conn) {
			conn.Close()
			return
		}
		s.serving.Add(1)
		go func() {
			defer s.serving.Done()
			defer s.done(conn)
			conn.SetDeadline(time.Now().Add(requestTimeout))
			s.answer(conn) // if this fails, the client sees a closed connection
		}()
	}
}

func (s *server) answer(conn *net.UnixConn) error {
	if err := shm.SameUser(conn); err != nil {
		return err
	}
	var challenge [32]byte
	if _, err := rand.Read(challenge[:]); err != nil {
		return err
	}
	if _, err := conn.Write(challenge[:]); err != nil {
		return err
	}
	var msg [32 + 24]byte
	if _, err := readFull(conn, msg[:]); err != nil {
		return err
	}
	if !hmac.Equal(msg[:32], sign(s.secret, challenge[:], msg[32:])) {
		_, err := conn.Write([]byte{0})
		return err
	}
	var req fdRequest
	for i := range req {
		req[i] = binary.LittleEndian.Uint64(msg[32+8*i:])
	}
	fd, owned, err := s.find(req)
	if err != nil {
		_, err := conn.Write([]byte{0})
		return err
	}
	_, _, err = conn.WriteMsgUnix([]byte{1}, syscall.UnixRights(fd), nil)
	if owned {
		err = errors.Join(err, closeFD(fd))
	}
	return err
}

// fdRequest is a client's request.
type fdRequest [3]uint64

func fileRequest(r shm.Ref) fdRequest { return fdRequest{uint64(r.FD), r.Inode, uint64(r.Size)} }

func exportRequest(extent uint32, version uint64) fdRequest {
	return fdRequest{uint64(extent), version, 0}
}

// loan is the last word of a request for a lent descriptor.
const loan = 1 << 63

func loanRequest(number uint64) fdRequest { return fdRequest{number, 0, loan} }

// processRequest asks for a pidfd of the server's process, for clients that cannot open one.
var processRequest = fdRequest{math.MaxUint64, math.MaxUint64, math.MaxUint64}

func (r fdRequest) String() string {
	if r == processRequest {
		return "a descriptor of its process"
	}
	switch r[2] {
	case 0:
		return fmt.Sprintf("extent %d", r[0])
	case loan:
		return fmt.Sprintf("descriptor number %d of those lent", r[0])
	}
	return fmt.Sprintf("descriptor %d", r[0])
}

// find returns the requested descriptor, and whether to close it after it has been sent.
func (s *server) find(req fdRequest) (fd int, owned bool, err error) {
	if req == processRequest {
		fd, err := shm.OwnPIDFD()
		return fd, true, err
	}
	if req[2] == 0 {
		if req[0] >= maxExtents {
			return -1, false, os.ErrPermission
		}
		fd, err := s.lend(uint32(req[0]), req[1])
		return fd, true, err
	}
	if req[2] == loan {
		s.mu.Lock()
		defer s.mu.Unlock()
		fd, ok := s.loans[req[0]]
		if !ok {
			return -1, false, os.ErrPermission
		}
		fd, err := dupFD(fd)
		return fd, true, err
	}
	self, err := shm.Self()
	if err != nil {
		return -1, false, err
	}
	f := s.heap.File(shm.Ref{Process: self, FD: int(req[0]), Inode: req[1], Size: int(req[2])})
	if f == nil {
		return -1, false, os.ErrPermission
	}
	return f.FD(), false, nil
}

// Lend implements engine.DeviceTransport.
func (t *Transport) Lend(fd int) (number uint64, end func(), err error) {
	s := t.server
	if s == nil {
		return 0, nil, fmt.Errorf("no socket to hand out descriptors: %w", fault.ErrNotSupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loans == nil {
		s.loans = map[uint64]int{}
	}
	s.last++
	number = s.last
	s.loans[number] = fd
	return number, func() {
		s.mu.Lock()
		delete(s.loans, number)
		s.mu.Unlock()
	}, nil
}

// Borrow implements engine.DevicePeer.
func (p *peer) Borrow(ctx context.Context, number uint64) (fd int, err error) {
	if p.card.Socket == "" {
		return -1, fmt.Errorf("%v has no socket to hand out descriptors: %w", p.card.Process, fault.ErrNotSupported)
	}
	if fd, err = requestFD(ctx, p.card.Socket, p.t.secret, loanRequest(number)); err != nil {
		return -1, p.lost(err)
	}
	return fd, nil
}

func sign(secret, challenge, request []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(challenge)
	h.Write(request)
	return h.Sum(nil)
}

func readFull(conn *net.UnixConn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = conn.Read(b[n:])
		n += k
	}
	if n == len(b) {
		return n, nil
	}
	return n, err
}

// request asks the service called name for the memory file r.
func request(ctx context.Context, name string, secret []byte, r shm.Ref) (*shm.File, error) {
	fd, err := requestFD(ctx, name, secret, fileRequest(r))
	if err != nil {
		return nil, err
	}
	return shm.Adopt(fd, r)
}

// requestFD asks the service called name for the descriptor in req. The caller closes the descriptor.
func requestFD(ctx context.Context, name string, secret []byte, req fdRequest) (int, error) {
	ctx, cancel := clock.WithTimeout(ctx, requestTimeout, nil)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return -1, err
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	if err := shm.SameUser(conn); err != nil {
		return -1, err
	}
	var challenge [32]byte
	if _, err := readFull(conn, challenge[:]); err != nil {
		return -1, err
	}
	var msg [32 + 24]byte
	for i, w := range req {
		binary.LittleEndian.PutUint64(msg[32+8*i:], w)
	}
	copy(msg[:32], sign(secret, challenge[:], msg[32:]))
	if _, err := conn.Write(msg[:]); err != nil {
		return -1, err
	}
	var answer [1]byte
	oob := make([]byte, 64)
	n, oobn, _, _, err := conn.ReadMsgUnix(answer[:], oob)
	if err != nil {
		return -1, err
	}
	fd, err := oneDescriptor(oob[:oobn]) // whatever the answer: a received descriptor must be closed
	if n != 1 || answer[0] != 1 {
		if err == nil {
			closeFD(fd)
		}
		return -1, fmt.Errorf("its owner refused to hand out %v: %w", req, os.ErrPermission)
	}
	return fd, err
}

func closeFD(fd int) error {
	fdtrace.Close(fd)
	return os.NewSyscallError("close", syscall.Close(fd))
}

func dupFD(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	fdtrace.Open(fd, "duplicate of an export")
	return fd, os.NewSyscallError("fcntl", err)
}

func oneDescriptor(oob []byte) (int, error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, err
	}
	var fds []int
	for i := range msgs {
		if got, err := syscall.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if len(fds) == 1 {
		fdtrace.Open(fds[0], "peer's descriptor")
		return fds[0], nil
	}
	for _, fd := range fds {
		syscall.Close(fd)
	}
	return -1, fmt.Errorf("%d descriptors in the answer: %w", len(fds), fault.ErrStale)
}
