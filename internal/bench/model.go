package bench

import (
	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/model"
)

// modelled is how many microseconds an operation of so many elements should take between the hosts of c, by the costs that its
// way is chosen by. It is 0 on one host, and for operations that have no model.
func modelled(c *ubcoll.Comm, o *operation, count int, t dtype.Type) float64 {
	team := (*inside.Comm)(c).View().Team()
	if team.Hosts == nil || o.kind == 0 {
		return 0
	}
	l, m := team.Hosts.Layout(), team.Costs()
	op := model.Op{Kind: o.kind, Count: count, Size: t.Size()}
	return model.Time(l, m, 0, op, model.Chosen(l, m, team.Algorithm(), op)) / 1e3
}
