package register

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Pin says whether host memory must be locked in memory while it is registered. Device memory always is.
type Pin int

// The values of Pin. All ranks of a job use the same one.
const (
	PinAuto     Pin = iota // as far as the limit goes: what cannot be locked is registered and may be paged out
	PinRequired            // what cannot be locked is not registered
)

var pins = []string{"auto", "required"}

func (p Pin) known() bool { return p >= PinAuto && p <= PinRequired }

// String is "auto" or "required".
func (p Pin) String() string {
	if !p.known() {
		return fmt.Sprintf("Pin(%d)", int(p))
	}
	return pins[p]
}

// MarshalText returns String of a known value.
func (p Pin) MarshalText() ([]byte, error) {
	if !p.known() {
		return nil, fmt.Errorf("pinning %d is unknown: %w", int(p), fault.ErrArgument)
	}
	return []byte(p.String()), nil
}

// UnmarshalText accepts "auto" and "required"; the error of anything else names the nearest.
func (p *Pin) UnmarshalText(text []byte) error {
	for q, name := range pins {
		if name == string(text) {
			*p = Pin(q)
			return nil
		}
	}
	return fmt.Errorf("%s: %w", nearest.Unknown("pinning", string(text), pins), fault.ErrArgument)
}
