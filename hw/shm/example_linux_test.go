package shm_test

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/shm"
)

// One process makes a memory file and gives its peers the Ref. A peer, here the same process, opens and maps it.
func ExampleOpen() {
	mine, err := shm.Create("example", 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mine.Close()
	theirs, err := shm.Open(mine.Ref())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer theirs.Close()
	for _, f := range []*shm.File{mine, theirs} {
		p, err := f.Map(0, f.Size(), true)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer shm.Unmap(p, f.Size())
		*(*int)(p) += 21
		fmt.Println(*(*int)(unsafe.Pointer(p)))
	}
	// Output:
	// 21
	// 42
}
