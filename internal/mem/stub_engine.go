package mem

import (
	"errors"

	"github.com/ubcoll/ubcoll/hw/cuda"
)

func (h *Heap) UseDevice(ctx *cuda.Context)                               {}
func (h *Heap) AllocDevice(n int) (*Allocation, error)                    { return nil, errors.New("stub") }
func (h *Heap) AdoptDevice(a cuda.Addr, n int) (*Allocation, error)       { return nil, errors.New("stub") }
func (h *Heap) OnQuiesce(f func())                                        {}
