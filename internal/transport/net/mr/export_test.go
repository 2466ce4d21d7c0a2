package mr

// SetDistance changes how far devices are, until restore.
func SetDistance(f func(name string) int) (restore func()) {
	was := distance
	distance = f
	return func() { distance = was }
}
