package schedule

// Ways are those that an operation of that name can take between hosts if it is too large to travel with the agreement:
// "all_reduce", "broadcast", ... Nil: there is no such operation.
func Ways(operation string) []Way { return waysOf[operation] }

var waysOf = map[string][]Way{
	"all_reduce": Reducing, "broadcast": Sending, "reduce": ToRoot, "all_gather": {GatherDoubling, Pairwise},
	"reduce_scatter": {ScatterHalving, Pairwise}, "gather": {GatherTree, Linear}, "scatter": {ScatterTree, Linear},
	"all_to_all": {Pairwise},
}

// Name is what the field calls the way between so many hosts, for people: String is for programs.
func (w Way) Name(hosts int) string {
	if w == GatherDoubling && hosts&(hosts-1) != 0 {
		return "Bruck's all-gather"
	}
	return [...]string{Ring: "ring", Doubling: "recursive doubling", Halving: "halving-doubling", Chain: "pipelined chain",
		Tree: "binomial tree", Scatter: "scatter and all-gather", ToTree: "binomial tree", ToChain: "pipelined chain",
		Pairwise: "pairwise exchange", Linear: "linear", GatherDoubling: "recursive doubling", ScatterHalving: "recursive halving",
		GatherTree: "binomial tree", ScatterTree: "binomial tree"}[w]
}
