package bootstrap

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/ubcoll/ubcoll/fault"
)

// Rank 0 sends the result of an AllGather to each rank, so its size counts once for each. Much of what ranks tell is
// alike: all have the same settings, and those of one host the same host. So rank 0 sends equal parts once, and
// compresses the rest.

const (
	packLeast = 16 << 10 // smaller results are not worth it
	packMost  = 64 << 20 // larger ones would keep rank 0 busy for longer than the network
)

// resultFrame makes the frame of AllGather number seq's result.
func resultFrame(seq uint32, parts [][]byte) frame {
	plain := frame{kindResult, seq, packParts(parts)}
	if n := len(plain.body); n < packLeast || n > packMost {
		return plain
	}
	packed := frame{kindPacked, seq, deflate(packParts(distinctParts(parts)))}
	if len(packed.body) >= len(plain.body) {
		return plain
	}
	return packed
}

// result returns the parts in a frame of resultFrame, of which there must be n. They share memory with the frame, and
// with each other.
func (f frame) result(n int) ([][]byte, error) {
	if f.kind == kindResult {
		return unpackParts(f.body, n)
	}
	b, err := inflate(f.body, maxResult)
	if err != nil {
		return nil, err
	}
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(n)+1 {
		return nil, fmt.Errorf("message of %d bytes has no or too many distinct parts: %w", len(b), fault.ErrMismatch)
	}
	distinct, err := unpackParts(b, int(binary.BigEndian.Uint32(b)))
	if err != nil {
		return nil, err
	}
	return allParts(distinct, n)
}

// distinctParts returns each of the parts once, in the order in which they first occur, and behind them, as another
// one, each part's index among these.
func distinctParts(parts [][]byte) (distinct [][]byte) {
	indices := make([]byte, 0, 4*len(parts))
	seen := map[string]uint32{}
	for _, p := range parts {
		i, ok := seen[string(p)]
		if !ok {
			i = uint32(len(distinct))
			seen[string(p)] = i
			distinct = append(distinct, p)
		}
		indices = binary.BigEndian.AppendUint32(indices, i)
	}
	return append(distinct, indices)
}

// allParts is the reverse of distinctParts, for n parts.
func allParts(distinct [][]byte, n int) ([][]byte, error) {
	last := len(distinct) - 1
	if last < 0 || len(distinct[last]) != 4*n {
		return nil, fmt.Errorf("message without the indices of %d parts: %w", n, fault.ErrMismatch)
	}
	all, total := make([][]byte, n), 4
	for rank := range all {
		i := binary.BigEndian.Uint32(distinct[last][4*rank:])
		if uint64(i) >= uint64(last) {
			return nil, fmt.Errorf("part %d is number %d of %d: %w", rank, i, last, fault.ErrMismatch)
		}
		all[rank] = distinct[i]
		total += 4 + len(all[rank])
	}
	if total > maxResult {
		return nil, fmt.Errorf("all parts together have %d bytes, at most %d: %w", total, maxResult, fault.ErrLimit)
	}
	return all, nil
}

func deflate(b []byte) []byte {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestSpeed) // fails for an unknown level alone
	_, _ = w.Write(b)                              // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}

// inflate is the reverse of deflate, for up to most bytes.
func inflate(b []byte, most int64) ([]byte, error) {
	in := bytes.NewReader(b)
	r := flate.NewReader(in)
	var out bytes.Buffer
	switch n, err := io.Copy(&out, io.LimitReader(r, most+1)); {
	case err != nil:
		return nil, fmt.Errorf("message of %d compressed bytes: %w: %w", len(b), err, fault.ErrMismatch)
	case n > most:
		return nil, fmt.Errorf("compressed message of more than %d bytes: %w", most, fault.ErrLimit)
	case in.Len() > 0:
		return nil, fmt.Errorf("%d bytes after the compressed message: %w", in.Len(), fault.ErrMismatch)
	}
	return out.Bytes(), nil
}
