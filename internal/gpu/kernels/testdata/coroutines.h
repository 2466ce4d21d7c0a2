// The emulator's interface (src/port.h), with the threads of all ranks as coroutines on one thread. The same seed gives
// the same interleaving.
#ifndef COROUTINES_H
#define COROUTINES_H

#include <map>
#include <memory>
#include <random>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "../../emulated/testdata/context.h" // ucontext.h makes a system call for each switch

extern "C" {
#include "../src/abi.h"
}

typedef void kernel(const ubc_params *);

struct launch;

struct coroutine {
	context at;
	std::vector<char> stack;
	launch *of = nullptr;
	unsigned thread = 0, block = 0;
	bool done = false;
	int barrier = -1; // the barrier at which it waits, -1: none
	int passed = 0;
};

struct block {
	unsigned waiting = 0, ended = 0;
	int barrier = 0;
	std::map<int, std::vector<char>> shared;
};

struct launch {
	kernel *f = nullptr;
	ubc_vector_params params; // the longest parameters; all others are a prefix of these
	unsigned threads = 0, running = 0;
	std::vector<block> blocks;
};

struct scheduler {
	std::mt19937_64 random;
	context main;
	coroutine *current = nullptr;
	uint64_t now = 1;
	std::vector<std::unique_ptr<coroutine>> idle;
	std::vector<coroutine *> live;
	launch *slow = nullptr; // its block slowBlock, or all its blocks if that is -1, rarely gets a turn
	int slowBlock = -1;

	unsigned below(unsigned n) { return n ? (unsigned)(random() % n) : 0; }

	static void enter() {
		coroutine *f = self().current;
		f->of->f(&f->of->params.p);
		f->done = true;
		self().yield();
	}

	static scheduler &self() {
		static scheduler s;
		return s;
	}

	void yield() { swap(&current->at, &main); }

	void start(launch *l, kernel *f, const ubc_vector_params &p, unsigned blocks, unsigned threads) {
		l->f = f;
		l->params = p;
		l->threads = threads;
		l->running = blocks * threads;
		l->blocks = std::vector<block>(blocks);
		for (unsigned i = 0; i < l->running; i++) {
			coroutine *c;
			if (idle.empty()) {
				c = new coroutine;
				c->stack.resize(stack_bytes);
			} else {
				c = idle.back().release();
				idle.pop_back();
			}
			c->of = l;
			c->block = i / threads;
			c->thread = i % threads;
			c->done = false;
			c->barrier = -1;
			prepare(&c->at, c->stack.data(), enter);
			live.push_back(c);
		}
	}

	// step runs one coroutine until it yields.
	void step() {
		now += 10;
		size_t i = random() % live.size();
		coroutine *f = live[i];
		if (f->of == slow && (slowBlock < 0 || slowBlock == (int)f->block) && below(64) != 0)
			return;
		block &b = f->of->blocks[f->block];
		if (f->barrier >= 0 && f->barrier == b.barrier)
			return;
		f->barrier = -1;
		current = f;
		swap(&main, &f->at);
		if (!f->done)
			return;
		b.ended++;
		if (b.waiting > 0) {
			fprintf(stderr, "a thread ended while others of its block wait at a barrier\n");
			abort();
		}
		f->of->running--;
		live[i] = live.back();
		live.pop_back();
		idle.emplace_back(f);
	}

	void drop() { // abandons all that still run
		for (coroutine *f : live)
			idle.emplace_back(f);
		live.clear();
	}
};

extern "C" {
unsigned emu_thread(void) { return scheduler::self().current->thread; }
unsigned emu_block(void) { return scheduler::self().current->block; }
unsigned emu_threads(void) { return scheduler::self().current->of->threads; }
unsigned emu_blocks(void) { return (unsigned)scheduler::self().current->of->blocks.size(); }
uint64_t emu_now(void) { return scheduler::self().now; }

void emu_yield(void) { scheduler::self().yield(); }

void emu_sync(void) {
	scheduler &s = scheduler::self();
	coroutine *f = s.current;
	block &b = f->of->blocks[f->block];
	if (b.ended > 0) {
		fprintf(stderr, "a barrier in a block of which a thread has ended\n");
		abort();
	}
	if (++b.waiting == f->of->threads) {
		b.waiting = 0;
		b.barrier++;
		return;
	}
	f->barrier = b.barrier;
	s.yield();
}

void *emu_shared(int id, size_t n) {
	scheduler &s = scheduler::self();
	std::vector<char> &m = s.current->of->blocks[s.current->block].shared[id];
	if (m.size() < n)
		m.resize(n);
	return m.data();
}
}

#endif
