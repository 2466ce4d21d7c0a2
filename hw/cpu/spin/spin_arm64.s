#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	YIELD
	RET

// func release(w *uint64, v uint64)
TEXT ·release(SB), NOSPLIT, $0-16
	MOVD w+0(FP), R0
	MOVD v+8(FP), R1
	STLR R1, (R0)
	RET

// func Claim(p unsafe.Pointer)
TEXT ·Claim(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET

// func Demote(p unsafe.Pointer, n int)
TEXT ·Demote(SB), NOSPLIT, $0-16
	RET

// func ClaimAll(p unsafe.Pointer, n int)
TEXT ·ClaimAll(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
	ADD  R0, R1
	BIC  $63, R0

loop:
	CMP  R1, R0
	BHS  done
	PRFM (R0), PSTL1KEEP
	ADD  $64, R0
	B    loop

done:
	RET
