// Switching between fibers, for each kind of processor.
#ifndef UBC_CONTEXT_H
#define UBC_CONTEXT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

const size_t stack_bytes = 64 << 10;

// A context is where a fiber, or the scheduler, stopped. emu_swap saves the registers that a call must preserve by the
// ABI.
#if defined __x86_64__
typedef void *context;
extern "C" void emu_swap(context *from, context to);
asm(R"(
	.text
	.type emu_swap,@function
emu_swap:
	pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
	subq $8, %rsp; stmxcsr (%rsp); fnstcw 4(%rsp)
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	ldmxcsr (%rsp); fldcw 4(%rsp); addq $8, %rsp
	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
	ret
	.size emu_swap,.-emu_swap
)");
void swap(context *from, context *to) { emu_swap(from, *to); }
void prepare(context *c, char *stack, void (*entry)()) {
	void **sp = (void **)(stack + stack_bytes);
	*--sp = 0;             // return address of entry, which never returns; also for alignment
	*--sp = (void *)entry; // emu_swap returns here
	for (int i = 0; i < 6; i++)
		*--sp = 0;
	uint32_t words[2] = {0x1f80, 0x37f}; // mxcsr and the x87 control word, as at the start of a process
	memcpy(--sp, words, 8);
	*c = sp;
}
#elif defined __aarch64__
typedef void *context;
extern "C" void emu_swap(context *from, context to);
asm(R"(
	.text
	.type emu_swap,%function
emu_swap:
	sub sp, sp, #160
	stp x19, x20, [sp]
	stp x21, x22, [sp, #16]
	stp x23, x24, [sp, #32]
	stp x25, x26, [sp, #48]
	stp x27, x28, [sp, #64]
	stp x29, x30, [sp, #80]
	stp d8, d9, [sp, #96]
	stp d10, d11, [sp, #112]
	stp d12, d13, [sp, #128]
	stp d14, d15, [sp, #144]
	mov x9, sp
	str x9, [x0]
	mov sp, x1
	ldp x19, x20, [sp]
	ldp x21, x22, [sp, #16]
	ldp x23, x24, [sp, #32]
	ldp x25, x26, [sp, #48]
	ldp x27, x28, [sp, #64]
	ldp x29, x30, [sp, #80]
	ldp d8, d9, [sp, #96]
	ldp d10, d11, [sp, #112]
	ldp d12, d13, [sp, #128]
	ldp d14, d15, [sp, #144]
	add sp, sp, #160
	ret
	.size emu_swap,.-emu_swap
)");
void swap(context *from, context *to) { emu_swap(from, *to); }
void prepare(context *c, char *stack, void (*entry)()) {
	void **sp = (void **)(stack + stack_bytes - 160);
	memset(sp, 0, 160);
	sp[11] = (void *)entry; // x30
	*c = sp;
}
#else
#error "no switch of fibers for this processor"
#endif

} // namespace

#endif
