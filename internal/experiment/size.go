package experiment

import (
	"strconv"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Size is a number of bytes or elements that is read and printed as "4M". K, M and G are 1024, 1024² and 1024³, as in
// nccl-tests and other benchmarks.
type Size int64

// ParseSize parses a Size, as env.ParseSize.
func ParseSize(s string) (Size, error) {
	v, err := env.ParseSize(s)
	return Size(v), err
}

// String returns the shortest form that ParseSize reads back exactly.
func (s Size) String() string {
	suffix := ""
	for i := 0; i < len(env.SizeUnits) && s != 0 && s%1024 == 0; i++ {
		s, suffix = s/1024, env.SizeUnits[i:i+1]
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
