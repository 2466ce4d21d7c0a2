package dtype_test

import (
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
)

func ExampleParse() {
	t, err := dtype.Parse("half")
	fmt.Println(t, t.Size(), err)
	// Output: float16 2 <nil>
}
