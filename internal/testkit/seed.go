package testkit

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

const seedVar = "TEST_SEED"

// Seed returns a random seed, or that of TEST_SEED, which repeats a run. It logs the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv(seedVar); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatalf("%s: %v", seedVar, err)
		}
	}
	t.Logf("%s=%d", seedVar, seed)
	return seed
}

// Random returns a generator with a seed of Seed.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// fixedSeed is the seed that is always the same.
const fixedSeed = 1

// FixedSeed is a seed for what several processes draw alike: TEST_SEED, or 1.
func FixedSeed() uint64 {
	seed, err := strconv.ParseUint(os.Getenv(seedVar), 0, 64)
	if err != nil {
		return fixedSeed
	}
	return seed
}

// Bytes returns n random bytes.
func Bytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
