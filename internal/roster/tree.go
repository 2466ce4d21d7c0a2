package roster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
)

// If the bootstrap exchanges between two ranks, no rank hears from all. The first rank of each host hears from the
// host's other ranks, one after the other. The first ranks then exchange all digests in floor(log2 H) rounds, and two
// more if the number of hosts, H, is no power of two. Then each tells its host. Ranks cannot wait for each other in a
// circle: the pairs of a round have no rank in common, and rounds have the same order on all ranks.

// digest is what a host tells the ranks of other hosts.
type digest struct {
	From  int      `json:"from"` // the rank that sent Err
	Err   envelope `json:"err"`  // without body
	Apart []Apart  `json:"apart,omitempty"`
	Rows  []byte   `json:"rows,omitempty"` // each after its rank and length
}

// maxWhy is how many bytes of a text travel between hosts.
const maxWhy = 200

// result is what the first rank of a host tells the host's other ranks.
type result struct {
	digest
	Bodies []json.RawMessage `json:"bodies"`
}

func (d *digest) add(o digest) {
	if o.Err.Err != "" && (d.Err.Err == "" || o.From < d.From) {
		d.From, d.Err = o.From, o.Err
	}
	d.Apart = append(d.Apart, o.Apart...)
	d.Rows = append(d.Rows, o.Rows...)
}

// tree is exchange with exchanges between pairs of ranks.
func (r *Roster) tree(ctx context.Context, e envelope, own error) (here []json.RawMessage, n news, err error) {
	x := r.b.(bootstrap.Exchanger)
	var all result
	if r.First() {
		all, err = r.lead(ctx, x, e)
	} else {
		all, err = r.follow(ctx, x, e)
	}
	if err != nil {
		return nil, n, unexchanged(own, notExchanged(ctx, err))
	}
	if own != nil {
		return nil, n, own
	}
	if err := all.Err.error(all.From, r.Size()); err != nil {
		return nil, n, err
	}
	slices.SortFunc(all.Apart, func(a, b Apart) int { return cmp.Compare(a.Rank, b.Rank) })
	r.setRows(all.Rows)
	for _, a := range all.Apart {
		if a.Rank < 0 || a.Rank >= r.Size() {
			return nil, n, fmt.Errorf("news of rank %d of %d: %w", a.Rank, r.Size(), fault.ErrMismatch)
		}
	}
	if len(all.Bodies) != len(r.LocalRanks()) {
		return nil, n, fmt.Errorf("%d parts for %d ranks of this host: %w", len(all.Bodies), len(r.LocalRanks()), fault.ErrMismatch)
	}
	return all.Bodies, news{all.Apart}, nil
}

// follow is tree on all ranks of a host but the first.
func (r *Roster) follow(ctx context.Context, x bootstrap.Exchanger, e envelope) (all result, err error) {
	first := r.LocalRanks()[0]
	if _, err = x.Exchange(ctx, first, e.bytes()); err != nil {
		return all, err
	}
	err = receive(ctx, x, first, nil, &all)
	return all, err
}

// receive exchanges with a rank, and decodes what that has sent.
func receive(ctx context.Context, x bootstrap.Exchanger, peer int, mine []byte, v any) error {
	b, err := x.Exchange(ctx, peer, mine)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return whatRankSent(peer, err)
	}
	return nil
}

// lead is tree on the first rank of a host.
func (r *Roster) lead(ctx context.Context, x bootstrap.Exchanger, e envelope) (all result, err error) {
	here := r.LocalRanks()
	all.gather(here[0], e)
	for _, rank := range here[1:] {
		b, err := x.Exchange(ctx, rank, nil)
		if err != nil {
			return all, err
		}
		e, err := open(b)
		if err != nil {
			e, _ = enclose(nil, whatRankSent(rank, err))
		}
		all.gather(rank, e)
	}
	if err := r.meet(ctx, x, &all.digest); err != nil {
		return all, err
	}
	told := all
	told.Rows = nil // the rows are in the table already
	b, err := json.Marshal(told)
	for _, rank := range here[1:] {
		if err == nil {
			_, err = x.Exchange(ctx, rank, b)
		}
	}
	return all, err
}

// gather adds what a rank of this host has sent.
func (all *result) gather(rank int, e envelope) {
	cut := func(s string) string { return s[:min(len(s), maxWhy)] }
	if e.Err != "" && all.Err.Err == "" {
		all.From, all.Err = rank, envelope{Err: e.Err, Code: e.Code, About: e.About}
	}
	if e.Apart != nil && all.Apart == nil {
		all.Apart = []Apart{{rank, e.Apart.About, cut(e.Apart.Why)}}
	}
	if e.Row != nil {
		all.Rows = appendRow(all.Rows, rank, e.Row)
	}
	all.Bodies = append(all.Bodies, e.Body)
}

// meet merges the digests of all hosts into d, on the first rank of each host. Hosts beyond the largest power of two
// give theirs to another host, and get all from it at the end. In between, each round doubles what the others have.
func (r *Roster) meet(ctx context.Context, x bootstrap.Exchanger, d *digest) error {
	h, folded := r.Mine, 1<<(bits.Len(uint(len(r.Hosts)))-1)
	with := func(host int, mine *digest) (theirs digest, err error) {
		b, err := json.Marshal(mine)
		if err != nil {
			return theirs, err
		}
		err = receive(ctx, x, r.Hosts[host][0], b, &theirs)
		return theirs, err
	}
	if h >= folded {
		if _, err := with(h-folded, d); err != nil {
			return err
		}
		all, err := with(h-folded, nil)
		*d = all
		return err
	}
	add := func(host int) error {
		theirs, err := with(host, d)
		d.add(theirs)
		return err
	}
	partner := h + folded
	if partner < len(r.Hosts) {
		if err := add(partner); err != nil {
			return err
		}
	}
	for k := 1; k < folded; k *= 2 {
		if err := add(h ^ k); err != nil {
			return err
		}
	}
	if partner < len(r.Hosts) {
		_, err := with(partner, d)
		return err
	}
	return nil
}
