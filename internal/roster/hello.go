package roster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Version must change whenever ranks built before and after a change could not work together.
const Version = 31

var order = binary.LittleEndian

// hash stands for data that ranks compare without knowing it.
type hash [16]byte

func hashOf(v any) hash {
	b, err := json.Marshal(v) // cannot fail: strings
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hash(sum[:16])
}

// head is the first thing that ranks tell each other. All ranks send it to all, so it is small and has the same size in
// all versions.
type head struct {
	version uint16
	race    bool
	failed  bool     // the rank cannot go on; the envelope behind the head says why
	pairs   bool     // its bootstrap exchanges between two ranks
	keyed   bool     // its bootstrap has a secret
	comm    uint64   // rank 0's is the communicator's number; 0 on others, so that heads of one host are alike
	agree   hash     // of the settings that must be the same
	host    hash     // of the host's identity
	secret  [16]byte // likewise rank 0's
	name    [64]byte // of the host
}

const (
	headBytes = 128
	headMagic = 0x31636275 // "ubc1"

	flagRace   = 1
	flagFailed = 2
	flagPairs  = 4
	flagKeyed  = 8
)

func (h *head) append(b []byte) []byte {
	flags := uint16(0)
	if h.race {
		flags |= flagRace
	}
	if h.failed {
		flags |= flagFailed
	}
	if h.pairs {
		flags |= flagPairs
	}
	if h.keyed {
		flags |= flagKeyed
	}
	b = order.AppendUint32(b, headMagic)
	b = order.AppendUint16(b, h.version)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint64(b, h.comm)
	b = append(b, h.agree[:]...)
	b = append(b, h.host[:]...)
	b = append(b, h.secret[:]...)
	return append(b, h.name[:]...)
}

func parseHead(b []byte) (h head, err error) {
	if len(b) < 8 || order.Uint32(b) != headMagic {
		return h, fmt.Errorf("%d bytes that are no hello: %w", len(b), fault.ErrMismatch)
	}
	h.version = order.Uint16(b[4:])
	if h.version != Version {
		return h, nil // another version: the rest may mean anything
	}
	if len(b) < headBytes {
		return h, fmt.Errorf("a hello of %d bytes: %w", len(b), fault.ErrMismatch)
	}
	flags := order.Uint16(b[6:])
	h.race, h.failed, h.pairs = flags&flagRace != 0, flags&flagFailed != 0, flags&flagPairs != 0
	h.keyed = flags&flagKeyed != 0
	h.comm = order.Uint64(b[8:])
	copy(h.agree[:], b[16:])
	copy(h.host[:], b[32:])
	copy(h.secret[:], b[48:])
	copy(h.name[:], b[64:])
	return h, nil
}

func (h *head) hostname() string {
	for i, c := range h.name {
		if c == 0 {
			return string(h.name[:i])
		}
	}
	return string(h.name[:])
}

// gatherHeads exchanges heads. In small jobs it also returns the bodies behind them, else nil.
func gatherHeads(ctx context.Context, b bootstrap.Bootstrap, h head, mine Hello, own error) (
	heads []head, bodies []json.RawMessage, err error) {
	rides := b.Size() <= inlineDetailRanks
	var e envelope
	if rides || own != nil {
		e, own = enclose(mine, own)
	}
	h.failed = own != nil
	told := h.append(make([]byte, 0, headBytes))
	if rides || own != nil {
		told = append(told, e.bytes()...)
	}
	all, err := b.AllGather(ctx, told)
	if err != nil {
		return nil, nil, unexchanged(own, notExchanged(ctx, err))
	}
	if own != nil {
		return nil, nil, own
	}
	heads = make([]head, len(all))
	for r := range all {
		if heads[r], err = parseHead(all[r]); err != nil {
			return nil, nil, whatRankSent(r, err)
		}
	}
	if err := sameVersion(heads); err != nil {
		return nil, nil, err
	}
	if rides {
		bodies = make([]json.RawMessage, len(all))
	}
	for r := range all {
		if !rides && !heads[r].failed {
			continue
		}
		e, err := open(all[r][headBytes:])
		if err != nil {
			return nil, nil, whatRankSent(r, err)
		}
		if err := e.error(r, len(all)); err != nil {
			return nil, nil, err
		}
		if rides {
			bodies[r] = e.Body
		}
	}
	return heads, bodies, nil
}

func whatRankSent(r int, err error) error {
	return reason.About(r, fmt.Errorf("what rank %d sent: %w", r, err))
}

// Setting is a setting that must be the same on all ranks: its name in errors, and its value here. A setting that a
// rank does not have counts as unset.
type Setting struct{ What, Value string }

func differ(what string, x, y any, r int) error {
	return reason.About(r, fmt.Errorf("%s is %v on rank 0 and %v on rank %d: %w", what, x, y, r, fault.ErrMismatch))
}

func sameVersion(heads []head) error {
	for r := range heads {
		if heads[r].version != heads[0].version {
			return differ("the library's wire version", heads[0].version, heads[r].version, r)
		}
	}
	return nil
}

// compareAll returns an error that names the first rank that differs from rank 0, and in what. If hashes differ, the
// ranks tell each other their settings.
func compareAll(ctx context.Context, b bootstrap.Bootstrap, heads []head, agree []Setting) error {
	odd := compare(heads)
	if odd < 0 {
		return nil
	}
	if x, y := heads[0].race, heads[odd].race; x != y {
		return differ("the race detector", x, y, odd)
	}
	e, _ := enclose(agree, nil)
	all, err := b.AllGather(ctx, e.bytes())
	if err != nil {
		return notExchanged(ctx, err)
	}
	var sets [2][]Setting
	for i, r := range []int{0, odd} {
		e, err := open(all[r])
		if err == nil {
			err = json.Unmarshal(e.Body, &sets[i])
		}
		if err != nil {
			return whatRankSent(r, err)
		}
	}
	what, x, y := difference(sets[0], sets[1])
	return differ(what, x, y, odd)
}

// compare returns the first rank that differs from rank 0 in what must be the same, or -1.
func compare(heads []head) int {
	a := &heads[0]
	for r := range heads {
		if h := &heads[r]; h.race != a.race || h.agree != a.agree {
			return r
		}
	}
	return -1
}

// difference returns the first setting in which a and b differ, with both values.
func difference(a, b []Setting) (what, x, y string) {
	const unset = "unset"
	values := func(s []Setting) map[string]string {
		m := map[string]string{}
		for _, k := range s {
			m[k.What] = k.Value
		}
		return m
	}
	in, is := values(a), values(b)
	for _, k := range append(a[:len(a):len(a)], b...) {
		x, ok := in[k.What]
		y, also := is[k.What]
		if ok && also && x == y {
			continue
		}
		if !ok {
			x = unset
		}
		if !also {
			y = unset
		}
		return k.What, x, y
	}
	return "the order of settings", "one", "another"
}

// keyOf returns the secret of a bootstrap, or nil.
func keyOf(b bootstrap.Bootstrap) []byte {
	if k, ok := b.(bootstrap.Keyed); ok {
		return k.Key()
	}
	return nil
}

// jobSecret is the secret of the job, for which rank 0 has drawn random. If the bootstraps of all ranks have a secret,
// knowing random alone does not reveal it.
func jobSecret(b bootstrap.Bootstrap, heads []head) []byte {
	random := heads[0].secret[:]
	if slices.ContainsFunc(heads, func(h head) bool { return !h.keyed }) {
		return append([]byte{}, random...)
	}
	m := hmac.New(sha256.New, keyOf(b))
	m.Write([]byte("ubcoll job"))
	m.Write(random)
	return m.Sum(nil)[:len(random)]
}
