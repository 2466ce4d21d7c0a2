package roster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// envelope carries a rank's data, or why the rank cannot go on.
type envelope struct {
	Err   string          `json:"err,omitempty"`
	Code  int             `json:"code,omitempty"`  // reason.Code of Err
	About int             `json:"about,omitempty"` // 1 + the rank that Err is about; 0: the sender
	Apart *Apart          `json:"apart,omitempty"`
	Row   []byte          `json:"row,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

// enclose returns an envelope with v or, if own or the encoding of v is an error, with that error, which it also
// returns.
func enclose(v any, own error) (e envelope, _ error) {
	if own == nil {
		e.Body, own = json.Marshal(v)
	}
	if own != nil {
		e = envelope{Err: own.Error(), Code: reason.Code(own), About: reason.Blamed(own, -1) + 1}
	}
	return e, own
}

func (e *envelope) bytes() []byte {
	raw, _ := json.Marshal(e) // cannot fail: strings and marshalled JSON
	return raw
}

func open(b []byte) (e envelope, err error) {
	err = json.Unmarshal(b, &e)
	return e, err
}

// error returns why the sender, rank teller of a job of size ranks, cannot go on, or nil.
func (e *envelope) error(teller, size int) error {
	if e.Err == "" {
		return nil
	}
	about := e.About - 1
	if about < 0 || about >= size {
		about = teller
	}
	return reason.About(about, fmt.Errorf("rank %d: %w", teller, reason.Remote(e.Err, reason.OfCode(e.Code))))
}

// Exchange gathers v from the ranks of this host, in order. Collective over the job. own is why this rank has no v; it
// must take part anyway, because the others wait for it. If any ranks have errors, each of these returns its own, and
// all other ranks of the job return that of the first.
func Exchange[T any](ctx context.Context, r *Roster, v T, own error) ([]T, error) {
	return ExchangeRows(ctx, r, v, nil, own)
}

// ExchangeRows is Exchange, and also gives row, at most RowBytes long, to all ranks of the job: see Row.
func ExchangeRows[T any](ctx context.Context, r *Roster, v T, row []byte, own error) ([]T, error) {
	bodies, _, err := r.exchange(ctx, v, own, row, nil)
	if err != nil {
		return nil, err
	}
	return decode[T](r.LocalRanks(), bodies)
}

// news is what all ranks learn from all.
type news struct {
	Apart []Apart // for each host, that of the first rank that has one
}

// exchange gathers the bodies of this host's ranks, and the news of all.
func (r *Roster) exchange(ctx context.Context, v any, own error, row []byte, apart *Apart) (
	here []json.RawMessage, n news, err error) {
	if own == nil && len(row) > RowBytes {
		own = fmt.Errorf("a row of %d bytes, more than %d: %w", len(row), RowBytes, fault.ErrLimit)
	}
	e, own := enclose(v, own)
	if own == nil {
		e.Row, e.Apart = row, apart
	}
	if r.pairs && len(r.Hosts) > 1 {
		return r.tree(ctx, e, own)
	}
	all, err := r.b.AllGather(ctx, e.bytes())
	if err != nil {
		return nil, n, unexchanged(own, notExchanged(ctx, err))
	}
	if own != nil {
		return nil, n, own
	}
	said := map[int]bool{}
	for from := range all {
		e, err := open(all[from])
		if err != nil {
			return nil, n, whatRankSent(from, err)
		}
		if err := e.error(from, len(all)); err != nil {
			return nil, n, err
		}
		if e.Apart != nil && !said[r.host[from]] {
			said[r.host[from]] = true
			n.Apart = append(n.Apart, Apart{from, e.Apart.About, e.Apart.Why})
		}
		r.setRow(from, e.Row)
		if r.host[from] == r.Mine {
			here = append(here, e.Body)
		}
	}
	return here, n, nil
}

// decode decodes what each of ranks has sent.
func decode[T any](ranks []int, bodies []json.RawMessage) ([]T, error) {
	vs := make([]T, len(bodies))
	for i, b := range bodies {
		if err := json.Unmarshal(b, &vs[i]); err != nil {
			return nil, whatRankSent(ranks[i], err)
		}
	}
	return vs, nil
}

// pick returns the bodies of some ranks.
func pick(all []json.RawMessage, ranks []int) (some []json.RawMessage) {
	for _, r := range ranks {
		some = append(some, all[r])
	}
	return some
}

// unexchanged is the error of a rank that has one of its own, or nil, and could not tell the others. If its own says that
// it does not reach another rank, that rank has perhaps left because of what the exchange says: then that comes first,
// and names the rank.
func unexchanged(own, err error) error {
	if errors.Is(own, fault.ErrStale) || errors.Is(own, fault.ErrPeerLost) {
		return errors.Join(err, own)
	}
	return errors.Join(own, err)
}

// notExchanged returns why the bootstrap could not exchange, about the rank that its error names. A bootstrap may
// report ctx's end without its cause.
func notExchanged(ctx context.Context, err error) error {
	e, ok := errors.AsType[*fault.Error](err)
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), fault.ErrTimeout) {
		err = reason.Remote(fmt.Sprintf("%v: %v", err, context.Cause(ctx)), fault.ErrTimeout)
	}
	if ok && e.Peer >= 0 {
		err = reason.About(e.Peer, err)
	}
	return err
}
