// Command 03-halo spreads heat over a plate. Each rank has a block of the plate's cells, and before each step the ranks
// exchange the cells along their edges with their neighbours.
//
//	NTHREADS=4 go run ./examples/03-halo
package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/p2p"
)

const (
	size  = 60  // the plate has size*size cells; around them it is cold (0)
	steps = 100 // each cell becomes the average of its four neighbours this many times
)

func main() { ubcoll.Main(ubcoll.Options{}, run) }

// block has the cells of rows top to bottom-1 and columns left to right-1, and a border of one cell around them: the
// halo, which has copies of the neighbours' cells.
type block struct {
	top, bottom, left, right int
	width                    int       // of a row, halo included
	now, next                []float64 // before and after a step
}

func (b *block) at(row, column int) int { return (row-b.top+1)*b.width + column - b.left + 1 }

// start heats one corner of the plate.
func (b *block) start() {
	for row := b.top; row < b.bottom; row++ {
		for column := b.left; column < b.right; column++ {
			if row < size/3 && column < size/2 {
				b.now[b.at(row, column)] = 100
			}
		}
	}
}

func (b *block) step() {
	for row := b.top; row < b.bottom; row++ {
		for column := b.left; column < b.right; column++ {
			i := b.at(row, column)
			b.next[i] = (b.now[i-b.width] + b.now[i+b.width] + b.now[i-1] + b.now[i+1]) / 4
		}
	}
	for row := b.top; row < b.bottom; row++ { // the halo stays as it is
		copy(b.now[b.at(row, b.left):b.at(row, b.right)], b.next[b.at(row, b.left):])
	}
}

func run(ctx context.Context, c *ubcoll.Comm) error {
	// The ranks stand in a grid of rows and columns that is as square as their number allows.
	rows := 1
	for d := 1; d*d <= c.Size(); d++ {
		if c.Size()%d == 0 {
			rows = d
		}
	}
	columns := c.Size() / rows
	y, x := c.Rank()/columns, c.Rank()%columns

	b := &block{top: y * size / rows, bottom: (y + 1) * size / rows, left: x * size / columns, right: (x + 1) * size / columns}
	height := b.bottom - b.top
	b.width = b.right - b.left + 2
	cells := (height + 2) * b.width
	// The library registers memory of Alloc at its first use, and the neighbours reach it directly then.
	plate, err := ubcoll.Alloc[float64](c, ubcoll.Host, cells)
	if err != nil {
		return err
	}
	b.now, b.next = plate.Slice(), make([]float64, cells)
	b.start()

	// An Exchange holds messages that start together, so that no order of them makes ranks wait for each other. It is
	// made once and done in each step. The cells of a row are contiguous. The cells of a column are not, and are copied
	// to buffers of their own.
	var halo p2p.Exchange
	row := func(r int) ubcoll.Vec { return plate.Vec().Slice(b.at(r, b.left), b.at(r, b.right)) }
	if y > 0 {
		halo.Send(c.Rank()-columns, row(b.top))
		halo.Recv(c.Rank()-columns, row(b.top-1))
	}
	if y < rows-1 {
		halo.Send(c.Rank()+columns, row(b.bottom-1))
		halo.Recv(c.Rank()+columns, row(b.bottom))
	}
	type edge struct {
		mine, theirs int // columns: the one to send, and the one of the halo
		out, in      []float64
	}
	var edges []edge
	side := func(peer, mine, theirs int) {
		e := edge{mine, theirs, make([]float64, height), make([]float64, height)}
		halo.Send(peer, ubcoll.Of(e.out))
		halo.Recv(peer, ubcoll.Of(e.in))
		edges = append(edges, e)
	}
	if x > 0 {
		side(c.Rank()-1, b.left, b.left-1)
	}
	if x < columns-1 {
		side(c.Rank()+1, b.right-1, b.right)
	}

	for range steps {
		for _, e := range edges {
			for i := range height {
				e.out[i] = b.now[b.at(b.top+i, e.mine)]
			}
		}
		if err := halo.Do(ctx, c); err != nil {
			return err
		}
		for _, e := range edges {
			for i := range height {
				b.now[b.at(b.top+i, e.theirs)] = e.in[i]
			}
		}
		b.step()
	}
	if err := compare(ctx, c, b); err != nil {
		return err
	}
	return plate.Free() // Main would do this, too
}

// compare computes the whole plate on this rank alone, and compares this rank's cells with it: they are equal to the last
// bit, since each cell is computed from the same numbers in the same order.
func compare(ctx context.Context, c *ubcoll.Comm, b *block) error {
	const width = size + 2
	whole := &block{bottom: size, right: size, width: width, now: make([]float64, width*width), next: make([]float64, width*width)}
	whole.start()
	for range steps {
		whole.step()
	}
	heat := []float64{0}
	for row := b.top; row < b.bottom; row++ {
		for column := b.left; column < b.right; column++ {
			got, want := b.now[b.at(row, column)], whole.now[whole.at(row, column)]
			if got != want {
				return fmt.Errorf("cell %d,%d is %v, and %v on one rank", row, column, got, want)
			}
			heat[0] += got
		}
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(heat), ubcoll.Of(heat), ubcoll.Sum); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d ranks, %d cells, %d steps: the same plate as one rank's\n", c.Size(), size*size, steps)
		fmt.Printf("heat that is left: %.3f\n", heat[0])
	}
	return nil
}
