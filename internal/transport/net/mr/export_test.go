package mr

// SetDistance changes how far devices are, until restore.
func SetDistance(f func(name string) int) (restore func()) {
	was := distance
	distance = f
	return func() { distance = was }
}

// SetSysfs changes where the system describes its devices, until restore.
func SetSysfs(path string) (restore func()) {
	was := sysfs
	sysfs = path
	return func() { sysfs = was }
}

// Closeness is closeness; the other names are what it returns.
var Closeness = closeness

const (
	Together = together
	Unknown  = unknown
	Apart    = apart
)
