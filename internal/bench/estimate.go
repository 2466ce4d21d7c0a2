package bench

import "time"

// What Estimate takes calls to cost, in microseconds, and in bytes in a microsecond.
const (
	guessedCall    = 2
	guessedBetween = 4      // a barrier
	guessedAround  = 10_000 // buffers, and what the ranks tell each other
	callRate       = 4000
	deviceRate     = 100_000
	betweenRate    = 2500 // rewriting the input, reading the output
	checkRate      = 500
	bufferRate     = 1000
)

// Estimate guesses how long measuring calls of this size takes, in place or out of place, if every rank has an idle
// processor. It knows how many calls there are, and MinTime and MaxTime; how fast this machine is it does not know.
func (c *Config) Estimate(bytes int) time.Duration {
	size, n := float64(bytes), float64(c.messages())
	call, between := n*(guessedCall+size/callRate), guessedBetween+size/betweenRate
	if c.Device == CUDA {
		call = n * (guessedCall + size/deviceRate)
	}
	if c.queued() || c.Loop {
		between = 0
	}
	warmup, timed := c.calls(bytes)
	if c.queued() {
		timed *= c.launches(bytes) + 1 // one launch is not timed
	} else {
		timed += c.more(timed, float64(timed)*call)
	}
	us := float64(warmup+timed) * (call + between)
	if c.MaxTime > 0 {
		us = min(us, float64(c.MaxTime)/1e3)
	}
	us += guessedAround + float64(max(1, c.Checks))*size/checkRate + 2*size/bufferRate
	if c.Cache {
		us += guessedAround
	}
	return time.Duration(us * 1e3)
}
