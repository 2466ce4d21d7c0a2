package bootstrap

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/env"
)

// The handshake. Rank 0 greets with its nonce. The other rank answers with its rank and size, a nonce of its own, and a
// MAC over all of that under the job's secret. Rank 0 proves itself by a MAC over the same bytes, under its own role.
// Frames follow only then. Nobody learns the secret, and a recorded handshake is useless because the nonces differ.
const (
	magic     = "ubcoll-3" // the digit is the wire version
	nonceSize = 32
	macSize   = sha256.Size

	maxHandshakes = 64 // under way at a time
)

// handshakeTimeout is how long one handshake may take. Tests change it.
var handshakeTimeout = 5 * time.Second

type greeting struct {
	Magic [len(magic)]byte
	Nonce [nonceSize]byte
}

type answer struct {
	Magic      [len(magic)]byte
	Rank, Size uint32
	Nonce      [nonceSize]byte
}

func (c config) mac(role string, g greeting, a answer) []byte {
	h := hmac.New(sha256.New, c.secret)
	_ = binary.Write(h, binary.BigEndian, g)
	_ = binary.Write(h, binary.BigEndian, a)
	io.WriteString(h, role)
	return h.Sum(nil)
}

// greet is rank 0's side of the handshake. It calls proved when the visitor has proved its identity, before it tells
// the visitor. The error says what was wrong with the visitor.
func (c config) greet(conn net.Conn, proved func()) (answer, error) {
	var a answer
	g := greeting{Magic: [len(magic)]byte([]byte(magic))}
	rand.Read(g.Nonce[:])
	if err := binary.Write(conn, binary.BigEndian, g); err != nil {
		return a, err
	}
	var theirs [macSize]byte
	if err := binary.Read(conn, binary.BigEndian, &a); err != nil {
		return a, err
	}
	if string(a.Magic[:]) != magic {
		return a, fmt.Errorf("a visitor speaks %q, not %q: %w", a.Magic, magic, fault.ErrMismatch)
	}
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return a, err
	}
	if !hmac.Equal(theirs[:], c.mac("rank", g, a)) {
		_, _ = conn.Write(make([]byte, macSize)) // a false proof tells the visitor that its secret is wrong
		return a, fmt.Errorf("a process that says it is rank %d has another %s: %w", a.Rank, c.identity(), fault.ErrMismatch)
	}
	proved()
	_, err := conn.Write(c.mac("rank 0", g, a))
	return a, err
}

// introduce is the other rank's side of the handshake.
func (c config) introduce(conn net.Conn) error {
	var g greeting
	if err := binary.Read(conn, binary.BigEndian, &g); err != nil {
		return fmt.Errorf("no greeting from rank 0: %w", err)
	}
	if string(g.Magic[:]) != magic {
		return fmt.Errorf("what listens there is no rank 0 that speaks %q: %w", magic, fault.ErrMismatch)
	}
	a := answer{Magic: g.Magic, Rank: uint32(c.rank), Size: uint32(c.size)}
	rand.Read(a.Nonce[:])
	if err := binary.Write(conn, binary.BigEndian, a); err != nil {
		return err
	}
	if _, err := conn.Write(c.mac("rank", g, a)); err != nil {
		return err
	}
	var theirs [macSize]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return fmt.Errorf("no proof from rank 0: %w", err)
	}
	if !hmac.Equal(theirs[:], c.mac("rank 0", g, a)) {
		return fmt.Errorf("rank 0 has another %s: %w", c.identity(), fault.ErrMismatch)
	}
	return nil
}

// identity is what both sides of a handshake must have in common.
func (c config) identity() string {
	if c.job == "" {
		return env.Secret.Name
	}
	return fmt.Sprintf("%s, or is of another job (%s gives this one another place)", env.Secret.Name, env.Rendezvous.Name)
}

// visitor is the outcome of one connection to rank 0. conn is nil if it could not be accepted.
type visitor struct {
	conn net.Conn
	answer
	err     error
	lasting bool // err will occur again: nobody else can come
}

func (v visitor) hangUp() {
	if v.conn != nil {
		v.conn.Close()
	}
}

// host is rank 0's join: it listens until all others are there, and then starts the job on all of them.
func (c config) host(ctx context.Context) (Bootstrap, error) {
	r := newRoot(c.size)
	r.key = c.key()
	if c.peers {
		r.made = make([]byte, len(r.key))
		rand.Read(r.made)
		r.key = r.made
	}
	if c.size == 1 {
		return r, nil
	}
	l, err := c.listen(ctx)
	if errors.Is(err, syscall.EMFILE) {
		err = noDescriptor(err)
	}
	if err != nil {
		return nil, err
	}
	visitors := make(chan visitor)
	greeting, done := context.WithCancel(context.Background())
	r.wg.Go(func() { c.accept(greeting, l, visitors) })
	r.unwatch = watchSilence(c.silenceLimit(), r.connected)
	err = r.gather(ctx, c, l.Addr().String(), visitors)
	if err != nil {
		r.refuse(err)
		r.drop() // the ranks have been told, and those that come now may need the descriptors
		r.rejectLater(visitors, err)
	}
	done()
	l.Close()
	if err != nil {
		r.hangUp()
		return nil, err
	}
	r.startOthers()
	return r, nil
}

// linger is how long rank 0, after it has given up, still tells ranks that come why the job could not start. Tests
// change it.
var linger = notice

// rejectLater tells ranks that have not come yet why the job could not start, if they come within linger.
func (r *root) rejectLater(visitors <-chan visitor, why error) {
	coming := map[int]bool{}
	for rank := 1; rank < r.size; rank++ {
		if r.wires[rank] == nil {
			coming[rank] = true
		}
	}
	over := time.After(linger)
	for len(coming) > 0 {
		select {
		case v := <-visitors:
			if v.err == nil {
				(&wire{Conn: v.conn}).sendNotice(refusal(why))
				delete(coming, int(v.Rank))
			}
			v.hangUp()
		case <-over:
			return
		}
	}
}

// listen makes rank 0's socket. At a path it replaces a socket that a killed process has left and nobody listens on.
func (c config) listen(ctx context.Context) (net.Listener, error) {
	at := c.addr
	if c.bind != "" {
		at = c.bind
	}
	l, err := (&net.ListenConfig{KeepAliveConfig: c.keepAlive()}).Listen(ctx, c.network, at)
	if errors.Is(err, syscall.EADDRINUSE) && c.network == "unix" && c.addr[0] == '/' && c.removeStale(ctx) {
		l, err = new(net.ListenConfig).Listen(ctx, c.network, at)
	}
	if errors.Is(err, syscall.EADDRINUSE) && c.job != "" {
		err = fmt.Errorf("%w: by another job, or a server; %s, the same on all ranks, gives this job another place", err, env.Rendezvous.Name)
	}
	return l, err
}

// removeStale removes the socket at the rendezvous if nobody listens on it and this user may remove it. It first moves
// the socket aside; if that turns out to be another one by then, it moves it back.
func (c config) removeStale(ctx context.Context) bool {
	found, err := os.Lstat(c.addr)
	if err != nil || found.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, c.network, c.addr)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	stale := fmt.Sprintf("%s.%d.stale", c.addr, os.Getpid())
	if os.Rename(c.addr, stale) != nil {
		return false
	}
	moved, err := os.Lstat(stale)
	if err != nil || !os.SameFile(found, moved) {
		_ = os.Link(stale, c.addr) // does not replace a socket that is there by now
		_ = os.Remove(stale)
		return false
	}
	return os.Remove(stale) == nil
}

// stranger returns an error if conn, over a Unix socket, comes from another user.
func (c config) stranger(conn net.Conn) error {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	err := shm.SameUser(u)
	if errors.Is(err, fault.ErrNotSupported) && !c.peers { // the secret must suffice, as over TCP
		return nil
	}
	return err
}

// handshakes are the connections whose handshake is under way, the oldest first. If there are too many, the oldest is
// dropped: an honest visitor finishes quickly or comes again, and a silent one keeps nobody out. A visitor that has
// proved its identity is removed from the list, because from then on it would not come again.
type handshakes struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (s *handshakes) add(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == maxHandshakes {
		s.conns[0].Close()
		s.conns = s.conns[1:]
	}
	s.conns = append(s.conns, conn)
}

func (s *handshakes) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) == 0
}

func (s *handshakes) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(c net.Conn) bool { return c == conn })
}

// accept shakes hands with each visitor until l closes. When ctx ends, it drops the handshakes under way.
func (c config) accept(ctx context.Context, l net.Listener, visitors chan<- visitor) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var now handshakes
	full := 0 // how often in a row there was no descriptor, and no visitor about to give one back
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the visitor left
			if errors.Is(err, syscall.EMFILE) && now.none() {
				full++
			} else {
				full = 0
			}
			select {
			case visitors <- visitor{err: cannotAccept(err), lasting: full >= lastingAfter}:
			case <-ctx.Done():
			}
			time.Sleep(10 * time.Millisecond)
			continue
		}
		full = 0
		if c.stranger(conn) != nil {
			conn.Close()
			continue
		}
		now.add(conn)
		wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
			a, err := c.greet(conn, func() { now.remove(conn) })
			now.remove(conn)
			_ = conn.SetDeadline(time.Time{})
			if !stop() {
				return
			}
			select {
			case visitors <- visitor{conn: conn, answer: a, err: err}:
			case <-ctx.Done():
				conn.Close()
			}
		})
	}
}

// lastingAfter is how often in a row, every 10 ms, there is no descriptor before rank 0 gives up: nothing of the join
// will give one back then.
const lastingAfter = 50

// cannotAccept adds to err, an error of Accept, what the user can do about it.
func cannotAccept(err error) error {
	if errors.Is(err, syscall.EMFILE) {
		return fmt.Errorf("rank 0 needs a descriptor for each process of the job, and has none left (raise `ulimit -n`): %w: %w",
			err, fault.ErrLimit)
	}
	return fmt.Errorf("rank 0 could not take a connection: %w", err)
}

// gather takes visitors in until all ranks are there. Only an authenticated visitor can fail the job. Anything else
// that connects is sent away, and mentioned in the error if the job never completes; so is at, where rank 0 listens.
func (r *root) gather(ctx context.Context, c config, at string, visitors <-chan visitor) error {
	var odd error
	for n := 1; n < c.size; n++ {
		select {
		case v := <-visitors:
			if v.lasting {
				return v.err
			}
			if v.err != nil {
				odd = v.err
				v.hangUp()
				n--
				continue
			}
			if err := r.admit(c, v); err != nil {
				(&wire{Conn: v.conn}).sendNotice(refusal(err))
				v.conn.Close()
				return err
			}
		case <-r.broken:
			return r.reason()
		case <-ctx.Done():
			var missing []int
			for rank := 1; rank < c.size; rank++ {
				if r.wires[rank] == nil {
					missing = append(missing, rank)
				}
			}
			why := c.hint(at)
			if c.network == "tcp" {
				why = fmt.Sprintf(" to %s%s", at, why)
			}
			if odd != nil {
				why += fmt.Sprintf(" (%v)", odd)
			}
			return fmt.Errorf("%s of %d did not come%s: %w", rankList(missing), c.size, why, fault.ErrTimeout)
		}
	}
	return nil
}

// admit gives an authenticated visitor its place.
func (r *root) admit(c config, v visitor) error {
	switch {
	case uint64(v.Size) != uint64(c.size):
		return fmt.Errorf("rank %d has %s=%d, rank 0 has %d: %w", v.Rank, env.Size.Name, v.Size, c.size, fault.ErrMismatch)
	case uint64(v.Rank) >= uint64(c.size):
		return fmt.Errorf("a process says it is rank %d of %d: %w", v.Rank, c.size, fault.ErrMismatch)
	case v.Rank == 0 || r.wires[v.Rank] != nil:
		return fmt.Errorf("two processes say they are rank %d (%s): %w", v.Rank, env.Rank.Name, fault.ErrMismatch)
	}
	r.mu.Lock()
	r.wires[v.Rank] = c.wire(v.conn)
	r.mu.Unlock()
	r.wg.Go(func() { r.read(int(v.Rank)) })
	return nil
}

// refusal tells a rank that the job cannot start; its sequence number says which sentinel err wraps.
func refusal(err error) frame {
	f := frame{kind: kindRefuse, body: []byte(err.Error())}
	f.seq = uint32(max(0, slices.IndexFunc(refusals, func(e error) bool { return errors.Is(err, e) })))
	f.body = f.body[:min(len(f.body), maxText)]
	return f
}

func (f frame) refused() error {
	if f.seq >= uint32(len(refusals)) {
		f.seq = 0
	}
	return &rootError{string(f.body), refusals[f.seq]}
}

// refusals are the sentinels of refusals, by their sequence numbers.
var refusals = []error{fault.ErrMismatch, fault.ErrTimeout, fault.ErrLimit}

// rootError is an error in rank 0's words, which already contain the sentinel's text.
type rootError struct {
	text string
	err  error
}

func (e *rootError) Error() string { return "rank 0 says: " + e.text }
func (e *rootError) Unwrap() error { return e.err }

// name is the host name in the rendezvous, or "" if the rendezvous has an address.
func (c config) name() string {
	host, _, _ := net.SplitHostPort(c.addr)
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

// hint says what to do if other hosts cannot reach at, an address of the rendezvous, because it is loopback. On Debian
// a host's own name resolves to loopback.
func (c config) hint(at string) string {
	a, err := netip.ParseAddrPort(at)
	if err != nil || !a.Addr().Unmap().IsLoopback() {
		return ""
	}
	what := "loopback, which no other host reaches"
	if name := c.name(); name != "" {
		what = name + " resolves to loopback on this host, which no other reaches"
	}
	return fmt.Sprintf(" (%s: if there are other hosts, give rank 0's address in %s)", what, env.Rendezvous.Name)
}

// attempts are the addresses that one attempt to connect tried: there are several if a name has several. Dial tries
// IPv4 and IPv6 at the same time.
type attempts struct {
	mu  sync.Mutex
	all []string
}

func (a *attempts) add(addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.all, addr) {
		a.all = append(a.all, addr)
	}
}

func (a *attempts) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// noRootError is the error of a rank that found no rank 0 at the addresses tried; err is the last attempt's.
func (c config) noRootError(tried []string, err error) error {
	where := ""
	if c.network == "tcp" && len(tried) > 0 {
		hint := c.hint(tried[0])
		if name := c.name(); name != "" && hint == "" && errors.Is(err, syscall.ECONNREFUSED) {
			hint = fmt.Sprintf(" (if it runs, %s may resolve to loopback there: give its address in %s)", name, env.Rendezvous.Name)
		}
		where = " at " + strings.Join(tried, ", ") + hint
	}
	return fmt.Errorf("rank 0 does not listen%s (%v): %w", where, err, fault.ErrTimeout)
}

// dial is the join of every other rank. It retries until rank 0 listens and completes the handshake. If rank 0 stops
// listening after that, it has given up.
func (c config) dial(ctx context.Context) (Bootstrap, error) {
	met := false
	var last error // of the last attempt that ctx did not cut short, if there was one
	var tried []string
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		var now attempts
		d := net.Dialer{KeepAliveConfig: c.keepAlive(), ControlContext: func(_ context.Context, _, addr string, _ syscall.RawConn) error {
			now.add(addr)
			return nil
		}}
		conn, err := d.DialContext(ctx, c.network, c.addr)
		if err == nil {
			met = true
			var b Bootstrap
			if b, err = c.enter(ctx, conn); !errors.Is(err, errHungUp) {
				return b, err
			}
		} else if met && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)) {
			return nil, lost(0, "listened and does not any more: it has given up, or ended").on(c.rank)
		}
		if errors.Is(err, syscall.EMFILE) {
			return nil, noDescriptor(err)
		}
		if last == nil || ctx.Err() == nil {
			last, tried = err, now.list()
		}
		select {
		case <-ctx.Done():
			return nil, c.noRootError(tried, last)
		case <-time.After(wait):
		}
	}
}

func noDescriptor(err error) error {
	return fmt.Errorf("no file descriptor left (raise `ulimit -n`): %w: %w", err, fault.ErrLimit)
}

// errHungUp means that a connection ended before both sides had proved their identity.
var errHungUp = errors.New("it hung up during the handshake")

// enter joins the job over conn, and takes conn over.
func (c config) enter(ctx context.Context, conn net.Conn) (Bootstrap, error) {
	if err := c.stranger(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("what listens there is not of this job: %w", err)
	}
	w := c.wire(conn)
	unwatch := watchSilence(w.limit, func() []*wire { return []*wire{w} })
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := c.introduce(conn)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", errHungUp, err)
	}
	var made []byte
	if err == nil {
		made, err = c.awaitGo(w)
	}
	if err == nil && stop() {
		key := c.key()
		if c.peers {
			key = made
		}
		return newLeaf(c.rank, c.size, key, w, unwatch), nil
	}
	unwatch()
	conn.Close()
	if w.isSilent(err) {
		return nil, lost(0, w.silentText()).on(c.rank)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		err = fmt.Errorf("rank 0 did not say that all are there: %w", fault.ErrTimeout)
	}
	return nil, err
}

// awaitGo waits until rank 0 says that all are there. It returns the key that rank 0 has made, if it has.
func (c config) awaitGo(w *wire) (made []byte, err error) {
	f, err := readFrame(w)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || w.isSilent(err) {
			return nil, err
		}
		return nil, lost(0, "ended while the job was starting: "+err.Error()).on(c.rank)
	}
	switch f.kind {
	case kindGo:
		return f.body, nil
	case kindRefuse:
		return nil, f.refused()
	case kindLost, kindAbort:
		cause, err := f.decode(c.size)
		if err != nil {
			return nil, err
		}
		return nil, cause.on(c.rank)
	}
	return nil, fmt.Errorf("rank 0 sent a frame of kind %d before the start: %w", f.kind, fault.ErrMismatch)
}
