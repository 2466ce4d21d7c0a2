//go:build mpi && cgo

package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"

	gompi "github.com/sbromberger/gompi"

	"github.com/ubcoll/ubcoll/fault"
)

// Gompi uses a communicator of a program that runs MPI itself as the job. It is local and does not block. The program
// keeps MPI: neither Gompi nor its result starts or finalizes it, or touches another communicator. Signal handlers that
// MPI installed without SA_ONSTACK are re-installed with it, as in [MPI].
//
// All MPI calls happen on the goroutine that calls AllGather or Abort, so that the program's own threading rule holds.
// All are collectives on c, so no receive that the program has posted, wildcard or not, can match them. While an
// AllGather runs, the program must make no collective on c of its own. gompi can only wait without a limit: an
// AllGather looks at its context before each exchange, not during one. There is no [Exchanger], because messages
// between two ranks could match a receive of the program. Close leaves c as it is and does not wait. Abort is MPI_Abort
// on c.
//
// ErrArgument for a nil c, and before MPI is started. A process that is no member of c must not call Gompi: gompi
// cannot tell, and MPI ends the job at the first call.
func Gompi(c *gompi.Communicator) (Bootstrap, error) {
	if c == nil {
		return nil, fmt.Errorf("bootstrap: nil communicator: %w", fault.ErrArgument)
	}
	if !gompi.IsOn() {
		return nil, fmt.Errorf("bootstrap: MPI is not started: call gompi's Start first, or use MPI: %w", fault.ErrArgument)
	}
	mendSignalHandlers()
	return &userComm{c: c, rank: c.Rank(), size: c.Size()}, nil
}

// userComm is this process as a rank of a communicator of the program.
type userComm struct {
	c          *gompi.Communicator
	rank, size int
	gate       gate
}

func (g *userComm) Rank() int      { return g.rank }
func (g *userComm) Size() int      { return g.size }
func (g *userComm) Abort(code int) { g.c.Abort(code) }
func (g *userComm) Close() error   { return g.gate.enter(closed) }

func (g *userComm) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := g.gate.enter(busy); err != nil {
		return nil, err
	}
	defer g.gate.leave()
	table := make([]byte, 8*g.size)
	binary.NativeEndian.PutUint64(table[8*g.rank:], uint64(len(mine)))
	table, err := g.or(ctx, table)
	if err != nil {
		return nil, err
	}
	lengths := make([]int, g.size)
	parts := make([][]byte, g.size)
	for r := range lengths {
		lengths[r] = int(binary.NativeEndian.Uint64(table[8*r:]))
		parts[r] = make([]byte, 0, lengths[r])
	}
	for from, sizes := range chunks(lengths) {
		packed := make([]byte, sum(sizes))
		if n := sizes[g.rank]; n > 0 {
			copy(packed[sum(sizes[:g.rank]):], mine[from:from+n])
		}
		if packed, err = g.or(ctx, packed); err != nil {
			return nil, err
		}
		scatter(parts, packed, sizes)
	}
	return parts, nil
}

// or combines the ranks' bytes by bitwise or. gompi has no all-gather, and this is one where every byte is zero on all
// ranks but one. b is not empty.
func (g *userComm) or(ctx context.Context, b []byte) ([]byte, error) {
	err := ctx.Err()
	all := make([]byte, len(b))
	if err == nil {
		err = g.c.AllreduceBytes(all, b, gompi.OpBor, 0)
	}
	if err != nil {
		return nil, &fault.Error{Op: "bootstrap", Rank: g.rank, Peer: -1, Err: err}
	}
	return all, nil
}
