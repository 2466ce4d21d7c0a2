package register

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// Policy decides when operations use the cache for the buffers that they are given.
type Policy int

// The policies. All ranks of a job use the same one.
const (
	Auto     Policy = iota // what the user registered, and exportable memory, which is registered at its first use
	Explicit               // only what the user registered; everything else is staged
	Off                    // everything is staged
)

// String is "auto", "explicit" or "off".
func (p Policy) String() string {
	if p < Auto || p > Off {
		return fmt.Sprintf("Policy(%d)", int(p))
	}
	return [...]string{"auto", "explicit", "off"}[p]
}

// MarshalText returns String of a known policy.
func (p Policy) MarshalText() ([]byte, error) {
	if p < Auto || p > Off {
		return nil, fmt.Errorf("registration policy %d is unknown: %w", int(p), fault.ErrArgument)
	}
	return []byte(p.String()), nil
}

// UnmarshalText accepts "auto", "explicit" and "off".
func (p *Policy) UnmarshalText(text []byte) error {
	for q := Auto; q <= Off; q++ {
		if q.String() == string(text) {
			*p = q
			return nil
		}
	}
	return fmt.Errorf("registration policy %q is unknown, use auto, explicit or off: %w", text, fault.ErrArgument)
}
