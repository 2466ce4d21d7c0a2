// Package kernels holds the collectives' device kernels: CUDA C++ in src, built into PTX, which the driver assembles
// for the device when it is first needed. A kernel is one rank's part of one operation. It meets the other ranks'
// kernels through memory alone, the device areas that all of them have mapped, so that the host only launches it: on
// all ranks the same kernels, with the same grids, in the same order. src/abi.h says what host and kernels agree on.
package kernels

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// The kernels by name. OneShot, Packets, Lines, TwoShot, Group and Ring reduce, and there are some for each type of
// elements; see kernelType. The others take bytes.
const (
	OneShot     = "oneshot"      // ALL_REDUCE and REDUCE of what a row holds: packets to every rank that wants the result
	Packets     = "packets"      // ALL_REDUCE, REDUCE_SCATTER and REDUCE with slices of what half a row holds
	Lines       = "lines"        // the same, of any size, over links that carry lines whole (Params.SetLines)
	TwoShot     = "twoshot"      // the same, of any size
	Group       = "group"        // up to MaxGroup of ALL_REDUCE, of one type whose data fit a row, with GroupParams
	Ring        = "ring"         // ALL_REDUCE of any size, along a ring of the ranks; of bools two at least
	Move        = "move"         // ALL_GATHER, BROADCAST, GATHER, SCATTER and ALL_TO_ALL of any size
	MovePackets = "move_packets" // the same, with what a row holds from one rank to another
	MoveLines   = "move_lines"   // the same, of any size, over links that carry lines whole (Params.SetLines)
	Broadcast   = "broadcast"    // BROADCAST of any size, which the ranks pass on to each other
	MoveV       = "move_v"       // ALL_GATHER_V, GATHER_V, SCATTER_V and ALL_TO_ALL_V, with VectorParams
	Barrier     = "barrier"      // BARRIER; with a signature of kind 0, this rank's refusal of whatever the peers do
	Channel     = "channel"      // steps between two ranks, with ChannelParams
	Messages    = "messages"     // sends and receives, with MailParams
)

// MaxThreads is the most threads that a block of these kernels can have, since more would not hide more; the
// fewest are as many as there are ranks, and Narrow.
const MaxThreads = 512

// Set is the kernels of one device. A module is loaded by Load, or when it is first asked for, when the driver may wait
// until no kernel runs any more. Any goroutine may use it.
type Set struct {
	ctx *cuda.Context

	loading sync.Mutex // held to change what is below
	mu      sync.Mutex // and to look at it; what is not loaded waits for nobody's loading

	modules   map[string]*cuda.Module // nil once closed
	functions map[string]*cuda.Function
}

// New makes the set of ctx's device, and loads nothing. The caller closes it before ctx.
func New(ctx *cuda.Context) *Set {
	return &Set{ctx: ctx, modules: map[string]*cuda.Module{}, functions: map[string]*cuda.Function{}}
}

// kernelType is the type whose kernels reduce elements of type t: unsigned integers' also the signed ones of their width,
// and uint8's bools as well. The kernels look at the signature.
func kernelType(t dtype.Type) dtype.Type {
	switch t {
	case dtype.Int8, dtype.Bool:
		return dtype.Uint8
	case dtype.Int16:
		return dtype.Uint16
	case dtype.Int32:
		return dtype.Uint32
	case dtype.Int64:
		return dtype.Uint64
	}
	return t
}

// entry is the module of a kernel, and what it is called there. up is the number of ranks that it is made for. For more
// than Narrow there are no Packets, Lines, MoveLines and Group.
func entry(name string, t dtype.Type, up int) (module, kernel string, err error) {
	switch name {
	case OneShot, Packets, Lines, TwoShot, Group, Ring:
		if !t.Valid() {
			return "", "", fmt.Errorf("no kernel for elements of %v: %w", t, fault.ErrArgument)
		}
		t = kernelType(t)
		if up > Narrow {
			return fmt.Sprintf("wide_%v", t), fmt.Sprintf("ubc_wide_%s_%v", name, t), nil
		}
		if name == Ring || name == Group {
			return fmt.Sprintf("%s_%v", name, t), fmt.Sprintf("ubc_%s_%v", name, t), nil
		}
		return fmt.Sprintf("reduce_%v_%d", t, up), fmt.Sprintf("ubc_%s_%v_%d", name, t, up), nil
	case Channel: // which has two ranks, whatever there are
		return name, "ubc_" + name, nil
	case Move, MovePackets, MoveLines, Barrier, Broadcast, MoveV, Messages:
		module = name
		if name == MovePackets || name == MoveLines || name == Barrier {
			module = Move
		}
		if up > Narrow {
			return "wide_" + module, "ubc_wide_" + name, nil
		}
		return module, "ubc_" + name, nil
	}
	return "", "", fmt.Errorf("no kernel %q: %w", name, fault.ErrArgument)
}

// Load loads all that communicators of so many ranks use, rings only if they do, so that nothing has to be loaded while
// kernels run. The first time on a machine the driver's assembler takes some tenths of a second for each module, as many
// at a time as there are processors; then it reads its cache. Once ctx has ended no other module is begun.
func (s *Set) Load(ctx context.Context, ranks int, rings bool) error {
	sets := []int{ranks}
	if ranks > Narrow { // also what parts of the communicator have, some of which may be made while kernels run
		sets = []int{ranks, Narrow}
	}
	var all []wanted
	for _, up := range sets {
		reductions := []string{TwoShot, OneShot}
		rest := []string{Barrier, Move, MovePackets, Broadcast, MoveV, Channel, Messages}
		if up <= Narrow {
			reductions, rest = append(reductions, Packets, Lines, Group), append(rest, MoveLines)
		}
		if rings {
			reductions = append(reductions, Ring)
		}
		add := func(name string, t dtype.Type) error {
			module, kernel, err := entry(name, t, upTo(up))
			all = append(all, wanted{module, kernel})
			return err
		}
		for _, t := range dtype.All() { // first, since they take longest
			for _, name := range reductions {
				if err := add(name, t); err != nil {
					return err
				}
			}
		}
		for _, name := range rest {
			if err := add(name, dtype.Invalid); err != nil {
				return err
			}
		}
	}
	return s.load(ctx, all...)
}

// wanted is a kernel and the module that it is in.
type wanted struct{ module, kernel string }

// load loads those of the kernels that are not loaded. The error is of the first module that could not be, and then none
// is loaded whose module was not.
func (s *Set) load(ctx context.Context, all ...wanted) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.modules == nil {
		return fmt.Errorf("the set of kernels: %w", fault.ErrClosed)
	}
	var missing []string
	for _, w := range all {
		if s.modules[w.module] == nil && !slices.Contains(missing, w.module) {
			missing = append(missing, w.module)
		}
	}
	made, err := s.assemble(ctx, missing)
	s.mu.Lock()
	maps.Copy(s.modules, made)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, w := range all {
		if s.functions[w.kernel] != nil {
			continue
		}
		f, err := s.modules[w.module].Function(w.kernel)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.functions[w.kernel] = f
		s.mu.Unlock()
	}
	return nil
}

// assemble makes modules, on all processors, in this order. Also with an error it returns those that it has made.
func (s *Set) assemble(ctx context.Context, names []string) (map[string]*cuda.Module, error) {
	modules, errs := make([]*cuda.Module, len(names)), make([]error, len(names))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(len(names), runtime.NumCPU()) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
				if modules[i], errs[i] = s.module(ctx, names[i]); errs[i] != nil {
					errs[i] = fmt.Errorf("kernels of %s: %w", names[i], errs[i])
					next.Store(int64(len(names))) // the others would fail too, or are of no use
				}
			}
		})
	}
	workers.Wait()
	made := map[string]*cuda.Module{}
	var first error
	for i, m := range modules {
		if m != nil {
			made[names[i]] = m
		}
		first = cmp.Or(first, errs[i])
	}
	return made, first
}

func (s *Set) module(ctx context.Context, name string) (*cuda.Module, error) {
	if ctx.Err() != nil {
		return nil, reason.Ended(ctx)
	}
	text, err := source(name, s.ctx.Early())
	if err != nil {
		return nil, err
	}
	return s.ctx.LoadModule(text)
}

// find is a kernel that has been loaded, for so many ranks or more, or nil.
func (s *Set) find(name string, t dtype.Type, ranks int) (*cuda.Function, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range made {
		if up < upTo(ranks) || (up > Narrow) != (ranks > Narrow) { // areas differ
			continue
		}
		_, kernel, err := entry(name, t, up)
		if err != nil {
			return nil, err
		}
		if f := s.functions[kernel]; f != nil {
			return f, nil
		}
	}
	return nil, nil
}

// Kernel is the kernel of that name for so many ranks, and, if it reduces, for elements of type t: one that is made for
// more ranks, and a little slower, if that is loaded and the other is not. The Function goes with the Set.
func (s *Set) Kernel(name string, t dtype.Type, ranks int) (*cuda.Function, error) {
	if f, err := s.find(name, t, ranks); f != nil || err != nil {
		return f, err
	}
	module, kernel, err := entry(name, t, upTo(ranks))
	if err != nil {
		return nil, err
	}
	if err := s.load(context.Background(), wanted{module, kernel}); err != nil {
		return nil, err
	}
	return s.find(name, t, ranks)
}

// made are the numbers of ranks that reductions are made for.
var made = []int{2, 4, Narrow, MaxRanks}

// upTo is the least of them for so many ranks.
func upTo(ranks int) int {
	for _, n := range made {
		if ranks <= n {
			return n
		}
	}
	return MaxRanks
}

// Close unloads the modules, whose kernels must not be running. Closing it again is harmless.
func (s *Set) Close() error {
	s.loading.Lock()
	defer s.loading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.modules {
		errs = append(errs, m.Close())
	}
	s.modules, s.functions = nil, nil
	return errors.Join(errs...)
}
