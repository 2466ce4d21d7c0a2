// Command 11-hosts reduces on several hosts in two steps: on each host first, and then between the hosts' first ranks.
// It works on one host, too.
//
//	NTHREADS=4 go run ./examples/11-hosts
//	ubcoll launch -hosts a:2,b:2 -- ./11-hosts
package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	// Every rank knows every rank's host. The first rank of a host stands for the host: it is its leader.
	leaders := map[string]int{}
	ranks := map[string][]string{} // by host
	var hosts []string             // in the order of their leaders
	for r := range c.Size() {
		host := c.Hostname(r)
		if _, known := leaders[host]; !known {
			leaders[host] = r
			hosts = append(hosts, host)
		}
		ranks[host] = append(ranks[host], fmt.Sprint(r))
	}
	leader := leaders[c.Hostname(c.Rank())]

	// With the leader's rank as color, Split makes a communicator of each host's ranks. It can do everything that works
	// on one host: messages, channels, windows, GPUs. Between hosts there are all collectives of host memory.
	local, err := c.Split(ctx, leader, c.Rank())
	if err != nil {
		return err
	}
	// A rank without a color takes part in the call, and gets a nil communicator.
	color := ubcoll.NoColor
	if c.Rank() == leader {
		color = 0
	}
	between, err := c.Split(ctx, color, c.Rank())
	if err != nil {
		return err
	}

	// The sum in two steps: to the host's leader, then between the leaders, and back to all ranks of the host.
	mine, sum := []int64{int64(c.Rank() + 1)}, make([]int64, 1)
	if err := coll.Reduce(ctx, local, ubcoll.Of(sum), ubcoll.Of(mine), ubcoll.Sum, 0); err != nil {
		return err
	}
	if between != nil {
		if err := coll.AllReduce(ctx, between, ubcoll.Of(sum), ubcoll.Of(sum), ubcoll.Sum); err != nil {
			return err
		}
	}
	if err := coll.Broadcast(ctx, local, ubcoll.Of(sum), 0); err != nil {
		return err
	}

	// The library takes the same steps in one call.
	all := make([]int64, 1)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(mine), ubcoll.Sum); err != nil {
		return err
	}
	if sum[0] != all[0] {
		return fmt.Errorf("the sum in two steps is %d, and in one call %d", sum[0], all[0])
	}
	if c.Rank() == 0 {
		fmt.Printf("ranks: %d, hosts: %d\n", c.Size(), len(hosts))
		for _, host := range hosts {
			fmt.Printf("on %s: %s\n", host, strings.Join(ranks[host], ", "))
		}
		fmt.Printf("the sum is %d, in two steps as in one call\n", sum[0])
	}

	if between != nil {
		if err := between.Close(); err != nil {
			return err
		}
	}
	return local.Close()
}
