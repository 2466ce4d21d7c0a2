package inside

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Vec is the content of a ubcoll.Vec.
type Vec struct{ v team.Vec }

// NewVec wraps v.
func NewVec(v team.Vec) Vec { return Vec{v} }

// Team returns the vector.
func (v *Vec) Team() *team.Vec { return &v.v }

// Op is the content of a ubcoll.Op.
type Op struct{ o team.Op }

// NewOp wraps o.
func NewOp(o team.Op) Op { return Op{o} }

// Team returns the operation.
func (o Op) Team() team.Op { return o.o }

// Registration is the content of a ubcoll.Registration.
type Registration struct{ r *engine.Registration }

// NewRegistration wraps r.
func NewRegistration(r *engine.Registration) *Registration { return &Registration{r} }

// Engine returns the registration; nil if r is nil or zero.
func (r *Registration) Engine() *engine.Registration {
	if r == nil {
		return nil
	}
	return r.r
}

// Remote is the content of a ubcoll.Remote.
type Remote struct{ m *onesided.Remote }

// NewRemote wraps m.
func NewRemote(m *onesided.Remote) *Remote { return &Remote{m} }

// Onesided returns the remote memory; nil if r is nil or zero.
func (r *Remote) Onesided() *onesided.Remote {
	if r == nil {
		return nil
	}
	return r.m
}

// Stream is the content of a ubcoll.Stream.
type Stream struct{ s *engine.Stream }

// NewStream wraps s.
func NewStream(s *engine.Stream) *Stream { return &Stream{s} }

// Engine returns the stream; for a nil or zero s, one that refuses everything.
func (s *Stream) Engine() *engine.Stream {
	if s == nil {
		return (*engine.Stream)(nil).OrNone()
	}
	return s.s.OrNone()
}
