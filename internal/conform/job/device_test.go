package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// gpus returns variables that give processes devices: emulated ones, or GPUs, which they share where there are fewer.
func gpus(t *testing.T) []string {
	if cuda.Have().Err == nil {
		return []string{env.CUDA.Name + "=share"}
	}
	return append(emulated.Environ(emulated.Library(t)), "UBCOLL_EMULATE_DEVICES=8", "UBCOLL_REQUIRE=cuda")
}

// TestDeviceProcesses uses the devices of several processes.
func TestDeviceProcesses(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the processes would be slow, and share what the detector does not see")
	}
	environ := gpus(t)
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			suites := []string{"device", "device"} // the second finds what the first has left
			if n > 2 && !testkit.Full() {
				suites = suites[:1]
			}
			start(t, n, environ, suites...).succeed(t)
		})
	}
}

// TestDeviceKill kills a process whose peers' kernels wait for it.
func TestDeviceKill(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the processes would be slow")
	}
	for _, v := range gpus(t) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for range 3 {
		killOne(t, "kill-device", 3, pick)
		killOne(t, "kill-device-p2p", 3, pick)
	}
}
