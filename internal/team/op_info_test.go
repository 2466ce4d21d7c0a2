package team

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	direct := BufferInfo{Used: true, Direct: true}
	for _, c := range []struct {
		name string
		op   string
		info OpInfo
		want string
	}{
		{"nothing yet", "", OpInfo{}, "no operation yet"},
		{"both direct", "all_reduce", OpInfo{Seq: 7, Algorithm: "ring", Bytes: 4096, Src: direct, Dst: direct},
			"all_reduce #7: ring, 4096 bytes; source: direct; destination: direct"},
		{"staged", "all_reduce", OpInfo{Seq: 1, Algorithm: "ring", Bytes: 8,
			Src: BufferInfo{Used: true, Why: "Go memory"}, Dst: direct},
			"all_reduce #1: ring, 8 bytes; source: staged: Go memory; destination: direct"},
		{"one buffer", "broadcast", OpInfo{Seq: 2, Algorithm: "flat", Bytes: 8, Dst: direct},
			"broadcast #2: flat, 8 bytes; destination: direct"},
		{"no buffer", "barrier", OpInfo{Seq: 3, Algorithm: "barrier"}, "barrier #3: barrier, 0 bytes"},
		{"measured", "broadcast", OpInfo{Seq: 4, Algorithm: "flat", Bytes: 8, Dst: direct, Took: 1500, Waited: 200},
			"broadcast #4: flat, 8 bytes; destination: direct; took 1.5µs, 200ns of it until all ranks had come"},
		{"measured by the host", "broadcast", OpInfo{Seq: 4, Algorithm: "flat", Bytes: 8, Dst: direct, Took: 1500},
			"broadcast #4: flat, 8 bytes; destination: direct; took 1.5µs"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.info.Text(c.op)) })
	}
}

// TestAcrossText: what LastOp says of an operation between hosts, for every way and layout of buffers.
func TestAcrossText(t *testing.T) {
	const kernel = "copied by the kernel"
	direct, gone := BufferInfo{Used: true, Direct: true}, BufferInfo{}
	slice := BufferInfo{Used: true, Why: "Go or foreign memory is never registered"}
	small := BufferInfo{Used: true, Why: "small enough to travel with what the hosts say"}
	owner := Link{Name: "tcp eth0", Connections: 1, Hosts: 4, Why: kernel, Leader: true, Owner: true, Choice: "default costs"}
	alone, three, two, other, asked, wide := owner, owner, owner, owner, owner, owner
	alone.Single = true
	three.Hosts, three.Single, three.Choice = 3, true, ""
	two.Hosts, two.Choice = 2, ""
	other.Name, other.Leader, other.Owner = "tcp", false, false
	asked.Asked = "ring"
	wide.Connections = 4
	for _, c := range []struct {
		name string
		info OpInfo
		want string
	}{
		{"all lanes, direct", OpInfo{Kind: KindAllReduce, Algorithm: "halving", Bytes: 4 << 20, Src: direct, Dst: direct, Between: &owner,
			Inner: [2]string{"", "push"}, Lanes: 4}, "two-level: reduce-scatter in the host, halving-doubling over 4 hosts by default costs, " +
			"4 lanes, tcp eth0, all-gather in the host; source and destination direct in the host, copied by the kernel between hosts"},
		{"one lane, staged", OpInfo{Kind: KindAllReduce, Algorithm: "ring", Bytes: 4 << 20, Src: slice, Dst: direct, Between: &asked,
			Inner: [2]string{"two-shot", "two-shot"}, Lanes: 1}, "two-level: reduce in the host, ring over 4 hosts, tcp eth0, broadcast in " +
			"the host; source copied by the kernel between hosts, staged in the host: Go or foreign memory is never registered; " +
			"destination direct in the host, copied by the kernel between hosts"},
		{"no owner of a lane", OpInfo{Kind: KindAllReduce, Algorithm: "doubling", Bytes: 64, Src: direct, Dst: slice, Between: &other,
			Inner: [2]string{"", "push"}, Lanes: 2}, "two-level: reduce-scatter in the host, recursive doubling over 4 hosts by default " +
			"costs, 2 lanes, tcp, all-gather in the host; source direct in the host, left to other ranks between hosts; destination " +
			"left to other ranks between hosts, staged in the host: Go or foreign memory is never registered"},
		{"one rank on this host", OpInfo{Kind: KindAllReduce, Algorithm: "halving", Bytes: 64, Src: direct, Dst: direct, Between: &alone, Lanes: 1},
			"halving-doubling over 4 hosts by default costs, tcp eth0; source and destination copied by the kernel between hosts"},
		{"connections", OpInfo{Kind: KindReduce, Algorithm: "chain", Bytes: 64, Src: direct, Dst: gone, Between: &wide, Lanes: 2,
			Inner: [2]string{"", "push"}}, "two-level: reduce-scatter in the host, pipelined chain over 4 hosts by default costs, 2 lanes, " +
			"tcp eth0 (4 connections), gather in the host; source direct in the host, copied by the kernel between hosts"},
		{"reduce", OpInfo{Kind: KindReduce, Algorithm: "tree", Bytes: 64, Src: direct, Between: &two, Lanes: 1, Inner: [2]string{"", "push"}},
			"two-level: reduce in the host, binomial tree over 2 hosts, tcp eth0; source direct in the host, copied by the kernel between hosts"},
		{"reduce-scatter", OpInfo{Kind: KindReduceScatter, Algorithm: "halving", Bytes: 64, Src: direct, Dst: direct, Between: &two, Lanes: 1,
			Inner: [2]string{"", "push"}}, "two-level: reduce in the host, recursive halving over 2 hosts, tcp eth0, scatter in the host; " +
			"source and destination direct in the host, copied by the kernel between hosts"},
		{"broadcast, tree", OpInfo{Kind: KindBroadcast, Algorithm: "tree", Bytes: 64, Dst: direct, Between: &two, Lanes: 1, Inner: [2]string{"", "push"}},
			"two-level: binomial tree over 2 hosts, tcp eth0, broadcast in the host; destination direct in the host, copied by the kernel between hosts"},
		{"broadcast, scatter", OpInfo{Kind: KindBroadcast, Algorithm: "scatter", Bytes: 64, Src: direct, Between: &two, Lanes: 2,
			Inner: [2]string{"", "push"}}, "two-level: scatter in the host, scatter and all-gather over 2 hosts, 2 lanes, tcp eth0, all-gather " +
			"in the host; source direct in the host, copied by the kernel between hosts"},
		{"broadcast, chain", OpInfo{Kind: KindBroadcast, Algorithm: "chain", Bytes: 64, Src: direct, Between: &three, Lanes: 1},
			"pipelined chain over 3 hosts, tcp eth0; source copied by the kernel between hosts"},
		{"all-gather, pairs", OpInfo{Kind: KindAllGather, Algorithm: "doubling", Bytes: 64, Src: direct, Dst: direct, Between: &two, Lanes: 1,
			Inner: [2]string{"", "push"}}, "two-level: gather in the host, recursive doubling over 2 hosts, tcp eth0, broadcast in the host; " +
			"source and destination direct in the host, copied by the kernel between hosts"},
		{"all-gather, no power of two", OpInfo{Kind: KindAllGather, Algorithm: "doubling", Bytes: 64, Src: direct, Dst: direct, Between: &three, Lanes: 1},
			"Bruck's all-gather over 3 hosts, tcp eth0; source and destination copied by the kernel between hosts"},
		{"all-gather with counts", OpInfo{Kind: KindAllGatherV, Algorithm: "pairwise", Bytes: 64, Src: direct, Dst: direct, Between: &three, Lanes: 1},
			"pairwise exchange over 3 hosts, tcp eth0; source and destination copied by the kernel between hosts"},
		{"gather, tree", OpInfo{Kind: KindGather, Algorithm: "tree", Bytes: 64, Src: direct, Between: &three, Lanes: 1},
			"binomial tree over 3 hosts, tcp eth0; source copied by the kernel between hosts"},
		{"gather, pairwise", OpInfo{Kind: KindGather, Algorithm: "pairwise", Bytes: 64, Src: direct, Between: &two, Lanes: 2, Inner: [2]string{"", "push"}},
			"two-level: gather in the host, linear over 2 hosts, 2 lanes, tcp eth0; source direct in the host, copied by the kernel between hosts"},
		{"scatter with counts", OpInfo{Kind: KindScatterV, Algorithm: "pairwise", Bytes: 64, Dst: direct, Between: &two, Lanes: 2,
			Inner: [2]string{"", "push"}}, "two-level: linear over 2 hosts, 2 lanes, tcp eth0, scatter in the host; destination direct in the " +
			"host, copied by the kernel between hosts"},
		{"all-to-all", OpInfo{Kind: KindAllToAll, Algorithm: "pairwise", Bytes: 64, Src: direct, Dst: direct, Between: &two, Lanes: 2,
			Inner: [2]string{"", "push"}}, "two-level: gather in the host, pairwise exchange over 2 hosts, 2 lanes, tcp eth0, scatter in the " +
			"host; source and destination direct in the host, copied by the kernel between hosts"},
		{"all-to-all with counts, none here", OpInfo{Kind: KindAllToAllV, Algorithm: "pairwise", Between: &three, Lanes: 1},
			"pairwise exchange over 3 hosts, tcp eth0"},
		{"contributions, pairs", OpInfo{Kind: KindAllReduce, Algorithm: "exchange", Bytes: 16, Src: small, Dst: small, Between: &owner},
			"two-level: reduce in the host, recursive doubling in the messages of the agreement over 4 hosts, tcp eth0, broadcast in the " +
				"host; source and destination copied by the kernel between hosts, staged in the host: small enough to travel with what the hosts say"},
		{"contributions, no power of two", OpInfo{Kind: KindAllReduce, Algorithm: "exchange", Bytes: 16, Src: small, Dst: small, Between: &three},
			"Bruck's all-gather in the messages of the agreement over 3 hosts, tcp eth0; source and destination copied by the kernel between " +
				"hosts, staged: small enough to travel with what the hosts say"},
		{"routed", OpInfo{Kind: KindAllToAll, Algorithm: "exchange", Bytes: 16, Src: direct, Between: &three, Routed: true},
			"routed in the messages of the agreement (Bruck) over 3 hosts, tcp eth0; source copied by the kernel between hosts"},
		{"routed and combined", OpInfo{Kind: KindReduceScatter, Algorithm: "exchange", Bytes: 16, Src: direct, Between: &alone, Routed: true},
			"routed in the messages of the agreement (recursive halving) over 4 hosts, tcp eth0; source copied by the kernel between hosts"},
		{"routed from the root", OpInfo{Kind: KindScatter, Algorithm: "exchange", Bytes: 16, Dst: direct, Between: &alone, Routed: true},
			"routed in the messages of the agreement (binomial tree) over 4 hosts, tcp eth0; destination copied by the kernel between hosts"},
		{"barrier, pairs", OpInfo{Kind: KindBarrier, Algorithm: "descriptors", Between: &owner},
			"two-level: agreement in the host, recursive doubling over 4 hosts, tcp eth0"},
		{"barrier, no power of two", OpInfo{Kind: KindBarrier, Algorithm: "descriptors", Between: &three}, "dissemination over 3 hosts, tcp eth0"},
		{"a way without a name", OpInfo{Kind: KindAllReduce, Algorithm: "new", Bytes: 1, Between: &three, Lanes: 1}, "new over 3 hosts, tcp eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.info.Seq = 7
			require.Equal(t, fmt.Sprintf("op #7: %d bytes; %s", c.info.Bytes, c.want), c.info.Text("op"))
		})
	}
	refused := OpInfo{Seq: 7, Kind: KindAllReduce, Algorithm: Refused, Bytes: 64, Between: &owner}
	require.Equal(t, "op #7: refused, 64 bytes", refused.Text("op"))
	refused = OpInfo{Seq: 7, Kind: KindAllReduce, Algorithm: "ring", Bytes: 64, Between: &three, Lanes: 1, Took: 1500, Waited: 200, Members: make([]OpInfo, 2)}
	require.Equal(t, "op #7, the last of 2 in one: 64 bytes; ring over 3 hosts, tcp eth0; took 1.5µs, 200ns of it until all ranks had come",
		refused.Text("op"))
}

// TestLevelText: what a level says of itself.
func TestLevelText(t *testing.T) {
	direct := BufferInfo{Used: true, Direct: true}
	link := Link{Name: "tcp eth0", Connections: 1, Hosts: 4, Why: "copied by the kernel", Leader: true, Choice: "default costs"}
	for _, c := range []struct {
		name string
		info OpInfo
		want []string
	}{
		{"one host", OpInfo{Kind: KindAllReduce, Algorithm: "push", Bytes: 64, Src: direct, Dst: direct}, []string{"in the host push, shared memory: direct"}},
		{"lanes", OpInfo{Kind: KindAllReduce, Algorithm: "halving", Bytes: 64, Src: direct, Dst: direct, Between: &link, Inner: [2]string{"", "push"}, Lanes: 2},
			[]string{"in the host reduce-scatter and all-gather (push), shared memory: direct",
				"halving-doubling over 4 hosts by default costs, 2 lanes, tcp eth0: copied by the kernel"}},
		{"before alone", OpInfo{Kind: KindGather, Algorithm: "tree", Bytes: 64, Src: direct, Between: &link, Inner: [2]string{"", "two-shot"}, Lanes: 1},
			[]string{"in the host gather (two-shot), shared memory: source direct", "binomial tree over 4 hosts by default costs, tcp eth0: copied by the kernel"}},
		{"after alone", OpInfo{Kind: KindBroadcast, Algorithm: "tree", Bytes: 64, Dst: direct, Between: &link, Inner: [2]string{"", "pull"}, Lanes: 1},
			[]string{"in the host broadcast (pull), shared memory: destination direct", "binomial tree over 4 hosts by default costs, tcp eth0: copied by the kernel"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.info.Seq = 1
			var all []string
			for _, l := range c.info.Levels() {
				all = append(all, l.String())
			}
			require.Equal(t, c.want, all)
		})
	}
}
