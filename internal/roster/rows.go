package roster

// RowBytes is the largest length of a rank's row.
const RowBytes = 128

const slotBytes = 2 + RowBytes // the row's length, and the row

// TableBytes is how much memory the rows of all ranks take.
func (r *Roster) TableBytes() int { return r.Size() * slotBytes }

// Lay sets the memory, TableBytes long, of the rows of all ranks. There is one table on each host, in memory of its
// first rank. That rank lays it before the exchange that brings the rows, which fills it; the others lay the same
// memory where they have mapped it.
func (r *Roster) Lay(table []byte) { r.table = table }

// Row is the row that a rank has given to ExchangeRows, or empty. On ranks that are not the first of their host it is
// valid only after one more exchange. It is memory of the table; the caller only reads it. A rank that the job does not
// have, as a peer may claim to be, has no row.
func (r *Roster) Row(rank int) []byte {
	if r.table == nil || rank < 0 || rank >= r.Size() {
		return nil
	}
	s := r.table[rank*slotBytes:][:slotBytes]
	return s[2:][:min(int(order.Uint16(s)), RowBytes)]
}

// setRow fills a row of the table if this rank is the one that fills it.
func (r *Roster) setRow(rank int, row []byte) {
	if r.table == nil || row == nil || !r.First() || rank >= r.Size() {
		return
	}
	s := r.table[rank*slotBytes:][:slotBytes]
	order.PutUint16(s, uint16(min(len(row), RowBytes)))
	copy(s[2:], row)
}

// appendRow appends a rank's row in the form in which rows travel together.
func appendRow(b []byte, rank int, row []byte) []byte {
	b = order.AppendUint16(order.AppendUint16(b, uint16(rank)), uint16(len(row)))
	return append(b, row...)
}

// setRows fills in the rows that appendRow has put together.
func (r *Roster) setRows(rows []byte) {
	for len(rows) >= 4 {
		rank, size := int(order.Uint16(rows)), min(int(order.Uint16(rows[2:])), len(rows)-4)
		r.setRow(rank, rows[4:4+size])
		rows = rows[4+size:]
	}
}
