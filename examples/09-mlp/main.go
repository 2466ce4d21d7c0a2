// Command 09-mlp trains a small neural network (a multi-layer perceptron) on all ranks: each rank has a part of the
// data and a copy of the network, and in every step they add up their gradients. The losses are the same as on one
// rank. If ranks die, the others share their data and go on.
//
// It is a module of its own, so that programs that import ubcoll do not depend on gonum:
//
//	cd examples/09-mlp && NTHREADS=4 go run .
//
// With a rank that dies on the way:
//
//	go build && UBCOLL_FAULT=kill:rank=2,after=100 ubcoll launch -np 4 -survive -- ./09-mlp
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

const (
	samples = 240
	inputs  = 2
	hidden  = 16
	steps   = 200
	rate    = 0.2
	numbers = inputs*hidden + hidden + hidden + 1 // weights and biases of both layers
)

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	// All gradients lie in one registered buffer, and the loss behind them: one all-reduce for each step. Where the rank has a GPU
	// they are there, as in programs that also compute there; gonum computes in host memory, so they are copied.
	device, err := c.GPU()
	if errors.Is(err, ubcoll.ErrNotSupported) {
		device, err = ubcoll.Host, nil
	}
	if err != nil {
		return err
	}
	buf, err := ubcoll.Alloc[float64](c, device, numbers+1)
	if err != nil {
		return err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	// All ranks must begin with the same weights: rank 0 chooses them.
	n := network{weights: make([]float64, numbers), before: make([]float64, numbers)}
	if c.Rank() == 0 {
		choose(n.weights)
	}
	if err := coll.Broadcast(ctx, c, ubcoll.Of(n.weights), 0); err != nil {
		return err
	}

	sum := buf.Slice() // nil on a GPU
	if sum == nil {
		sum = make([]float64, numbers+1)
	}
	reduce := func() error {
		if device == ubcoll.Host {
			return coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum)
		}
		if err := buf.CopyFrom(ctx, sum); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
			return err
		}
		return buf.CopyTo(ctx, sum)
	}
	began := c.Size()
	for {
		err := n.resume(ctx, c)
		if err == nil {
			x, y := data(c.Rank()*samples/c.Size(), (c.Rank()+1)*samples/c.Size()) // this rank's part
			err = n.train(sum, x, y, reduce)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, ubcoll.ErrPeerLost) && !errors.Is(err, ubcoll.ErrAborted) {
			return err
		}
		// Ranks have died. The buffer stays, its registration ends with the communicator.
		left, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
		c = left
		if reg, err = buf.Register(c); err != nil {
			return err
		}
	}
	if err := reg.Close(); err != nil {
		return err
	}
	if err := buf.Free(); err != nil {
		return err
	}
	first, size := c.Rank() == 0, c.Size()
	if err := c.Close(); err != nil || !first {
		return err
	}

	// The first rank does the same alone, with all the data. There is nothing to add up.
	alone := network{weights: make([]float64, numbers), before: make([]float64, numbers)}
	choose(alone.weights)
	x, y := data(0, samples)
	if err := alone.train(make([]float64, numbers+1), x, y, func() error { return nil }); err != nil {
		return err
	}
	// The last bits of a sum of floats depend on the order of its terms. Here each rank adds up its own samples first,
	// and then the ranks add up their sums. Ranks do not add up averages, because their parts may differ in size: the
	// sum is divided once, by the number of all samples. So the gradients of each step differ by some 1e-16 of their
	// size, and the difference does not grow, because training converges.
	worst := 0.0
	for i := range n.losses {
		worst = max(worst, math.Abs(n.losses[i]-alone.losses[i]))
	}
	if !(worst <= 1e-12) { // NaN is wrong, too
		return fmt.Errorf("the losses differ from one rank's by %g", worst)
	}
	fmt.Printf("%d ranks, %d samples, %d weights\n", began, samples, numbers)
	if size < began {
		fmt.Printf("%d ranks were left at the end\n", size)
	}
	for _, step := range []int{0, 50, 100, steps - 1} {
		fmt.Printf("step %3d: loss %.6f\n", step, n.losses[step])
	}
	fmt.Println("all losses are within 1e-12 of one rank's")
	return nil
}

// choose sets random weights, the same ones each time.
func choose(weights []float64) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range weights {
		weights[i] = random.NormFloat64() / 2
	}
}

// data makes samples from to to-1. A sample depends on its number alone, so all ranks make the same ones.
func data(from, to int) (x, y *mat.Dense) {
	n := to - from
	x, y = mat.NewDense(n, inputs, nil), mat.NewDense(n, 1, nil)
	for i := range n {
		random := rand.New(rand.NewPCG(3, uint64(from+i)))
		a, b := 2*random.Float64()-1, 2*random.Float64()-1
		x.SetRow(i, []float64{a, b})
		y.Set(i, 0, math.Sin(3*a)*b) // what the network is to learn
	}
	return x, y
}

// layers views weights, or gradients, as the matrices of both layers: they share memory.
func layers(w []float64) (w1, b1, w2, b2 *mat.Dense) {
	at := 0
	next := func(rows, columns int) *mat.Dense {
		at += rows * columns
		return mat.NewDense(rows, columns, w[at-rows*columns:at])
	}
	return next(inputs, hidden), next(1, hidden), next(hidden, 1), next(1, 1)
}

// network is a rank's copy of the network, and the loss of each step so far.
type network struct {
	weights, before []float64 // now, and before the last step
	losses          []float64
}

// resume has all ranks go on from the same step. When a rank died, some of the others had the sums of a step already, and some did
// not: they are one step apart at most, since nobody gets the next sums without all.
func (n *network) resume(ctx context.Context, c *ubcoll.Comm) error {
	done := []int64{int64(len(n.losses))}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(done), ubcoll.Of(done), ubcoll.Min); err != nil {
		return err
	}
	if least := int(done[0]); len(n.losses) > least {
		copy(n.weights, n.before)
		n.losses = n.losses[:least]
	}
	return nil
}

// train minimizes the mean squared error by gradient descent, in the steps that are left. It writes the
// gradients and the loss of these samples to sum, in which reduce adds up the ranks' values.
func (n *network) train(sum []float64, x, y *mat.Dense, reduce func() error) error {
	w1, b1, w2, b2 := layers(n.weights)
	g1, gb1, g2, gb2 := layers(sum[:numbers])
	rows, _ := x.Dims()
	h, out, back := mat.NewDense(rows, hidden, nil), mat.NewDense(rows, 1, nil), mat.NewDense(rows, hidden, nil)
	ones := mat.NewDense(1, rows, nil) // ones times a matrix are the sums of its columns
	ones.Apply(func(int, int, float64) float64 { return 1 }, ones)
	for len(n.losses) < steps {
		// Forward: a hidden layer with tanh, and a linear one.
		h.Mul(x, w1)
		h.Apply(func(_, j int, v float64) float64 { return math.Tanh(v + b1.At(0, j)) }, h)
		out.Mul(h, w2)
		out.Apply(func(i, _ int, v float64) float64 { return v + b2.At(0, 0) - y.At(i, 0) }, out) // the error
		loss := mat.Dot(out.ColView(0), out.ColView(0))
		// Backward: the gradients of the sum of squared errors.
		out.Scale(2, out)
		g2.Mul(h.T(), out)
		gb2.Mul(ones, out)
		back.Mul(out, w2.T())
		back.Apply(func(i, j int, v float64) float64 { return v * (1 - h.At(i, j)*h.At(i, j)) }, back)
		g1.Mul(x.T(), back)
		gb1.Mul(ones, back)
		sum[numbers] = loss
		if err := reduce(); err != nil {
			return err
		}
		copy(n.before, n.weights)
		n.losses = append(n.losses, sum[numbers]/samples)
		for i := range n.weights { // all ranks have bitwise the same sums, so their weights stay the same
			n.weights[i] -= rate * sum[i] / samples
		}
	}
	return nil
}
