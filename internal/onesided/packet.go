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
	for ; n >= half; n -= half {
		if width == 8 {
			storeWord((*uint64)(dst), uint64(*(*uint32)(src))|flag<<32)
		} else {
			*(*uint64)(dst) = *(*uint64)(src)
			storeWord((*uint64)(unsafe.Add(dst, 8)), flag)
		}
		dst, src = unsafe.Add(dst, width), unsafe.Add(src, half)
	}
	if n > 0 {
		var last [8]byte
		copy(last[:], unsafe.Slice((*byte)(src), n))
		Pack(width, dst, unsafe.Pointer(&last), half, flag)
	}
}
