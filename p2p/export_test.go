package p2p

// For tests.
var (
	Pieces = pieces
	Word   = word
	Count  = count
	Of     = of
)

const (
	MaxBytes     = maxBytes
	WindowPiece  = windowPiece
	WindowPieces = windowPieces
)
