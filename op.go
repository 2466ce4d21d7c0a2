package ubcoll

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Op is how a collective combines elements. All ranks must pass the same.
type Op op

type op = inside.Op

// The reductions. Integers wrap around on overflow. Min and Max give NaN if any operand is NaN. Avg is the sum divided
// by the number of ranks, truncated toward zero for integers. Half types are computed in float32 and rounded once. The
// ring, which takes them only if it is asked for, rounds them at each step: a sum or product that leaves the type's
// range on the way is lost, while an average cannot leave it. The algorithm decides the order of operands, and the
// result is bitwise the same on all ranks. For bools only Max (or) and Min (and) exist; the others are [ErrArgument] on
// all ranks. Bytes other than 0 count as true (1), and results are 0 or 1.
var (
	Sum  = reduction(redSum)
	Prod = reduction(redProd)
	Min  = reduction(redMin)
	Max  = reduction(redMax)
	Avg  = reduction(redAvg)
)

// Replace takes the source instead of what was there. It is for [Window.Accumulate]; a collective returns [ErrArgument] on
// all ranks.
var Replace = reduction(redReplace)

const (
	redSum  = team.Sum
	redProd = team.Prod
	redMin  = team.Min
	redMax  = team.Max
	redAvg  = team.Avg

	redReplace = team.Replace
)

func reduction(r team.Reduction) Op { return Op(inside.NewOp(team.Op{Red: r})) }

// PreMulSum is the sum of each rank's source times x, which may differ between ranks. Floats are multiplied in their
// own type (half types in float32, rounded once), integers by x's integer part. The source itself is not changed, so
// the product goes through staging memory. Source: NCCL's ncclRedOpCreatePreMulSum.
func PreMulSum(x float64) Op { return Op(inside.NewOp(team.Op{Red: team.PreMulSum, Factor: x})) }

// ParseOp parses the words that [Op.String] returns: "sum", "prod", "min", "max", "avg", "replace", "premulsum(0.5)"; anything
// else is [ErrArgument]. Local.
func ParseOp(s string) (Op, error) {
	if text, ok := strings.CutPrefix(s, "premulsum("); ok {
		text, ok = strings.CutSuffix(text, ")")
		x, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil {
			return Op{}, fmt.Errorf("operation %q is not as in premulsum(0.5): %w", s, fault.ErrArgument)
		}
		return PreMulSum(x), nil
	}
	var names []string
	for _, o := range []Op{Sum, Prod, Min, Max, Avg, Replace} {
		if o.String() == s {
			return o, nil
		}
		names = append(names, o.String())
	}
	return Op{}, fmt.Errorf("%s: %w", nearest.Unknown("operation", s, append(names, "premulsum(x)")), fault.ErrArgument)
}

// String is the operation's name, and its factor if it has one: "sum", "premulsum(0.5)".
func (o Op) String() string {
	x := o.team()
	if x.Red == team.PreMulSum {
		return fmt.Sprintf("%v(%v)", x.Red, x.Factor)
	}
	return x.Red.String()
}

func (o Op) team() team.Op { return inside.Op(o).Team() }
