// Checks of the fibers. The argument selects one. A failed check prints a message and exits.
#include "../fiber.h"
#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #x); \
			_exit(1); \
		} \
	} while (0)

template <class P>
static emu_result run(const char *name, void (*f)(const void *), const P &p, unsigned blocks, unsigned threads,
	unsigned resident = 1000, bool (*stop)(void *) = 0) {
	return emu_run(emu_kernel{name, f, &p, blocks, threads, resident, stop, 0});
}

// Every thread of a grid runs once, with its own numbers, even if not all blocks fit at once.
static void all() {
	struct params {
		std::vector<int> *ran;
	};
	for (auto g : {std::pair<unsigned, unsigned>{1, 1}, {7, 3}, {1000, 64}, {2, 1024}}) {
		std::vector<int> ran(g.first * g.second);
		CHECK(run("all", [](const void *p) {
			CHECK(emu_thread() < emu_threads() && emu_block() < emu_blocks());
			auto &ran = *((params *)p)->ran;
			CHECK(ran.size() == emu_threads() * emu_blocks());
			emu_yield();
			ran[emu_block() * emu_threads() + emu_thread()]++;
		}, params{&ran}, g.first, g.second, 8) == EMU_DONE);
		for (int n : ran)
			CHECK(n == 1);
	}
}

// A thread passes a barrier when all threads of its block have arrived, any number of times, whatever other blocks do.
// Its floating point registers are preserved.
static void barriers() {
	int nothing = 0;
	for (int i = 0; i < 20; i++)
		CHECK(run("barriers", [](const void *) {
			unsigned *arrived = (unsigned *)emu_shared(3, 100 * sizeof(unsigned));
			char *other = (char *)emu_shared(4, 1);
			CHECK((void *)arrived != (void *)other && arrived == emu_shared(3, 100 * sizeof(unsigned)));
			CHECK(*other == 0);
			double mine = emu_thread() + 0.5, sum = 0;
			for (int step = 0; step < 100; step++) {
				CHECK(step % 2 || arrived[step] < emu_threads()); // zero at the start, and no thread is ahead
				arrived[step]++;
				for (unsigned n = emu_thread() % 5; n; n--)
					emu_yield();
				emu_sync();
				CHECK(arrived[step] == emu_threads());
				sum += mine;
			}
			CHECK(sum == 100 * mine);
		}, nothing, 5, 33, 1 + i % 5) == EMU_DONE);
}

// Threads of different blocks wait for each other, in both directions.
static void polls() {
	struct params {
		std::vector<std::atomic<int>> *turn;
	};
	std::vector<std::atomic<int>> turn(16);
	CHECK(run("polls", [](const void *p) {
		auto &turn = (*((params *)p)->turn)[emu_thread()];
		for (int i = 0; i < 200; i++) {
			while (turn % 3 != (int)emu_block())
				emu_yield();
			turn++;
		}
	}, params{&turn}, 3, 16) == EMU_DONE);
	for (auto &t : turn)
		CHECK(t == 600);
}

// Two grids on two threads wait for each other.
static void ranks() {
	struct params {
		std::atomic<int> *words;
		int rank;
	};
	std::atomic<int> words[2] = {};
	auto grid = [&](int rank) {
		emu_guard();
		CHECK(run("ranks", [](const void *v) {
			auto &p = *(params *)v;
			for (int i = 1; i <= 100; i++) {
				emu_sync();
				if (!emu_thread())
					p.words[p.rank] = i;
				while (p.words[!p.rank] < i)
					emu_yield();
			}
		}, params{words, rank}, 1, 32) == EMU_DONE);
		emu_unguard();
	};
	std::thread a(grid, 0), b(grid, 1);
	a.join();
	b.join();
}

// The order of turns, as letters.
static void order() {
	std::string s;
	struct params {
		std::string *s;
	};
	run("order", [](const void *p) {
		for (int i = 0; i < 3; i++) {
			*((params *)p)->s += (char)('a' + emu_thread());
			emu_yield();
		}
	}, params{&s}, 1, 8);
	CHECK(s.size() == 24);
	printf("%s\n", s.c_str());
}

// An access to unmapped memory, or a trap, ends the grid, and the next one runs. So does a request to stop.
static void ends() {
	int nothing = 0;
	for (int i = 0; i < 3; i++) {
		CHECK(run("fault", [](const void *) {
			emu_yield();
			if (emu_thread() == 5)
				*(volatile int *)64 = 1;
			emu_sync();
		}, nothing, 2, 8) == EMU_FAULT);
		CHECK(run("trap", [](const void *) {
			emu_yield();
			__builtin_trap();
		}, nothing, 1, 8) == EMU_TRAP);
		CHECK(run("stop", [](const void *) {
			if (emu_thread() % 2)
				emu_sync();
			for (;;)
				emu_yield();
		}, nothing, 2, 8, 1000, [](void *) { return true; }) == EMU_STOPPED);
		CHECK(run("deep", [](const void *) { // past the end of the stack
			struct deep {
				static int down(int n) {
					volatile char some[4096];
					some[n % 4096] = 1;
					return n ? down(n - 1) + some[0] : 0;
				}
			};
			deep::down(1000);
		}, nothing, 1, 1) == EMU_FAULT);
	}
	all();
}

// Some threads end while the others wait at a barrier: the program exits with a message.
static void lost() {
	int nothing = 0;
	run("lost", [](const void *) {
		if (emu_thread() != 2)
			emu_sync();
	}, nothing, 1, 4);
}

int main(int argc, char **argv) {
	CHECK(argc == 2);
	emu_guard();
	const struct {
		const char *name;
		void (*f)();
	} checks[] = {{"all", all}, {"barriers", barriers}, {"polls", polls}, {"ranks", ranks}, {"order", order},
		{"ends", ends}, {"lost", lost}};
	for (auto &c : checks)
		if (!strcmp(argv[1], c.name)) {
			c.f();
			emu_unguard();
			return 0;
		}
	return 2;
}
