package dtype

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"math/bits"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNamesRoundTrip(t *testing.T) {
	for _, ty := range All() {
		got, err := Parse(ty.String())
		require.NoError(t, err)
		require.Equal(t, ty, got)
		require.True(t, ty.Size() > 0 && ty.Valid())
	}
	_, err := Parse("float31")
	require.ErrorContains(t, err, `"float31"`)
	require.False(t, Invalid.Valid())
	require.Equal(t, 0, Type(99).Size())
}

func TestKinds(t *testing.T) {
	for _, ty := range append(All(), Invalid, numTypes, 99) {
		s := ty.String()
		float := strings.HasPrefix(s, "float") || strings.HasPrefix(s, "bfloat")
		require.Equal(t, float, ty.Float(), s)
		require.Equal(t, float || strings.HasPrefix(s, "int"), ty.Signed(), s)
	}
}

func TestOf(t *testing.T) {
	require.Equal(t, Int8, Of[int8]())
	require.Equal(t, Uint16, Of[uint16]())
	require.Equal(t, Float16, Of[F16]())
	require.Equal(t, BFloat16, Of[BF16]())
	require.Equal(t, Float64, Of[float64]())
	type (
		i8  int8
		u8  uint8
		i16 int16
		i32 int32
		u32 uint32
		i64 int64
		u64 uint64
		i   int
		u   uint
		f32 float32
		f64 float64
		b   bool
	)
	word, uword := Int64, Uint64
	if bits.UintSize == 32 {
		word, uword = Int32, Uint32
	}
	for _, x := range [][3]Type{
		{Int8, Of[int8](), Of[i8]()}, {Uint8, Of[uint8](), Of[u8]()}, {Int16, Of[int16](), Of[i16]()},
		{Int32, Of[int32](), Of[i32]()}, {Uint32, Of[uint32](), Of[u32]()}, {Int64, Of[int64](), Of[i64]()},
		{Uint64, Of[uint64](), Of[u64]()}, {word, Of[int](), Of[i]()}, {uword, Of[uint](), Of[u]()},
		{Float32, Of[float32](), Of[f32]()}, {Float64, Of[float64](), Of[f64]()}, {Bool, Of[bool](), Of[b]()},
		{Uint8, Of[byte](), Of[byte]()}, {Int32, Of[rune](), Of[rune]()}, {Int64, Of[time.Duration](), Of[time.Duration]()},
	} {
		require.Equal(t, [3]Type{x[0], x[0], x[0]}, x)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { Of[i]() }))
}

// own imports packages of this module that were checked before; the default importer knows only the standard library.
type own struct {
	types.Importer
	packages map[string]*types.Package
}

func (o own) Import(path string) (*types.Package, error) {
	if p := o.packages[path]; p != nil {
		return p, nil
	}
	return o.Importer.Import(path)
}

// TestElem lets the compiler's own checker say which types are elements.
func TestElem(t *testing.T) {
	const programs = `package dtype
type (
	named   float32
	onUint  uint16
	onF16   F16
	onBF16  BF16
	alias = F16
)
var yes = []Type{Of[int](), Of[uint](), Of[bool](), Of[named](), Of[uint16](), Of[F16](), Of[BF16](), Of[alias]()}
`
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	build.Default.GOROOT = strings.TrimSpace(string(goroot)) // -trimpath removes it, and the importer needs it
	imported := own{importer.Default(), map[string]*types.Package{}}
	check := func(path string, sources map[string]any) error {
		files := token.NewFileSet()
		var parsed []*ast.File
		for name, text := range sources {
			f, err := parser.ParseFile(files, name, text, 0)
			require.NoError(t, err)
			parsed = append(parsed, f)
		}
		p, err := (&types.Config{Importer: imported}).Check(path, files, parsed, nil)
		imported.packages[path] = p
		return err
	}
	require.NoError(t, check("github.com/ubcoll/ubcoll/internal/nearest", map[string]any{"../internal/nearest/nearest.go": nil}))
	user := func(more string) error {
		return check("dtype", map[string]any{"dtype.go": nil, "half.go": nil, "user.go": programs + more})
	}
	require.NoError(t, user(""))
	for _, not := range []string{"onUint", "onF16", "onBF16", "uintptr", "string", "complex64", "*int", "[2]int8"} {
		require.ErrorContains(t, user("var no = Of["+not+"]()"), "does not satisfy Elem", not)
	}
}

// nearestF16 is the naive reference: the binary16 value closest to f, found among all of them.
func nearestF16(f float32) F16 {
	best, dist := F16(0), math.Inf(1)
	for b := 0; b < 0x7c01; b++ {
		v := float64(F16(b).Float32())
		if b == 0x7c00 {
			v = 65536 // infinity rounds as if it were the next power of two
		}
		d := math.Abs(math.Abs(float64(f)) - v)
		if d < dist || d == dist && b&1 == 0 {
			best, dist = F16(b), d
		}
	}
	if math.Signbit(float64(f)) {
		best |= 0x8000
	}
	return best
}

func TestF16Exhaustive(t *testing.T) {
	for b := 0; b < 1<<16; b++ {
		h := F16(b)
		f := h.Float32()
		if f != f {
			require.True(t, ToF16(f).Float32() != ToF16(f).Float32(), "NaN %04x", b)
			continue
		}
		if got := ToF16(f); got != h { // require.Equal would take most of the test's time
			t.Fatalf("%04x becomes %04x", b, got)
		}
		if up := math.Nextafter32(f, float32(math.Inf(1))); !math.IsInf(float64(f), 0) && b%97 == 0 {
			for _, x := range []float32{up, f * 1.0004, f * 1.0005, f * 1.00048828125} {
				if !math.IsInf(float64(x), 0) {
					require.Equal(t, nearestF16(x), ToF16(x), "%g", x)
				}
			}
		}
	}
	require.Equal(t, F16(0x7c00), ToF16(65520))
	require.Equal(t, F16(0x7bff), ToF16(65519.996))
	require.Equal(t, F16(0), ToF16(1.0/(1<<25)))
	require.Equal(t, F16(1), ToF16(math.Nextafter32(1.0/(1<<25), 1)))
}

func TestBF16Exhaustive(t *testing.T) {
	for b := 0; b < 1<<16; b++ {
		h := BF16(b)
		f := h.Float32()
		if f != f {
			require.True(t, ToBF16(f).Float32() != ToBF16(f).Float32())
			continue
		}
		if got := ToBF16(f); got != h {
			t.Fatalf("%04x becomes %04x", b, got)
		}
	}
	require.Equal(t, BF16(0x3f80), ToBF16(math.Float32frombits(0x3f808000)), "a tie goes to even")
	require.Equal(t, BF16(0x3f82), ToBF16(math.Float32frombits(0x3f818000)), "a tie goes to even")
	require.Equal(t, BF16(0x3f81), ToBF16(math.Float32frombits(0x3f808001)))
	require.Equal(t, BF16(0x7f80), ToBF16(math.MaxFloat32), "overflow gives infinity")
}
