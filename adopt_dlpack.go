package ubcoll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// AdoptDLPack is [Adopt] for a tensor of PyTorch, NumPy, CuPy or another library that exports DLPack. It makes a buffer
// of the tensor's bytes, and returns their element type: buf.Vec().As(t) is the elements. tensor points to a
// DLManagedTensor (dlpack.h of DLPack 1.0: the struct without a version), and not to a DLManagedTensorVersioned, which
// cannot be told from it. For a PyCapsule that is one of the name "dltensor"; who takes the tensor out of it renames it
// "used_dltensor".
//
// The memory is the host's (kDLCPU, kDLCUDAHost) or of this rank's device (kDLCUDA). It has one element or more, of a type
// that [dtype] has, contiguous in row-major order; dimensions of size 1 may have any stride. The first element (data plus
// byte_offset) is aligned to its size.
//
// After an error the tensor is still the caller's. Otherwise it is the buffer's, and its deleter, which may be nil, is
// called once, when nothing uses the memory any more. Free calls it, or, if operations still use the memory then, their
// end does. The close of the rank's last communicator calls it if nobody has called Free, or if Free or
// [Registration.Close] has said that a peer still has the memory mapped. The deleter may run on any thread. It must not
// call this library, and who calls Free or Close must not hold a lock that it takes, such as Python's.
//
// Local, whether or not calls are captured or grouped. It may be called from any goroutine. [ErrArgument] for a tensor
// that is not as above, with what is wrong; [ErrNotSupported] for a deleter in a program built without cgo; all else as
// in [Adopt].
func AdoptDLPack(c *Comm, tensor unsafe.Pointer) (*Buffer[byte], dtype.Type, error) {
	a, t, err := c.view().AdoptDLPack(tensor)
	if err != nil {
		return nil, dtype.Invalid, err
	}
	return &Buffer[byte]{c: c.view().Comm, a: a, dev: a.Dev, n: a.Bytes}, t, nil
}
