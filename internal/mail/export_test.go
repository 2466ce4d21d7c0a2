package mail

// Room reports whether the peer's next slot is free. The caller holds the lane.
func (m *Mail) Room(b *Box) (bool, error) { return m.room(b) }

// SayTaken makes this rank say that it has taken n messages of the peer.
func (b *Box) SayTaken(n uint64) { b.Out.taken.Store(n) }
