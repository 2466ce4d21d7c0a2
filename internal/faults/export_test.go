package faults

// What tests of another package need: internal/testkit imports internal/env, which imports this one.
var (
	KillProcess = kill
	StopProcess = stop
)
