package procs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/team"
)

// arena is what the link of an arena's descriptor says (package mem makes arenas, by hw/shm).
const arena = "/memfd:ubcoll-arena (deleted)"

// most is how many operations of each rank are read.
const most = 8

// Find returns the processes of this user, for root those of all users, which have open communicators; of those in pids, if
// there are any. What ends meanwhile is left out.
func Find(pids ...int) ([]*Process, Hidden, error) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, 0, fmt.Errorf("/proc is not that of this process's pid namespace: mount it there (unshare --mount-proc): %w", fs.ErrPermission)
	}
	names := make([]string, len(pids))
	for i, pid := range pids {
		names[i] = strconv.Itoa(pid)
	}
	if len(pids) == 0 {
		all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
		for _, name := range all {
			names = append(names, filepath.Base(name))
		}
	}
	s := search{at: map[place]*file{}}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			s.look(pid)
		}
	}
	return s.read(), s.hidden, nil
}

// search is the state of Find.
type search struct {
	files  []*file // in the order of processes and descriptors
	at     map[place]*file
	hidden Hidden
}

type place struct{ dev, ino uint64 }

// file is an arena. Its own process has it open, and for a moment one that maps it, or a child that was forked.
type file struct {
	place
	holders []holder
}

type holder struct {
	pid  int
	uid  uint32
	path string
}

// look notes the arenas that a process has open.
func (s *search) look(pid int) {
	folder := fmt.Sprintf("/proc/%d", pid)
	uid, ok := owner(folder)
	if me := os.Geteuid(); !ok || me != 0 && uint32(me) != uid {
		return
	}
	d, err := os.Open(folder + "/fd")
	if err == nil {
		defer d.Close()
		var names []string
		names, err = d.Readdirnames(-1)
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) // as numbers
		for _, name := range names {
			path := folder + "/fd/" + name
			link, e := os.Readlink(path)
			if errors.Is(e, fs.ErrPermission) {
				err = e
				break
			}
			if e != nil || link != arena {
				continue
			}
			st, e := os.Stat(path)
			if e != nil {
				continue
			}
			at := placeOf(st)
			f := s.at[at]
			if f == nil {
				f = &file{place: at}
				s.at[at], s.files = f, append(s.files, f)
			}
			f.holders = append(f.holders, holder{pid, uid, path})
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		s.hidden++
	}
}

// owner is the user of a process.
func owner(folder string) (uid uint32, ok bool) {
	st, err := os.Stat(folder)
	if err != nil {
		return 0, false
	}
	return st.Sys().(*syscall.Stat_t).Uid, true
}

func placeOf(st os.FileInfo) place {
	sys := st.Sys().(*syscall.Stat_t)
	return place{sys.Dev, sys.Ino}
}

// read reads what the arenas have.
func (s *search) read() []*Process {
	found := map[int]*Process{}
	names := map[int][]int{}
	for _, f := range s.files {
		for _, area := range f.areas() {
			// The process that made the area knows itself by its number in it, perhaps of another namespace. If it is not here, it
			// has ended, and somebody else has not closed its arena yet.
			i := slices.IndexFunc(f.holders, func(h holder) bool {
				if names[h.pid] == nil {
					names[h.pid] = namesOf(h.pid)
				}
				return slices.Contains(names[h.pid], area.PID)
			})
			if i < 0 {
				continue
			}
			h := f.holders[i]
			p := found[h.pid]
			if p == nil {
				p = &Process{PID: h.pid, UID: h.uid, Program: program(h.pid), State: procfs.StateOf(h.pid)}
				found[h.pid] = p
			}
			p.Ranks = append(p.Ranks, area)
			p.writes = p.writes || area.Dumps
		}
	}
	var all []*Process
	for _, p := range found {
		if p.State != procfs.Vanished {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, order)
	return all
}

// areas reads the areas of open communicators in an arena, by the first descriptor of it that is still there.
func (f *file) areas() []team.Found {
	for _, h := range f.holders {
		// The descriptor may be another file by now. One that is not regular must not make the open wait.
		in, err := os.OpenFile(h.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		st, err := in.Stat()
		if err != nil || !st.Mode().IsRegular() || placeOf(st) != f.place {
			in.Close()
			continue
		}
		all, _ := team.Find(in, data(in), most) // after an error: what was found before it
		in.Close()
		return all
	}
	return nil
}

// Whence of lseek(2).
const seekData, seekHole = 3, 4

// data tells where a file has data, which a look at a hole would not change, but take long.
func data(f *os.File) func(at int64) (begin, end int64, err error) {
	return func(at int64) (begin, end int64, err error) {
		begin, err = f.Seek(at, seekData)
		if err == nil {
			end, err = f.Seek(begin, seekHole)
		}
		if errors.Is(err, syscall.ENXIO) { // at the end, or what was there has been given back
			return 0, 0, io.EOF
		}
		return begin, max(end, begin+1), err
	}
}

// namesOf is the numbers of a process, in this namespace and those below it.
func namesOf(pid int) []int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, ok := strings.Cut(string(b), "\nNSpid:")
	if !ok { // it is gone, or the kernel tells no more
		return []int{pid}
	}
	line, _, _ := strings.Cut(rest, "\n")
	var all []int
	for _, s := range strings.Fields(line) {
		if n, err := strconv.Atoi(s); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// program is the name of a process, which the kernel cuts to 15 bytes. Its arguments are longer, but asking for them waits if
// the process is stuck in a change of its memory map.
func program(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}

// Dump sends the process SIGUSR2, at which it writes dumps, if it has said that it does; else it returns ErrSilent.
func (p *Process) Dump() error {
	h, err := os.FindProcess(p.PID) // where the kernel can, this holds the process, not its number
	if err != nil {
		return err
	}
	defer h.Release()
	now, _, err := Find(p.PID)
	if err != nil {
		return err
	}
	if len(now) == 0 || !now[0].writes {
		return ErrSilent
	}
	return h.Signal(syscall.SIGUSR2)
}

// Variable is the value of an environment variable with which the process was started, if that can be read.
func (p *Process) Variable(name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if value, ok := bytes.CutPrefix(v, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// Path is a path as the process means it.
func (p *Process) Path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID))
	if err != nil {
		return path
	}
	return filepath.Join(dir, path)
}
