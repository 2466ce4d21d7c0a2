package roster

import (
	"bytes"
	"testing"
)

// Any input for a hello is either a hello or an error.
func FuzzHead(f *testing.F) {
	h := head{version: Version, race: true, pairs: true, comm: 7, agree: hash{1}, host: hash{2}, name: [64]byte{'a'}}
	f.Add(h.append(nil))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHead(b)
		if err != nil || h.version != Version {
			return
		}
		if len(h.hostname()) > len(h.name) {
			t.Fatal(h)
		}
		again, err := parseHead(h.append(nil))
		if err != nil || again != h {
			t.Fatal(again, h, err)
		}
	})
}

// Any input for rows is written to the table or nowhere.
func FuzzRows(f *testing.F) {
	f.Add(appendRow(appendRow(nil, 0, []byte("none")), 2, make([]byte, RowBytes)))
	f.Add([]byte{9, 0, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &Roster{Hosts: [][]int{{0}, {1, 2}}, host: []int{0, 1, 1}}
		memory := bytes.Repeat([]byte{0xee}, r.TableBytes()+8)
		clear(memory[:r.TableBytes()])
		r.Lay(memory[:r.TableBytes()])
		r.setRows(b)
		for rank := range r.Size() {
			if len(r.Row(rank)) > RowBytes {
				t.Fatal(r.Row(rank))
			}
		}
		if !bytes.Equal(memory[r.TableBytes():], bytes.Repeat([]byte{0xee}, 8)) {
			t.Fatal("beyond the table")
		}
	})
}
