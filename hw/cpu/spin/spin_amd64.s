#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	PAUSE
	RET

// func release(w *uint64, v uint64)
TEXT ·release(SB), NOSPLIT, $0-16
	MOVQ w+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX) // x86 stores become visible in order
	RET

// func Claim(p unsafe.Pointer)
TEXT ·Claim(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX)
	RET

// func Demote(p unsafe.Pointer, n int)
TEXT ·Demote(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
	ADDQ AX, CX
	ANDQ $~63, AX

loop:
	CMPQ AX, CX
	JAE  done
	BYTE $0x0F; BYTE $0x1C; BYTE $0x00 // CLDEMOTE (AX); a NOP on processors that do not know it
	ADDQ $64, AX
	JMP  loop

done:
	RET

// func ClaimAll(p unsafe.Pointer, n int)
TEXT ·ClaimAll(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
	ADDQ AX, CX
	ANDQ $~63, AX

loop:
	CMPQ AX, CX
	JAE  done
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX)
	ADDQ $64, AX
	JMP  loop

done:
	RET
