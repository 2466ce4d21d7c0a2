package experiment

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes or elements that is read and printed as "4M". K, M and G are 1024, 1024² and 1024³, as in
// nccl-tests and other benchmarks.
type Size int64

const units = "KMG"

// ParseSize parses a Size: digits, optionally followed by one of K, M, G in either case. There are no fractions, so a
// size is exact.
func ParseSize(s string) (Size, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte(units, s[n-1]&^0x20); i >= 0 {
			digits, shift = s[:n-1], 10*(i+1)
		}
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("invalid size %q (digits, then possibly K, M or G, as in 4M)", s)
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return Size(v << shift), nil
}

// String returns the shortest form that ParseSize reads back exactly.
func (s Size) String() string {
	suffix := ""
	for i := 0; i < len(units) && s != 0 && s%1024 == 0; i++ {
		s, suffix = s/1024, units[i:i+1]
	}
	return strconv.FormatInt(int64(s), 10) + suffix
}

// MarshalText returns String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses what ParseSize parses.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	if err == nil {
		*s = v
	}
	return err
}
