package mail

// Room reports whether the peer's next slot is free. The caller holds the lane.
func (m *Mail) Room(b *Box) (bool, error) { return m.room(b) }
