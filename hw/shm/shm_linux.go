package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// PageSize is the size of a page.
var PageSize = os.Getpagesize()

// RoundUp rounds n up to whole pages.
func RoundUp(n int) int { return (n + PageSize - 1) &^ (PageSize - 1) }

// Self is this process.
var Self = sync.OnceValues(func() (Process, error) {
	start, _, err := status("self")
	p := Process{PID: os.Getpid(), Start: start}
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) == nil {
		p.Namespace = uint32(st.Ino) // the kernel's inode number has 32 bits
	}
	return p, err
})

// foreignProc reports whether /proc belongs to another pid namespace than this process, as after unshare(1) without
// --mount-proc.
var foreignProc = sync.OnceValue(func() bool {
	name, err := os.Readlink("/proc/self")
	return err == nil && name != strconv.Itoa(os.Getpid())
})

// visible returns why this process cannot look up p by its process id, or nil.
func (p Process) visible() error {
	self, err := Self()
	switch {
	case err != nil:
		return err
	case p.Namespace != 0 && p.Namespace != self.Namespace:
		return fmt.Errorf("%v is in another pid namespace: %w", p, os.ErrPermission)
	case foreignProc():
		return fmt.Errorf("/proc is not that of this process's pid namespace: %w", os.ErrPermission)
	}
	return nil
}

// status returns when a process started, and whether it is ending or a zombie; pid may be "self".
func status(pid any) (start uint64, ending bool, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%v/stat", pid))
	if err != nil {
		return 0, false, limit("identify a process", 0, err)
	}
	// The command name, field 2, is in parentheses and may contain anything, so count the fields after it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, false, fmt.Errorf("/proc/%v/stat has only %d fields", pid, len(f)+2)
	}
	start, err1 := strconv.ParseUint(f[19], 10, 64)
	flags, err2 := strconv.ParseUint(f[6], 10, 64)
	return start, flags&exiting != 0 || f[0] == "Z" || f[0] == "X", errors.Join(err1, err2)
}

// exiting is the kernel's flag of a thread that is ending (PF_EXITING). The kernel sets it before it closes the thread's
// descriptors, and only after that, sometimes much later, is the process a zombie and does its pidfd tell.
const exiting = 1 << 2

// Check reports whether p still runs. An error that wraps fault.ErrPeerLost says that it does not: it has ended or is
// ending, and perhaps has no descriptors any more. One that wraps os.ErrPermission says that this process cannot see p.
func (p Process) Check() error {
	if err := p.visible(); err != nil {
		return err
	}
	start, ending, err := status(p.PID)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%v is gone: %w", p, fault.ErrPeerLost)
	case err != nil:
		return fmt.Errorf("%v: %w", p, err)
	case start != p.Start:
		return fmt.Errorf("%v is another process now: %w", p, fault.ErrPeerLost)
	case ending:
		return fmt.Errorf("%v is ending: %w", p, fault.ErrPeerLost)
	}
	return nil
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a memory file of n bytes, rounded up to whole pages. Its pages are allocated, so a later touch cannot
// fail for lack of memory. It is sealed, so nobody can shrink it under a peer's mapping (which would raise SIGBUS). It
// has no name in any file system, and goes with its last descriptor and mapping.
func Create(name string, n int) (*File, error) {
	if n <= 0 {
		return nil, fmt.Errorf("a memory file of %d bytes: %w", n, fault.ErrArgument)
	}
	self, err := Self()
	if err != nil {
		return nil, err
	}
	n = RoundUp(n)
	fd, err := unix.MemfdCreate("ubcoll-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, limit("memfd_create", n, err)
	}
	fdtrace.Open(fd, "memory file")
	f := &File{fd: fd, ref: Ref{Process: self, FD: fd, Size: n}}
	if err := f.prepare(n); err != nil {
		closeFD(fd)
		return nil, err
	}
	return f, nil
}

func (f *File) prepare(n int) error {
	if err := f.Fill(0, n); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(f.fd), unix.F_ADD_SEALS, seals); err != nil {
		return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	f.ref.Inode = st.Ino
	return nil
}

// Fill allocates the pages of [off, off+n) that Punch gave back.
func (f *File) Fill(off, n int) error {
	if err := room(n); err != nil {
		return limit("fallocate", n, err)
	}
	if err := retry(func() error { return unix.Fallocate(f.fd, 0, int64(off), int64(n)) }); err != nil {
		return limit("fallocate", n, err)
	}
	return nil
}

// Punch gives the pages of [off, off+n) back to the system. Mappings stay, in all processes, and read zeros there. A
// write there gets a new page, or SIGBUS if the system has none; Fill prevents that.
func (f *File) Punch(off, n int) error {
	err := retry(func() error {
		return unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
	})
	return os.NewSyscallError("fallocate(PUNCH_HOLE)", err)
}

// room refuses sizes for which there is no memory. fallocate would not fail on them: the kernel would kill this process
// or others.
func room(n int) error {
	if n > freeMemory(n) {
		return unix.ENOMEM
	}
	return nil
}

// limit returns err with the name of the resource that ran out, if one did. n is the size that the call asked for, 0 if
// none.
func limit(call string, n int, err error) error {
	if n > 0 {
		call = fmt.Sprintf("%s of %d bytes of shared memory", call, n)
	}
	what := ""
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		what = "no file descriptor left (raise `ulimit -n`)"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		what = "no memory left (see `free`, the container's memory limit, and `ulimit -v`)"
	case errors.Is(err, unix.EFBIG):
		what = "file size limit (raise `ulimit -f`)"
	default:
		return fmt.Errorf("%s: %w", call, err)
	}
	return fmt.Errorf("%s: %w: %s: %w", call, err, what, fault.ErrLimit)
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// Open opens a peer's memory file through /proc. It checks that the file is the one that r names, that the process that
// r names owns it, and that it is sealed. An error that wraps os.ErrPermission means that this process may not open it:
// take the descriptor over a socket and use Adopt.
func Open(r Ref) (*File, error) {
	if err := r.Process.visible(); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", r.Process.PID, r.FD)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(r, path, err)
	}
	fdtrace.Open(fd, "peer's memory file")
	f, err := Adopt(fd, r)
	if err != nil {
		return nil, err
	}
	// Check after the open: if another process had taken the process id before it, the start time differs.
	if err := r.Process.Check(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openError(r Ref, path string, err error) error {
	if err == unix.EMFILE || err == unix.ENFILE {
		return limit("open "+path, 0, err)
	}
	if perr := r.Process.Check(); perr != nil {
		return perr
	}
	switch err {
	case unix.ENOENT, unix.ENXIO, unix.EISDIR, unix.ETXTBSY: // closed, a socket, a folder, a program
		return fmt.Errorf("descriptor %d of %v is no memory file (%w): %w", r.FD, r.Process, err, fault.ErrStale)
	}
	return &os.PathError{Op: "open", Path: path, Err: err}
}

// Adopt takes over fd, which came from a peer. It makes the checks of Open that are possible for a descriptor, and
// closes fd if they fail.
func Adopt(fd int, r Ref) (*File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return nil, os.NewSyscallError("fstat", err)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case st.Ino != r.Inode || st.Size != int64(r.Size):
		err = fmt.Errorf("descriptor %d of %v is another file now: %w", r.FD, r.Process, fault.ErrStale)
	case err != nil:
		err = fmt.Errorf("descriptor %d of %v is no memory file: %w", r.FD, r.Process, fault.ErrStale)
	case got&seals != seals:
		err = fmt.Errorf("descriptor %d of %v is not sealed: %w", r.FD, r.Process, fault.ErrStale)
	}
	if err != nil {
		closeFD(fd)
		return nil, err
	}
	return &File{fd: fd, ref: r}, nil
}

// Close closes the descriptor. Mappings stay.
func (f *File) Close() error { return closeFD(f.fd) }

func closeFD(fd int) error {
	fdtrace.Close(fd)
	return os.NewSyscallError("close", unix.Close(fd))
}

// Map maps n bytes of f from offset off, both whole pages, for reading and writing. With populate it fills the page
// tables, so no page fault happens later.
func (f *File) Map(off, n int, populate bool) (unsafe.Pointer, error) {
	if err := f.inside(off, n); err != nil {
		return nil, err
	}
	return f.mapAt(nil, off, n, unix.PROT_READ|unix.PROT_WRITE, 0, populate)
}

// MapReadOnly maps as Map does, but only for reading: a store faults.
func (f *File) MapReadOnly(off, n int) (unsafe.Pointer, error) {
	if err := f.inside(off, n); err != nil {
		return nil, err
	}
	return f.mapAt(nil, off, n, unix.PROT_READ, 0, false)
}

// MapAt maps as Map does, populated, over part of a Reservation. After an error the part is reserved as before. If the
// error wraps ErrLost, another thread may have mapped something there: neither use nor unmap the part.
func (f *File) MapAt(addr unsafe.Pointer, off, n int) error {
	if err := f.inside(off, n); err != nil {
		return err
	}
	_, err := f.mapAt(addr, off, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_FIXED, true)
	if err != nil && !refill(addr, n) {
		err = fmt.Errorf("%w; %w", err, ErrLost)
	}
	return err
}

// refill reserves the hole that a failed MAP_FIXED may leave: the kernel may find that it cannot make a mapping after
// it has removed the old one. It returns false if something is mapped there: the old mapping, or one that another
// thread has made meanwhile. Nobody can tell which.
func refill(p unsafe.Pointer, n int) bool {
	got, err := unix.MmapPtr(-1, 0, p, uintptr(n), unix.PROT_NONE, reserved|unix.MAP_FIXED_NOREPLACE)
	if err == nil && got != p { // before Linux 4.17 the address is only a hint
		unix.MunmapPtr(got, uintptr(n))
	}
	return err == nil && got == p
}

func (f *File) inside(off, n int) error {
	if off < 0 || n <= 0 || off%PageSize != 0 || n%PageSize != 0 || off > f.Size() || n > f.Size()-off {
		return fmt.Errorf("[%d,+%d) of a memory file of %d bytes: %w", off, n, f.Size(), fault.ErrArgument)
	}
	return nil
}

func (f *File) mapAt(addr unsafe.Pointer, off, n, prot, flags int, populate bool) (unsafe.Pointer, error) {
	if populate {
		flags |= unix.MAP_POPULATE
	}
	p, err := unix.MmapPtr(f.fd, int64(off), addr, uintptr(n), prot, unix.MAP_SHARED|flags)
	if err != nil {
		if err == unix.ENOMEM {
			return nil, fmt.Errorf("mmap of %d bytes: %w: too many mappings (`sysctl vm.max_map_count`) or no address space (`ulimit -v`): %w",
				n, err, fault.ErrLimit)
		}
		return nil, limit("mmap", n, err)
	}
	return p, nil
}

// Unmap removes a mapping or reservation.
func Unmap(p unsafe.Pointer, n int) error {
	return os.NewSyscallError("munmap", unix.MunmapPtr(p, uintptr(n)))
}

const reserved = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// Reserve takes n bytes of address space without memory: a touch faults.
func Reserve(n int) (unsafe.Pointer, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_NONE, reserved)
	if err != nil {
		return nil, limit("mmap(PROT_NONE)", n, err)
	}
	return p, nil
}

// Retire makes [p, p+n), part of a reservation, empty again, so that a stale pointer faults. After an error the old
// mapping stays.
func Retire(p unsafe.Pointer, n int) error {
	_, err := unix.MmapPtr(-1, 0, p, uintptr(n), unix.PROT_NONE, reserved|unix.MAP_FIXED)
	if err != nil && refill(p, n) {
		return nil
	}
	return os.NewSyscallError("mmap(PROT_NONE)", err)
}

// Lock keeps the pages of [p, p+n), whole pages of a populated mapping, in memory: all of them or none. fault.ErrLimit
// says which limit leaves no room: RLIMIT_MEMLOCK (ulimit -l), which does not bind processes with CAP_IPC_LOCK, or that
// on mappings. Locks do not nest.
func Lock(p unsafe.Pointer, n int) error {
	// ONFAULT still locks pages that are mapped at once. Plain mlock would also visit each page to fault it in.
	_, _, err := unix.Syscall(unix.SYS_MLOCK2, uintptr(p), uintptr(n), unix.MLOCK_ONFAULT)
	switch err {
	case 0:
		return nil
	case unix.ENOMEM, unix.EPERM, unix.EAGAIN:
		Unlock(p, n) // the pages locked before the failure
		return fmt.Errorf("mlock of %d bytes: %w: %s: %w", n, err, lockLimit(uint64(n)), fault.ErrLimit)
	}
	return os.NewSyscallError("mlock2", err)
}

// lockLimit says what keeps n more bytes from being locked: mlock fails alike at its limit and, since locking splits
// mappings, at theirs (mlock(2), ENOMEM).
func lockLimit(n uint64) string {
	const mappings = "there may be too many mappings (`sysctl vm.max_map_count`)"
	var r unix.Rlimit
	locked, err := lockedBytes()
	if err = errors.Join(err, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r)); err != nil {
		return fmt.Sprintf("RLIMIT_MEMLOCK cannot be told: %v", err)
	}
	switch {
	case r.Cur == unix.RLIM_INFINITY:
		return "RLIMIT_MEMLOCK is unlimited: " + mappings
	case locked+n <= r.Cur:
		return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, of which %d are locked, and has room: %s", r.Cur, locked, mappings)
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes for all of the process, of which %d are locked: raise it to %d or more "+
		"(`ulimit -l`, memlock in limits.conf, LimitMEMLOCK= of a systemd unit, --ulimit memlock= of a container)", r.Cur,
		locked, locked+n)
}

// lockedBytes is how much this process has locked.
func lockedBytes() (n uint64, err error) {
	b, err := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(b), "\nVmLck:")
	if err == nil {
		_, err = fmt.Sscan(rest, &n)
	}
	return n << 10, err
}

// Unlock undoes Lock.
func Unlock(p unsafe.Pointer, n int) error {
	return os.NewSyscallError("munlock", unix.Munlock(unsafe.Slice((*byte)(p), n)))
}

// Populate fills the page tables of [p, p+n), whole pages of a mapping. Before Linux 5.14 it touches each page instead.
func Populate(p unsafe.Pointer, n int) {
	b := unsafe.Slice((*byte)(p), n)
	if unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil {
		return
	}
	for i := 0; i < n; i += PageSize {
		atomic.LoadUint32((*uint32)(unsafe.Add(p, i))) // a load that no compiler leaves out
	}
}

// Yield gives the processor to another process of the same Group.
func Yield() {
	// Syscall tells the runtime, so that a stop-the-world does not wait until this thread runs again.
	unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// Nap gives the processor to processes of other Groups, which Yield does not. It sleeps for the shortest time possible,
// which the kernel rounds up to 50 us, its timer slack. With a smaller slack, measurements showed that the sleeper took
// the processor back before the others had done anything.
func Nap() {
	ts := unix.Timespec{Nsec: 1}
	unix.Syscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// Group names the group of processes that share processors with others as if they were one: those of a session, if the
// kernel groups sessions (sched_autogroup, sched(7)). It is "" if the kernel does not, or if the process is older than
// any session.
func Group() string {
	if b, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled"); err != nil || strings.TrimSpace(string(b)) != "1" {
		return ""
	}
	b, err := os.ReadFile("/proc/self/autogroup")
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b), " ")
	return name
}

// FutexWait sleeps while *word is val, until a FutexWake, for d nanoseconds at most.
func FutexWait(word *uint32, val uint32, d int64) {
	ts := unix.NsecToTimespec(d)
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 0 /* FUTEX_WAIT, shared */, uintptr(val),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes all threads that sleep on word, in any process that maps it.
func FutexWake(word *uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 1 /* FUTEX_WAKE, shared */, 1<<30, 0, 0, 0)
}

// HostID tells hosts apart: the kernel's boot id, the network namespace and the host's name. Equal HostIDs mean that
// two processes may be on one host; they are if they can map each other's memory. Values that the system does not tell
// are left out. The pid namespace is not included, since sockets can pass descriptors between those.
func HostID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	name, err := os.Hostname()
	net, _ := os.Readlink("/proc/self/ns/net")
	return name + "/" + strings.TrimSpace(string(b)) + "/" + net, err
}

// Have checks that the system has what this package needs.
func Have() hw.Probe {
	f, err := Create("probe", PageSize)
	if err == nil {
		err = f.Close()
	}
	return hw.Probe{Name: "shared memory files", Err: err}
}
