package onesided

import "unsafe"

// PacketBytes is how many bytes n bytes of data take as packets of a width, 8 or 16 bytes.
func PacketBytes(width, n int) int {
	half := width / 2
	return (n + half - 1) / half * width
}

// Pack writes n bytes as packets. It writes a flag together with its data, or after it.
func Pack(width int, dst, src unsafe.Pointer, n int, flag uint64) {
	half := width / 2
	whole := n / half
	if width == 8 {
		for i := range whole {
			storeWord((*uint64)(unsafe.Add(dst, 8*i)), uint64(*(*uint32)(unsafe.Add(src, 4*i)))|flag<<32)
		}
	} else {
		for i := range whole {
			*(*uint64)(unsafe.Add(dst, 16*i)) = *(*uint64)(unsafe.Add(src, 8*i))
			storeWord((*uint64)(unsafe.Add(dst, 16*i+8)), flag)
		}
	}
	if rest := n % half; rest > 0 {
		var last [8]byte
		copy(last[:], unsafe.Slice((*byte)(unsafe.Add(src, whole*half)), rest))
		Pack(width, unsafe.Add(dst, whole*width), unsafe.Pointer(&last), half, flag)
	}
}
