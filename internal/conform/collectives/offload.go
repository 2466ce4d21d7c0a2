package collectives

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// offloadBytes is how much a rank's part has at most: several pieces of a CollNet plugin.
const offloadBytes = 300 << 10

// Offload does all that the reference CollNet plugin declares, and what it does not, of every type, by every reduction, on registered
// memory, on other memory, and, if the ranks have devices, on theirs. It checks every element, and what LastOp says: the
// algorithm must be forced. Arguments are random.
func Offload(ctx context.Context, c *ubcoll.Comm) error { return OffloadOf(ctx, c, dtype.All()) }

// OffloadOf is Offload of some types.
func OffloadOf(ctx context.Context, c *ubcoll.Comm, types []dtype.Type) error {
	places := []ubcoll.Device{ubcoll.Host, ubcoll.Host}
	if dev, err := c.GPU(); err == nil {
		places = append(places, dev)
	}
	for i, place := range places {
		o := offload{ctx: ctx, c: c}
		for k := range o.host {
			o.host[k] = make([]byte, c.Size()*offloadBytes)
			if o.vec[k] = ubcoll.Of(o.host[k]); i == 0 {
				continue // Go's memory
			}
			b, err := ubcoll.Alloc[byte](c, place, len(o.host[k]))
			if err != nil {
				return err
			}
			o.buf[k], o.vec[k] = b, b.Vec()
		}
		same := rand.New(rand.NewPCG(conform.Seed(), 99))
		for _, t := range types {
			for k, op := range offloadOps {
				if t == dtype.Bool && op.of.Op != cpu.Max && op.of.Op != cpu.Min {
					continue
				}
				o.op, o.of = op.op, op.of
				o.of.Type, o.of.Ranks, o.of.Seed = t, c.Size(), conform.Seed()
				bytes := offloadBytes/4 + same.IntN(offloadBytes/8) // too much to travel with the hosts' agreement
				if k == 0 {
					bytes = offloadBytes - same.IntN(offloadBytes/10)
				}
				count := bytes / t.Size()
				if err := o.run(count); err != nil {
					return conform.Fail(c, "%v of %v, %d elements on %v: %w", op.op, t, count, place, err)
				}
			}
		}
		for _, b := range o.buf {
			if b == nil {
				continue
			}
			if err := b.Free(); err != nil {
				return err
			}
		}
	}
	return nil
}

// offloadOps are the reductions, and how their results are checked.
var offloadOps = []struct {
	op ubcoll.Op
	of verify.Data
}{{ubcoll.Sum, verify.Data{Op: cpu.Sum}}, {ubcoll.Prod, verify.Data{Op: cpu.Prod}}, {ubcoll.Max, verify.Data{Op: cpu.Max}},
	{ubcoll.Min, verify.Data{Op: cpu.Min}}, {ubcoll.Avg, verify.Data{Op: cpu.Sum, Average: true}},
	{ubcoll.PreMulSum(2), verify.Data{Op: cpu.Sum, Factor: 2}}}

// offload is what one reduction is checked with, in a source and a destination.
type offload struct {
	ctx  context.Context
	c    *ubcoll.Comm
	op   ubcoll.Op
	of   verify.Data
	buf  [2]*ubcoll.Buffer[byte] // nil: Go's memory
	vec  [2]ubcoll.Vec
	host [2][]byte // what is in them
}

// run does each collective once, of count elements for each rank.
func (o *offload) run(count int) error {
	n, me, size := o.c.Size(), o.c.Rank(), o.of.Type.Size()
	says := "CollNet over "
	if t := o.of.Type; t == dtype.Bool || t == dtype.Int16 || t == dtype.Uint16 { // NCCL has no such types
		says = `(not by CollNet: plugin "switch" does not declare this type and reduction)`
	}
	to := unsafe.Pointer(unsafe.SliceData(o.host[1]))
	part := func(k, elements int) ubcoll.Vec { return o.vec[k].Slice(0, elements*size).As(o.of.Type) }
	o.of.Fill(unsafe.Pointer(unsafe.SliceData(o.host[0])), count*n, me)
	for _, k := range []struct {
		says  string
		call  func() error
		check func() (int, verify.Mismatch)
	}{
		{says, func() error { return coll.AllReduce(o.ctx, o.c, part(1, count), part(0, count), o.op) },
			func() (int, verify.Mismatch) { return o.of.Check(to, 0, count) }},
		{says, func() error { return coll.ReduceScatter(o.ctx, o.c, part(1, count), part(0, count*n), o.op) },
			func() (int, verify.Mismatch) { return o.of.Check(to, me*count, count) }},
		{"CollNet over ", func() error { return coll.AllGather(o.ctx, o.c, part(1, count*n), part(0, count)) },
			func() (wrong int, at verify.Mismatch) {
				for r := 0; r < n && wrong == 0; r++ {
					wrong, at = o.of.CheckInput(unsafe.Add(to, r*count*size), 0, count, r)
				}
				return wrong, at
			}},
	} {
		err := o.move(0, (*ubcoll.Buffer[byte]).CopyFrom)
		if err == nil {
			err = k.call()
		}
		if err == nil {
			err = o.move(1, (*ubcoll.Buffer[byte]).CopyTo)
		}
		if err != nil {
			return err
		}
		last := o.c.LastOp().String()
		if wrong, at := k.check(); wrong > 0 {
			return fmt.Errorf("%d wrong, %v: %s", wrong, at, last)
		}
		if !strings.Contains(last, k.says) {
			return errors.New("not " + k.says + ": " + last)
		}
	}
	return nil
}

// move copies between a buffer and what the test has of it.
func (o *offload) move(k int, copied func(*ubcoll.Buffer[byte], context.Context, []byte) error) error {
	if o.buf[k] == nil {
		return nil
	}
	return copied(o.buf[k], o.ctx, o.host[k])
}
