// Kernels on the host: each thread of a grid is a fiber of the thread that calls emu_run, and they take turns in random
// order wherever they yield. What the kernels call is declared here too.
#ifndef UBC_FIBER_H
#define UBC_FIBER_H
#include <stddef.h>
#include <stdint.h>

extern "C" {
unsigned emu_thread(void), emu_block(void), emu_threads(void), emu_blocks(void); // threadIdx.x and so on
void emu_sync(void);                    // a barrier of the block's threads
void emu_yield(void);                   // others may run: in every loop that polls, and wherever interleaving matters
uint64_t emu_now(void);                 // nanoseconds
void *emu_shared(int id, size_t bytes); // the block's shared object of that number, zeroed when the block starts
}

// What emu_run runs and how it went.
struct emu_kernel {
	const char *name;
	void (*f)(const void *params);
	const void *params;
	unsigned blocks, threads; // of the grid, of a block
	unsigned resident;        // blocks at a time
	bool (*stop)(void *);     // asked between turns: the kernel is given up
	void *stop_arg;
	bool (*place)(void *) = 0; // whether one more block finds room beside those of other kernels; 0: always
	void (*leave)(void *) = 0; // a block has ended, which found room
	void *place_arg = 0;
};
// STOPPED: as stop wanted it. FAULT: it touched memory that is not there. TRAP: __builtin_trap, or a division by zero.
enum emu_result { EMU_DONE, EMU_STOPPED, EMU_FAULT, EMU_TRAP };
emu_result emu_run(const emu_kernel &k);

// Runs what may touch memory that is not there, or trap, and says so on stderr if it did. A thread that does this, or
// emu_run, calls emu_guard before and emu_unguard in the end.
void emu_guard(void);
void emu_unguard(void);
emu_result emu_try(const char *what, void (*f)(void *), void *arg);

#endif
