package main

import (
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/conform/devices"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/conform/families"
	"github.com/ubcoll/ubcoll/internal/conform/footprint"
	"github.com/ubcoll/ubcoll/internal/conform/hosts"
	"github.com/ubcoll/ubcoll/internal/conform/measures"
	"github.com/ubcoll/ubcoll/internal/conform/messages"
	"github.com/ubcoll/ubcoll/internal/conform/mixed"
	"github.com/ubcoll/ubcoll/internal/conform/onesided"
)

// suites has the suites by name.
var suites = map[string]conform.Suite{
	"matrix":          collectives.Matrix,
	"random":          collectives.Random,
	"bad":             collectives.Bad,
	"order":           collectives.Order,
	"moves":           collectives.Moves,
	"offload":         collectives.Offload,
	"churn":           footprint.Churn,
	"descriptors":     footprint.Descriptors,
	"imports":         collectives.Imports,
	"kill":            endings.Kill,
	"kill-first":      endings.KillFirst,
	"shrink":          endings.Shrink,
	"steady":          measures.Steady,
	"steady-small":    measures.SteadySmall,
	"pauses":          measures.Pauses,
	"first-use":       measures.FirstUse,
	"beside":          measures.Beside,
	"exit-early":      endings.ExitEarly,
	"ends-wait":       endings.EndsWait,
	"ends-swallow":    endings.EndsSwallow,
	"ends-plain":      endings.EndsPlain,
	"ends-ignore":     endings.EndsIgnore,
	"ends-panic":      endings.EndsPanic,
	"ends-error":      endings.EndsError,
	"ends-first":      endings.EndsFirst,
	"held":            endings.Held,
	"kill-p2p":        endings.KillP2P,
	"p2p":             messages.P2P,
	"circle":          messages.Circle,
	"programs":        messages.Programs,
	"mixed":           mixed.Mixed,
	"mixed-device":    mixed.MixedDevice,
	"family":          families.Family,
	"hosts":           hosts.Hosts,
	"handles":         onesided.Handles,
	"channels":        onesided.Channels,
	"windows":         onesided.Windows,
	"access":          onesided.Access,
	"atomics":         onesided.Atomics,
	"sums":            onesided.Sums,
	"progress":        onesided.Progress,
	"kill-hosts":      endings.KillHosts,
	"stopped":         endings.Stopped,
	"close-stopped":   endings.CloseStopped,
	"kill-wait":       endings.KillWait,
	"take-back":       onesided.TakeBack,
	"revocations":     onesided.Revocations,
	"rounds":          footprint.Rounds,
	"device":          devices.Device,
	"kill-device":     endings.KillDevice,
	"kill-device-p2p": endings.KillDeviceP2P,

	"kill-queued-eager":    endings.KillQueuedEager,
	"kill-queued-graph":    endings.KillQueuedGraph,
	"kill-queued-messages": endings.KillQueuedMessages,
	"kill-queued-channel":  endings.KillQueuedChannel,
}
