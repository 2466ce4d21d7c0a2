//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// SRQ is a queue of receives that several queue pairs take from.
type SRQ struct {
	owner
	pd   *PD
	srq  *C.ubv_srq
	size int
}

// CreateSRQ makes a shared queue for at least that many receives. With a limit above 0, an event ([Device.NextEvent])
// tells once when fewer than limit are left, if the device can do that. (ibv_create_srq)
func (p *PD) CreateSRQ(receives, limit int) (*SRQ, error) {
	d := p.device
	if receives < 1 || receives > d.limits.SRQWork || limit < 0 || limit > receives {
		return nil, fmt.Errorf("a shared receive queue of %d with limit %d: %s offers 1 to %d, and limits up to that: %w", receives,
			limit, d.name, d.limits.SRQWork, fault.ErrArgument)
	}
	if err := p.make("shared receive queue"); err != nil {
		return nil, fmt.Errorf("protection domain of %s: %w", d.name, err)
	}
	var srq *C.ubv_srq
	var got C.uint32_t
	if err := d.checkQueue("ibv_create_srq", fmt.Sprintf("%d receives", receives),
		C.ubv_create_srq(p.pd, C.uint32_t(receives), C.uint32_t(limit), &srq, &got)); err != nil {
		p.unmake("shared receive queue")
		return nil, err
	}
	return &SRQ{pd: p, srq: srq, size: int(got)}, nil
}

// Size is how many receives it holds.
func (s *SRQ) Size() int { return s.size }

// Post adds receives, and returns how many were taken: all, unless there is an error. Their memory is in use until they
// complete. (ibv_post_srq_recv)
func (s *SRQ) Post(work ...Receive) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	var n C.int
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, fmt.Errorf("shared receive queue of %s: %w", s.pd.device.name, fault.ErrClosed)
	}
	code := C.ubv_post_receive(nil, s.srq, (*C.ubv_receive)(unsafe.Pointer(&work[0])), C.int(len(work)), &n)
	if code != 0 {
		return int(n), s.pd.device.check("ibv_post_srq_recv", fmt.Sprintf("receive %d of %d", n+1, len(work)), code)
	}
	return int(n), nil
}

// Close destroys the queue and forgets the receives posted to it. (ibv_destroy_srq)
func (s *SRQ) Close() error {
	if err := s.end("shared receive queue of "+s.pd.device.name, "ibv_destroy_srq", s.pd.device.name, func() C.int {
		return C.ubv_destroy_srq(s.srq)
	}); err != nil {
		return err
	}
	s.pd.unmake("shared receive queue")
	return nil
}
