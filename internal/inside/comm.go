// Package inside has the contents of the root package's types, for this module's packages. The root defines its types
// over these, so that a conversion, which costs nothing, reaches the contents; nobody outside the module can write it:
//
//	v := (*inside.Comm)(c).View()
//
// If the content belongs to a package below, the method that returns it has that package's name.
package inside

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
	"github.com/ubcoll/ubcoll/internal/transport/net"
	"github.com/ubcoll/ubcoll/register"
)

// Comm is the content of a ubcoll.Comm.
type Comm struct{ v View }

// View is a communicator as the caller sees it, with the parts that packages above the engine have of it.
type View struct {
	engine.View
	Mail    *mail.Mail
	GPUMail *gpumail.Mail
	Space   *onesided.Space
}

// none is the view of a nil or zero communicator.
var none = newComm(engine.NoView.Comm)

// Providers is what communicators are made of.
var Providers = engine.Providers{IPC: ipc.New, Network: net.Listen, Interfaces: net.OnInterface,
	Accelerators: gpu.Accelerators,
	Attachments:  []engine.NewAttachment{gpumail.New, mail.New, onesided.NewSpace}}

// Open makes a communicator of all ranks of b: see engine.Open.
func Open(ctx context.Context, b bootstrap.Bootstrap, o engine.Options, bad error) (*Comm, error) {
	return OpenOn(ctx, b, o, bad, Providers)
}

// OpenOn is Open with a test's own providers.
func OpenOn(ctx context.Context, b bootstrap.Bootstrap, o engine.Options, bad error, p engine.Providers) (*Comm, error) {
	c, err := engine.Open(ctx, b, o, bad, p)
	if err != nil {
		return nil, err
	}
	return newComm(c), nil
}

func newComm(c *engine.Comm) *Comm {
	v := View{View: engine.View{Comm: c}, Mail: mail.Of(c), GPUMail: gpumail.Of(c), Space: onesided.SpaceOf(c)}
	return &Comm{v}
}

// View returns the caller's view of c. The view of a nil or zero communicator has no ranks, and is broken from the
// start.
func (c *Comm) View() *View {
	if c == nil || c.v.Comm == nil {
		return &none.v
	}
	return &c.v
}

// On is the communicator with another stream, or none if s is nil.
func (v *View) On(s *engine.Stream) *Comm {
	return &Comm{View{View: *v.View.On(s), Mail: v.Mail, GPUMail: v.GPUMail, Space: v.Space}}
}

// Split makes a communicator of the ranks that give the same color: nil for a rank without one.
func (v *View) Split(ctx context.Context, color, key int) (*Comm, error) {
	return v.offspring("split", func() (*engine.Comm, error) { return v.Comm.Split(ctx, color, key, v.Options()) })
}

// SplitAs is Split with another algorithm and registration policy, the same on all ranks, to compare them by
// measurement.
func (v *View) SplitAs(ctx context.Context, color int, algorithm string, policy register.Policy) (*Comm, error) {
	o := v.Options()
	o.Algorithm, o.Register = algorithm, policy
	return v.offspring("split", func() (*engine.Comm, error) { return v.Comm.Split(ctx, color, 0, o) })
}

// Dup makes a communicator of the same ranks.
func (v *View) Dup(ctx context.Context) (*Comm, error) {
	return v.offspring("dup", func() (*engine.Comm, error) { return v.Comm.Dup(ctx) })
}

// Shrink makes a communicator of the ranks that are left of one that is broken.
func (v *View) Shrink(ctx context.Context) (*Comm, error) {
	return v.offspring("shrink", func() (*engine.Comm, error) { return v.Comm.Shrink(ctx) })
}

func (v *View) offspring(op string, do func() (*engine.Comm, error)) (*Comm, error) {
	if v.Recorder != nil {
		return nil, v.LocalError(op, fmt.Errorf("not in a group: %w", fault.ErrArgument))
	}
	child, err := do()
	if child == nil || err != nil {
		return nil, err
	}
	return newComm(child), nil
}

// ErrNoCalls is the error of a group or a capture with a nil function.
var ErrNoCalls = fmt.Errorf("the function that makes the calls is nil: %w", fault.ErrArgument)

// Recording is a recording with the communicator that records. It is used once, because the communicator stays known
// to the caller's function.
type Recording struct {
	k engine.Recording
	c Comm
}

// Do calls calls with a view like v that records its operations in r. own is the first error of calls itself, of a call
// that could not be recorded, or of a collective that was called on v meanwhile; failed is that call, or the zero Called
// if it is not known. If err is not nil, nothing has been called, and the peers need not know.
func (r *Recording) Do(v *View, to *engine.Recorded, what string, recorder engine.Recorder, calls func(*Comm) error) (failed engine.Called, own, err error) {
	if err := v.Record(&r.k, to, what, recorder); err != nil {
		return failed, nil, err
	}
	defer func() { // calls may panic
		var first error
		if failed, first = r.k.End(); first != nil && !errors.Is(own, first) {
			own = errors.Join(first, own)
		}
	}()
	r.c.v = *v
	r.c.v.Recorder = &r.k
	return failed, calls(&r.c), nil
}
