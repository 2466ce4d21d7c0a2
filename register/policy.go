package register

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Policy decides when operations use the cache for the buffers that they are given.
type Policy int

// The policies. All ranks of a job use the same one.
const (
	Auto     Policy = iota // what the user registered, and exportable memory, which is registered at its first use
	Explicit               // only what the user registered; everything else is staged
	Off                    // everything is staged
)

var policies = []string{"auto", "explicit", "off"}

// String is "auto", "explicit" or "off".
func (p Policy) String() string {
	if p < Auto || p > Off {
		return fmt.Sprintf("Policy(%d)", int(p))
	}
	return policies[p]
}

// MarshalText returns String of a known policy.
func (p Policy) MarshalText() ([]byte, error) {
	if p < Auto || p > Off {
		return nil, fmt.Errorf("registration policy %d is unknown: %w", int(p), fault.ErrArgument)
	}
	return []byte(p.String()), nil
}

// UnmarshalText accepts "auto", "explicit" and "off"; the error of anything else names the nearest.
func (p *Policy) UnmarshalText(text []byte) error {
	for q, name := range policies {
		if name == string(text) {
			*p = Policy(q)
			return nil
		}
	}
	return fmt.Errorf("%s: %w", nearest.Unknown("registration policy", string(text), policies), fault.ErrArgument)
}
