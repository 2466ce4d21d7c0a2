package p2p

// For tests.
var (
	Pieces = pieces
	Word   = word
	Count  = count
	Of     = of
	Room   = room
	One    = one
)

const (
	MaxBytes     = maxBytes
	WindowPiece  = windowPiece
	WindowPieces = windowPieces
)
