package bench

import (
	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/team"
)

// modelled is how many microseconds an operation of so many elements should take between the hosts of c, by the costs that its
// way is chosen by. It is 0 on one host, for operations that have no model, and for those that a CollNet plugin does.
func modelled(c *ubcoll.Comm, o *operation, count int, t dtype.Type) float64 {
	ranks := (*inside.Comm)(c).View().Team()
	if ranks.Hosts == nil || o.kind == 0 {
		return 0
	}
	l, m := ranks.Hosts.Layout(), ranks.Costs()
	op := model.Op{Kind: o.kind, Count: count, Size: t.Size()}
	sum := team.Work{Kind: o.kind, Type: t, Red: team.Sum} // plugins reduce by others where they do by that
	if l.CollNet.Does(&sum) && model.Small(l, op) == 0 && model.ByCollNet(l, m, ranks.Algorithm(), op) {
		return 0
	}
	return model.Time(l, m, 0, op, model.Chosen(l, m, ranks.Algorithm(), op)) / 1e3
}
