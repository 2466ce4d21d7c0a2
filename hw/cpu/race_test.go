//go:build race

package cpu

// race says that everything takes ten times as long, and that plain Go is the only level.
const race = true
