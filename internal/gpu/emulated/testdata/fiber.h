// Kernels on the host: each thread of a grid is a fiber of the thread that calls emu_run. Fibers take turns in random
// order, and switch where they yield. The functions that kernels call are declared here, too.
#ifndef UBC_FIBER_H
#define UBC_FIBER_H
#include <stddef.h>
#include <stdint.h>

extern "C" {
unsigned emu_thread(void), emu_block(void), emu_threads(void), emu_blocks(void); // threadIdx.x and so on
void emu_sync(void);                    // a barrier of the block's threads
void emu_yield(void);                   // lets others run: in every loop that polls, and wherever interleaving matters
uint64_t emu_now(void);                 // nanoseconds
void *emu_shared(int id, size_t bytes); // the block's shared object of that number, zeroed when the block starts
// Accesses to multicast addresses, of 4, 8 or 16 aligned bytes. combine adds what the next device has to the sum; it and
// the values have whatever type the caller means.
void emu_multimem_st(void *p, const void *value, size_t n);
void emu_multimem_ld_reduce(const void *p, void *value, size_t n, void (*combine)(void *sum, const void *x));
// The same with a sum of any type and size: take is called with what each device has, in turn.
void emu_multimem_ld_each(const void *p, size_t n, void *sum, void (*take)(void *sum, const void *x));
}

// A kernel for emu_run, and its result.
struct emu_kernel {
	const char *name;
	void (*f)(const void *params);
	const void *params;
	unsigned blocks, threads; // of the grid; of a block
	unsigned resident;        // blocks at a time
	bool (*stop)(void *);     // called between turns; true gives up the kernel
	void *stop_arg;
	bool (*place)(void *) = 0; // whether one more block fits beside those of other kernels; 0: always
	void (*leave)(void *) = 0; // called when a block that was placed ends
	void *place_arg = 0;
};
// STOPPED: stop returned true. FAULT: access to unmapped memory. TRAP: __builtin_trap, or a division by zero.
enum emu_result { EMU_DONE, EMU_STOPPED, EMU_FAULT, EMU_TRAP };
emu_result emu_run(const emu_kernel &k);

// Runs code that may access unmapped memory, or trap, and reports that on stderr. A thread calls emu_guard before it
// uses this or emu_run, and emu_unguard at its end.
void emu_guard(void);
void emu_unguard(void);
emu_result emu_try(const char *what, void (*f)(void *), void *arg);

#endif
