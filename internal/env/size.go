package env

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// SizeUnits are the letters that a size may end with: 1024, 1024² and 1024³, as in nccl-tests and other benchmarks.
const SizeUnits = "KMG"

// sizeForm says how sizes are written.
const sizeForm = "digits, then possibly K, M or G, as in 4M"

// ParseSize parses a number of bytes or elements: digits, optionally followed by one of SizeUnits in either case. There
// are no fractions, so a size is exact. Whatever reads a size reads it by this function.
func ParseSize(s string) (int64, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte(SizeUnits, s[n-1]&^0x20); i >= 0 {
			digits, shift = s[:n-1], 10*(i+1)
		}
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("invalid size %q (%s)", s, sizeForm)
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return v << shift, nil
}
