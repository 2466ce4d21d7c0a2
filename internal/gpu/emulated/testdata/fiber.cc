// Fibers and their scheduler.
#include "context.h"
#include "fiber.h"
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <sched.h>
#include <utility>
#include <vector>

namespace {

const size_t page = 4096;

enum state { READY, AT_BARRIER, ENDED };

struct block {
	unsigned index, alive, waiting;
	std::map<int, std::pair<void *, size_t>> shared;
};

struct fiber {
	context at;
	char *stack;
	block *in;
	unsigned thread;
	state what;
	unsigned patience; // turns that it keeps when it yields
	bool slow;         // it rarely gets a turn
};

struct splitmix { // random enough
	uint64_t x;
	uint64_t operator()() {
		uint64_t z = x += 0x9e3779b97f4a7c15;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
		z = (z ^ z >> 27) * 0x94d049bb133111eb;
		return z ^ z >> 31;
	}
};

// A grid that runs on one thread.
struct grid {
	const emu_kernel &k;
	context scheduler;
	std::vector<fiber *> ready;
	fiber *now = 0;
	splitmix random;
	bool lopsided; // some fibers are slow
	explicit grid(const emu_kernel &k) : k(k) {}
};

thread_local grid *here;

// Stacks are reused. Below each is a page that faults.
std::mutex stacks_lock;
std::vector<char *> &stacks = *new std::vector<char *>;

char *new_stack() {
	{
		std::lock_guard<std::mutex> l(stacks_lock);
		if (!stacks.empty()) {
			char *s = stacks.back();
			stacks.pop_back();
			return s;
		}
	}
	void *p = mmap(0, page + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED || mprotect(p, page, PROT_NONE)) {
		perror("emulated GPU: a fiber's stack");
		abort();
	}
	return (char *)p + page;
}

// Each kernel run has another seed. With UBCOLL_EMULATE_SEED, the runs of a process with one stream are repeatable.
uint64_t next_seed() {
	static std::mutex lock;
	static uint64_t seed, count;
	std::lock_guard<std::mutex> l(lock);
	if (!count++) {
		const char *s = getenv("UBCOLL_EMULATE_SEED");
		seed = s && *s ? strtoull(s, 0, 0) : emu_now() ^ (uint64_t)getpid() << 40;
	}
	return splitmix{seed * 1000003 + count}();
}

void start() {
	grid *g = here;
	g->k.f(g->k.params);
	g->now->what = ENDED;
	swap(&g->now->at, &g->scheduler);
	abort(); // an ended fiber gets no more turns
}

void begin(grid &g, unsigned index) {
	block *b = new block{index, g.k.threads, 0, {}};
	for (unsigned t = 0; t < g.k.threads; t++) {
		fiber *f = new fiber{};
		f->stack = new_stack();
		f->in = b;
		f->thread = t;
		f->slow = g.lopsided && g.random() % 4 == 0;
		prepare(&f->at, f->stack, start);
		g.ready.push_back(f);
	}
}

void forget(block *b) {
	for (auto &s : b->shared)
		free(s.second.first);
	delete b;
}

void forget(fiber *f) {
	std::lock_guard<std::mutex> l(stacks_lock);
	stacks.push_back(f->stack);
	delete f;
}

// rest is for a thread whose fibers all seem to poll: they wait for the work of another thread.
void rest(uint64_t idle_since) {
	if (emu_now() - idle_since < 50'000'000) {
		sched_yield();
		return;
	}
	timespec t = {0, 20'000};
	nanosleep(&t, 0);
}

emu_result schedule(grid &g) {
	const emu_kernel &k = g.k;
	g.lopsided = g.random() % 2;
	std::vector<fiber *> held; // at a barrier
	unsigned begun = 0, running = 0;
	auto more = [&] {
		while (begun < k.blocks && running < k.resident && (!k.place || k.place(k.place_arg)))
			begin(g, begun++), running++;
	};
	more();
	emu_result result = EMU_DONE;
	size_t yields = 0, looks = 0;
	uint64_t idle_since = 0;
	while (!g.ready.empty() || begun < k.blocks) {
		if (g.ready.empty()) { // other kernels occupy all the room
			if (++looks % 16 == 0 && k.stop && k.stop(k.stop_arg)) {
				result = EMU_STOPPED;
				break;
			}
			rest(0);
			more();
			continue;
		}
		size_t i = g.random() % g.ready.size();
		fiber *f = g.ready[i];
		if (f->slow && g.random() % 16)
			i = g.random() % g.ready.size(), f = g.ready[i];
		f->patience = g.random() % 4 ? 0 : g.random() % 16;
		g.now = f;
		swap(&g.scheduler, &f->at);
		if (f->what == READY) {
			if (++yields < g.ready.size())
				continue;
			yields = 0; // all fibers have yielded once: all of them wait
			if (!idle_since)
				idle_since = emu_now();
			if (++looks % 16 == 0 && k.stop && k.stop(k.stop_arg)) {
				result = EMU_STOPPED;
				break;
			}
			rest(idle_since);
			more();
			continue;
		}
		yields = 0;
		idle_since = 0;
		block *b = f->in;
		g.ready[i] = g.ready.back();
		g.ready.pop_back();
		if (f->what == ENDED) {
			b->alive--;
			forget(f);
		} else {
			b->waiting++;
			held.push_back(f);
		}
		if (!b->alive) {
			forget(b);
			running--;
			if (k.leave)
				k.leave(k.place_arg);
			more();
		} else if (b->waiting == b->alive && b->alive < k.threads) {
			fprintf(stderr, "emulated GPU: kernel %s: in block %u, %u threads ended while %u wait for them in a barrier\n",
				k.name, b->index, k.threads - b->alive, b->waiting);
			abort();
		} else if (b->waiting == b->alive) {
			size_t kept = 0;
			for (fiber *h : held)
				if (h->in == b)
					h->what = READY, g.ready.push_back(h);
				else
					held[kept++] = h;
			held.resize(kept);
			b->waiting = 0;
		}
	}
	// The fibers left were stopped in the middle. They own nothing but their stacks and blocks.
	std::map<block *, bool> blocks;
	held.insert(held.end(), g.ready.begin(), g.ready.end());
	for (fiber *f : held)
		blocks[f->in] = true, forget(f);
	for (auto &b : blocks)
		forget(b.first);
	g.ready.clear();
	return result;
}

} // namespace

emu_result emu_run(const emu_kernel &k) {
	struct run {
		grid g;
		emu_result result;
	};
	// Not on this frame: after a fault, emu_try returns here without unwinding the scheduler. What it held is leaked.
	run *r = new run{grid(k), EMU_DONE};
	r->g.random.x = next_seed();
	here = &r->g;
	emu_result result = emu_try(k.name, [](void *p) { ((run *)p)->result = schedule(((run *)p)->g); }, r);
	if (result == EMU_DONE)
		result = r->result;
	here = 0;
	delete r;
	return result;
}

unsigned emu_thread(void) { return here->now->thread; }
unsigned emu_block(void) { return here->now->in->index; }
unsigned emu_threads(void) { return here->k.threads; }
unsigned emu_blocks(void) { return here->k.blocks; }

void emu_yield(void) {
	fiber *f = here->now;
	if (f->patience) {
		f->patience--;
		return;
	}
	swap(&f->at, &here->scheduler);
}

void emu_sync(void) {
	fiber *f = here->now;
	f->what = AT_BARRIER;
	swap(&f->at, &here->scheduler);
}

uint64_t emu_now(void) {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1'000'000'000ull + t.tv_nsec;
}

void *emu_shared(int id, size_t bytes) {
	auto &s = here->now->in->shared[id];
	if (!s.first) {
		size_t n = (bytes + 127) / 128 * 128;
		s = {aligned_alloc(128, n), bytes};
		memset(s.first, 0, n);
	}
	if (s.second != bytes) {
		fprintf(stderr, "emulated GPU: kernel %s: shared object %d has %zu bytes and %zu\n", here->k.name, id,
			s.second, bytes);
		abort();
	}
	return s.first;
}
