package gpu

import (
	"errors"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/hw/cuda"
)

// Branches are streams for the branches of captures. They are reused once a capture has ended. A caller of Take keeps
// Branches locked until the stream is part of the capture, because only then do other callers see that it is in use.
type Branches struct {
	sync.Mutex
	all []*cuda.Stream
}

// Take returns a stream of d's device that is in no capture except cu's and is not one of taken. The stream belongs to b.
func (b *Branches) Take(d *Domain, cu *cuda.Stream, taken []*cuda.Stream) (*cuda.Stream, error) {
	this, err := cu.Capture()
	if err != nil {
		return nil, err
	}
	for _, s := range b.all {
		if id, err := s.Capture(); err == nil && (id == 0 || id == this) && !slices.Contains(taken, s) {
			return s, nil
		}
	}
	s, err := d.shared.takeStream()
	if err == nil {
		b.all = append(b.all, s)
	}
	return s, err
}

// Close gives d the streams back.
func (b *Branches) Close(d *Domain) error {
	var errs []error
	for _, s := range b.all {
		errs = append(errs, d.shared.giveStream(s))
	}
	return errors.Join(errs...)
}
