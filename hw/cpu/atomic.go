package cpu

import (
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// atomicWords is how many words AtomicReduce combines between looking at them and changing them: few enough that others
// seldom change one meanwhile, many enough that the wide instructions pay.
const (
	atomicWords = 64
	fewWords    = 8
)

// AtomicReduce sets dst[i] = dst[i] op src[i] for n elements, each of them atomically with regard to other calls of
// AtomicReduce and AtomicCopy, in this process or in others that share the memory, and to atomic operations on aligned
// words of 8 bytes. It exchanges the aligned words of 8 bytes that the elements lie in, so these must be mapped; other
// bytes of theirs it leaves as they are, whoever changes them meanwhile. A process that dies within leaves each element as
// it was or as it should be.
func AtomicReduce(t dtype.Type, op Op, dst, src unsafe.Pointer, n int) {
	if reducible(t, op) {
		atomically(t, op, dst, src, n)
	}
}

// AtomicCopy sets dst[i] = src[i] for n elements, each of them atomically, as AtomicReduce does.
func AtomicCopy(t dtype.Type, dst, src unsafe.Pointer, n int) {
	if t.Valid() {
		atomically(t, replace, dst, src, n)
	}
}

// replace is the operation of AtomicCopy.
const replace = Max + 1

// atomically changes n elements of dst.
func atomically(t dtype.Type, op Op, dst, src unsafe.Pointer, n int) {
	if n*t.Size() <= 8*(fewWords-1) { // clearing the larger scratch would cost more than the rest
		var scratch [2 * fewWords]uint64
		exchangeAll(t, op, dst, src, n, scratch[:])
		return
	}
	var scratch [2 * atomicWords]uint64
	exchangeAll(t, op, dst, src, n, scratch[:])
}

// exchangeAll is atomically, as many words at a time as half of scratch has.
func exchangeAll(t dtype.Type, op Op, dst, src unsafe.Pointer, n int, scratch []uint64) {
	size, words := t.Size(), len(scratch)/2
	for done := 0; done < n; {
		d, from := unsafe.Add(dst, done*size), unsafe.Add(src, done*size)
		lead := int(uintptr(d) % 8) // bytes of the first word before d
		k := min(n-done, (8*words-lead)/size)
		exchange(t, op, unsafe.Add(d, -lead), lead, from, k, scratch[:words], scratch[words:])
		done += k
	}
}

// exchange changes n elements in at most as many words as before and after have. The first word is at p, and has lead bytes
// before the elements.
func exchange(t dtype.Type, op Op, p unsafe.Pointer, lead int, src unsafe.Pointer, n int, before, after []uint64) {
	size := t.Size()
	end := lead + n*size
	words := unsafe.Slice((*uint64)(p), (end+7)/8)
	for i := range words {
		before[i] = atomic.LoadUint64(&words[i])
	}
	copy(after, before[:len(words)])
	combine(t, op, unsafe.Add(unsafe.Pointer(&after[0]), lead), src, n)
	for i := range words {
		for before[i] != after[i] && !atomic.CompareAndSwapUint64(&words[i], before[i], after[i]) {
			before[i] = atomic.LoadUint64(&words[i])
			after[i] = before[i]
			from := max(8*i, lead)
			combine(t, op, unsafe.Add(unsafe.Pointer(&after[0]), from), unsafe.Add(src, from-lead), (min(8*i+8, end)-from)/size)
		}
	}
}

func combine(t dtype.Type, op Op, dst, src unsafe.Pointer, n int) {
	if op == replace {
		n *= t.Size()
		copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
		return
	}
	Reduce(t, op, dst, dst, src, n, false)
}
