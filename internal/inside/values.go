package inside

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Vec is inside a ubcoll.Vec.
type Vec struct{ v team.Vec }

// NewVec is v.
func NewVec(v team.Vec) Vec { return Vec{v} }

// Team is the vector.
func (v *Vec) Team() *team.Vec { return &v.v }

// Op is inside a ubcoll.Op.
type Op struct{ o team.Op }

// NewOp is o.
func NewOp(o team.Op) Op { return Op{o} }

// Team is the operation.
func (o Op) Team() team.Op { return o.o }

// Registration is inside a ubcoll.Registration.
type Registration struct{ r *engine.Registration }

// NewRegistration is r.
func NewRegistration(r *engine.Registration) *Registration { return &Registration{r} }

// Engine is the registration, nil of a nil or zero one.
func (r *Registration) Engine() *engine.Registration {
	if r == nil {
		return nil
	}
	return r.r
}

// Remote is inside a ubcoll.Remote.
type Remote struct{ m *onesided.Remote }

// NewRemote is m.
func NewRemote(m *onesided.Remote) *Remote { return &Remote{m} }

// Onesided is the remote memory, nil of a nil or zero one.
func (m *Remote) Onesided() *onesided.Remote {
	if m == nil {
		return nil
	}
	return m.m
}

// Stream is inside a ubcoll.Stream.
type Stream struct{ s *engine.Stream }

// NewStream is s.
func NewStream(s *engine.Stream) *Stream { return &Stream{s} }

// Engine is the stream; that of a nil or zero one refuses everything.
func (s *Stream) Engine() *engine.Stream {
	if s == nil {
		return (*engine.Stream)(nil).OrNone()
	}
	return s.s.OrNone()
}
