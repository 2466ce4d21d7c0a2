package ipc

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
)

func (t *Transport) UseDevice(ctx *cuda.Context) error                        { return errors.New("stub") }
func (t *Transport) Export(a *mem.Allocation) (extent uint32, err error)      { return 0, errors.New("stub") }
func (t *Transport) Withdraw(ctx context.Context, a *mem.Allocation) error    { return nil }
func (t *Transport) Missing(extent uint32) (peer int, why string)             { return -1, "" }
func (p *peer) HasDevice() bool                                               { return false }
func (p *peer) Import(ctx context.Context, extent uint32) (cuda.Addr, error)  { return 0, nil }
func (p *peer) Row() cuda.Addr                                                { return 0 }
func (p *peer) Number() int { return 0 }
