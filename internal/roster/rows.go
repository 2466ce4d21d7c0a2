package roster

// RowBytes is how long a rank's row may be.
const RowBytes = 128

const slotBytes = 2 + RowBytes // the row's length, and the row

// TableBytes is how much memory the rows of all ranks take.
func (r *Roster) TableBytes() int { return r.Size() * slotBytes }

// Lay says where the rows of all ranks are, TableBytes long: once on each host, in memory of its first rank, which lays
// it before the exchange that brings them and has it filled then; the others lay the same memory as they have mapped it.
func (r *Roster) Lay(table []byte) { r.table = table }

// Row is what a rank has told with ExchangeRows; empty if it told nothing. On ranks that are not the first of their host
// it is there once a further exchange is over. It is the table's own memory, and only read.
func (r *Roster) Row(rank int) []byte {
	if r.table == nil {
		return nil
	}
	s := r.table[rank*slotBytes:][:slotBytes]
	return s[2:][:min(int(order.Uint16(s)), RowBytes)]
}

// setRow fills a row of the table if it is this rank that does so.
func (r *Roster) setRow(rank int, row []byte) {
	if r.table == nil || row == nil || !r.First() || rank >= r.Size() {
		return
	}
	s := r.table[rank*slotBytes:][:slotBytes]
	order.PutUint16(s, uint16(min(len(row), RowBytes)))
	copy(s[2:], row)
}

// appendRow appends a rank's row as it travels with others.
func appendRow(b []byte, rank int, row []byte) []byte {
	b = order.AppendUint16(order.AppendUint16(b, uint16(rank)), uint16(len(row)))
	return append(b, row...)
}

// setRows fills the rows that appendRow has put together.
func (r *Roster) setRows(rows []byte) {
	for len(rows) >= 4 {
		rank, size := int(order.Uint16(rows)), min(int(order.Uint16(rows[2:])), len(rows)-4)
		r.setRow(rank, rows[4:4+size])
		rows = rows[4+size:]
	}
}
