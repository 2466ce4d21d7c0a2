package cuda_test

import (
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// If there is a device, bytes go to it and come back.
func Example() {
	err := func() error {
		ctx, err := cuda.Primary(hw.CUDA(0))
		if err != nil {
			return err
		}
		defer ctx.Close()
		s, err := ctx.NewStream()
		if err != nil {
			return err
		}
		defer s.Close()
		p, err := ctx.Alloc(5)
		if err != nil {
			return err
		}
		defer ctx.Free(p)
		if err := s.Upload(p, []byte("hello")); err != nil {
			return err
		}
		back := make([]byte, 5)
		if err := s.Download(back, p); err != nil {
			return err
		}
		if string(back) != "hello" {
			return fmt.Errorf("%q came back", back)
		}
		return nil
	}()
	fmt.Println(err == nil || errors.Is(err, hw.ErrNotSupported))
	// Output: true
}
