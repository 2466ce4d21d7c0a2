// Package kernels holds the device kernels: CUDA C++ in src, compiled to PTX, which the driver assembles for the device
// when it is first needed. A kernel is one rank's part of one operation. It meets the other ranks' kernels only through
// memory, the device areas that all ranks have mapped. The host only launches it: on all ranks the same kernels, with
// the same grids, in the same order. src/abi.h defines the interface between host and kernels.
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

// The kernels by name. OneShot, Packets, Lines, TwoShot, Group, Ring and NVLS reduce, and have variants for the element
// types; see kernelType. The others move bytes.
const (
	OneShot     = "oneshot"      // ALL_REDUCE and REDUCE of data that fits a row: packets to ranks that get the result
	Packets     = "packets"      // ALL_REDUCE, REDUCE_SCATTER and REDUCE with slices that fit half a row
	Lines       = "lines"        // the same, of any size, over links that carry lines (Params.SetLines)
	TwoShot     = "twoshot"      // the same, of any size
	Group       = "group"        // up to MaxGroup ALL_REDUCEs of one type whose data fits a row, with GroupParams
	Ring        = "ring"         // ALL_REDUCE of any size, along a ring of the ranks; of bools at least two
	Move        = "move"         // ALL_GATHER, BROADCAST, GATHER, SCATTER and ALL_TO_ALL of any size
	MovePackets = "move_packets" // the same, if what one rank sends another fits a row
	MoveLines   = "move_lines"   // the same, of any size, over links that carry lines (Params.SetLines)
	Broadcast   = "broadcast"    // BROADCAST of any size; ranks pass data on to each other
	MoveV       = "move_v"       // ALL_GATHER_V, GATHER_V, SCATTER_V and ALL_TO_ALL_V, with VectorParams
	Barrier     = "barrier"      // BARRIER; with a signature of kind 0, this rank's refusal of whatever its peers do
	NVLS        = "nvls"         // ALL_REDUCE and REDUCE_SCATTER of any size, through a multicast object: see NVLSReduces
	NVLSMove    = "nvls_move"    // ALL_GATHER and BROADCAST of any size, through a multicast object
	Carry       = "carry"        // an operation's data between the device and the host's memory, with CarryParams
	CarryStep   = "carry_step"   // one step of that, between other kernels, with CarryStepParams
	Copier      = "copier"       // copies that the host tells it one by one, with CopierParams
	Channel     = "channel"      // steps between two ranks, with ChannelParams
	Messages    = "messages"     // sends and receives, with MailParams
)

// MaxThreads is the largest block of these kernels; more threads would not hide more latency. A block needs at least as
// many threads as there are ranks, and at least Narrow.
const MaxThreads = 512

// Set is the kernels of one device. Load loads modules, and so does Kernel when it needs one, but then the driver may
// wait until no kernel runs. Any goroutine may use a Set.
type Set struct {
	ctx *cuda.Context

	loading sync.Mutex // held to change the fields below
	mu      sync.Mutex // held to access the fields below, so that looking up a loaded kernel never waits for loading

	modules   map[string]*cuda.Module // nil once closed
	functions map[string]*cuda.Function
}

// New returns a set for ctx's device, and loads nothing. The caller closes it before ctx.
func New(ctx *cuda.Context) *Set {
	return &Set{ctx: ctx, modules: map[string]*cuda.Module{}, functions: map[string]*cuda.Function{}}
}

// kernelType returns the type whose kernels reduce elements of type t. Unsigned integers share kernels with signed ones
// of their width, and uint8 with bools, too. The kernels look at the signature.
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

// The reductions, as Params.Op numbers them.
const (
	opSum = 1
	opMin = 3
	opMax = 4
	opAvg = 5
)

// NVLSReduces reports whether the kernel NVLS can reduce elements of type t by op (Params.Op): whether there is an
// instruction for it, which src/nvls.h explains. A NaN among halves may or may not win in min and max.
func NVLSReduces(t dtype.Type, op uint32) bool {
	switch t {
	case dtype.Float32:
		return op == opSum || op == opAvg
	case dtype.Float16, dtype.BFloat16, dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64:
		return op == opSum || op == opMin || op == opMax
	}
	return false
}

// nvlsTypes are the types that have a kernel NVLS.
var nvlsTypes = []dtype.Type{dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.Uint32, dtype.Uint64}

// nvls returns the module of a multicast kernel, and its name there.
func nvls(name string, t dtype.Type, up int) (module, kernel string, err error) {
	if up > Narrow {
		return "", "", fmt.Errorf("no kernel %q for more than %d ranks: %w", name, Narrow, fault.ErrNotSupported)
	}
	if name == NVLS {
		if !NVLSReduces(t, opSum) {
			return "", "", fmt.Errorf("no kernel %q for elements of %v: %w", name, t, fault.ErrNotSupported)
		}
		name = fmt.Sprintf("%s_%v", name, kernelType(t))
	}
	return name, "ubc_" + name, nil
}

// entry returns a kernel's module, and its name there. up is the number of ranks that the variant is made for. There
// are no Packets, Lines, MoveLines, Group, NVLS and NVLSMove for more than Narrow.
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
	case NVLS, NVLSMove:
		return nvls(name, t, up)
	case Channel, Carry, CarryStep, Copier: // whatever the number of ranks
		if module = name; name == CarryStep {
			module = Carry
		}
		return module, "ubc_" + name, nil
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

// Load loads all kernels that communicators of that many ranks use, rings only on request, so that none must be loaded
// while kernels run. Of one rank alone, whose kernels wait for nobody, reductions are loaded when they are first used: most are
// mere copies then. The first time on a machine, the driver's assembler takes some tenths of a second for each module;
// they are assembled on all processors. Later it finds them in its cache. After ctx has ended, no more modules are
// started.
func (s *Set) Load(ctx context.Context, ranks int, rings, alone bool) error {
	sets := []int{ranks}
	if ranks > Narrow { // for smaller communicators made from this one too, perhaps while kernels run
		sets = []int{ranks, Narrow}
	}
	var all []wanted
	for _, up := range sets {
		reductions := []string{TwoShot, OneShot}
		rest := []string{Barrier, Move, MovePackets, Broadcast, MoveV, Carry, CarryStep, Copier, Channel, Messages}
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
		types := dtype.All()
		if alone {
			types = nil
		}
		for _, t := range types { // first, since they take longest
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

// LoadNVLS loads the kernels NVLS and NVLSMove, which Load does not: few communicators have a multicast object. The
// rest is as with Load.
func (s *Set) LoadNVLS(ctx context.Context) error {
	var all []wanted
	for _, t := range nvlsTypes {
		module, kernel, err := entry(NVLS, t, Narrow)
		if err != nil {
			return err
		}
		all = append(all, wanted{module, kernel})
	}
	module, kernel, err := entry(NVLSMove, dtype.Invalid, Narrow)
	if err != nil {
		return err
	}
	return s.load(ctx, append(all, wanted{module, kernel})...)
}

// wanted names a kernel and its module.
type wanted struct{ module, kernel string }

// load loads those kernels that are not loaded yet. Its error is of the first module that failed; then it keeps the
// modules that it has made, and loads no kernels from them.
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

// assemble loads modules on all processors, and starts them in this order. With an error, too, it returns the modules
// made.
func (s *Set) assemble(ctx context.Context, names []string) (map[string]*cuda.Module, error) {
	modules, errs := make([]*cuda.Module, len(names)), make([]error, len(names))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(len(names), runtime.NumCPU()) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
				if modules[i], errs[i] = s.module(ctx, names[i]); errs[i] != nil {
					errs[i] = fmt.Errorf("kernels of %s: %w", names[i], errs[i])
					next.Store(int64(len(names))) // the others would fail too, or are not needed
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

// find returns a loaded kernel for that many ranks or more, or nil.
func (s *Set) find(name string, t dtype.Type, ranks int) (*cuda.Function, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range made {
		if up < upTo(ranks) || (up > Narrow) != (ranks > Narrow) { // their areas differ
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

// Kernel returns the kernel of that name for that many ranks and, if it reduces, for elements of type t. If only a
// variant for more ranks is loaded, which is a little slower, it returns that one. The Function is valid until the Set
// is closed.
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

// made lists the numbers of ranks that reductions are made for.
var made = []int{2, 4, Narrow, MaxRanks}

// upTo returns the least of them that is enough for that many ranks.
func upTo(ranks int) int {
	for _, n := range made {
		if ranks <= n {
			return n
		}
	}
	return MaxRanks
}

// Close unloads the modules. None of their kernels may be running. To close again is harmless.
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
