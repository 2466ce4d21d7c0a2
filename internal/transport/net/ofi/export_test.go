package ofi

import (
	"io/fs"

	fabric "github.com/ubcoll/ubcoll/hw/ofi"
)

// SetRoot sets where devices are looked for, and returns a function that undoes that.
func SetRoot(to fs.FS) (undo func()) {
	was := root
	root = to
	return func() { root = was }
}

// Choose returns, for each provider in the order in which Open tries them, what it would open.
func (c *Config) Choose(infos []*fabric.Info) (all [][]string) {
	for _, ways := range c.providers(infos) {
		var names []string
		for _, i := range c.choose(ways) {
			names = append(names, i.String())
		}
		all = append(all, names)
	}
	return all
}
