// Runs random operations of the kernels against a separately written reference: check SEED RANKS data OPERATIONS SECONDS, or
// check SEED RANKS errors ROUNDS SECONDS. With "multicast" instead of "data", all of them are by multicast or by a stand-in
// for that. Prints errors and fails. After so many seconds it prints its state and fails; 0 is
// no limit.
#include "operations.h"

#include <signal.h>
#include <unistd.h>

// expected returns element i of rank r's destination.
static uint64_t expected(const operation &o, unsigned r, size_t i) {
	if (vectors(o.kind)) {
		unsigned s = 0;
		while (i >= o.sent[s][r])
			i -= o.sent[s++][r];
		return get(o.type, o.input[s].data(), before(o, true, s, r) + i);
	}
	unsigned q = o.count ? (unsigned)(i / o.count) : 0;
	size_t j = o.count ? i % o.count : 0;
	switch (o.kind) {
	case UBC_ALL_GATHER:
	case UBC_GATHER:
		return get(o.type, o.input[q].data(), j);
	case UBC_BROADCAST:
		return get(o.type, o.input[o.root].data(), i);
	case UBC_SCATTER:
		return get(o.type, o.input[o.root].data(), r * o.count + i);
	case UBC_ALL_TO_ALL:
		return get(o.type, o.input[q].data(), r * o.count + j);
	}
	std::vector<uint64_t> v;
	for (unsigned s = 0; s < N; s++) {
		uint64_t x = get(o.type, o.input[s].data(), i + (o.kind == UBC_REDUCE_SCATTER ? r * o.count : 0));
		v.push_back(o.op == UBC_PREMULSUM ? multiplied(o.type, x, o.factor[s]) : x);
	}
	if (o.name.find("ring") != std::string::npos && N > 1) { // starts at the slice's rank, with a rounding for each
	                                                         // step
		size_t size = sizes[o.type], slice = ((o.count * size + N - 1) / N + 15) / 16 * 16, first = i * size / slice;
		uint64_t a = v[first];
		bool carries = o.op == UBC_AVG && (o.type == FLOAT16 || o.type == BFLOAT16);
		for (unsigned s = 1; s < N; s++) {
			uint64_t x = v[(first + s) % N];
			if (carries) // as a fraction of the sum
				a = carried(o.type, a, x, fraction(s), s < N - 1 ? fraction(s + 1) : N);
			else
				a = reduced(o.type, o.op == UBC_AVG && s < N - 1 ? (int)UBC_SUM : o.op, {a, x}, N);
		}
		return a;
	}
	return reduced(o.type, o.op, v, v.size());
}

static void guards(const operation &o, const buffer &b, const char *what, unsigned r) {
	for (size_t i = 1; i <= GUARD; i++)
		if (b.p[-(long)i] != (char)0xa5 || b.p[b.n + i - 1] != (char)0xa5)
			FAIL("rank %u wrote outside its %s, at %zu: %s", r, what, i, describe(o).c_str());
}

static void verify(const operation &o, unsigned r) {
	bool inside = o.dst[r].n > 0 && o.dst[r].p >= o.src[r].p && o.dst[r].p < o.src[r].p + o.src[r].n;
	bool around = o.src[r].n > 0 && o.src[r].p >= o.dst[r].p && o.src[r].p < o.dst[r].p + o.dst[r].n;
	if (!inside || o.dst[r].n >= o.src[r].n)
		guards(o, o.dst[r], "destination", r);
	if (!around || o.src[r].n >= o.dst[r].n)
		guards(o, o.src[r], "source", r);
	const ubc_status &s = ranks[r].status;
	if (o.odd < 0 || N == 1) {
		if (s.error != 0)
			FAIL("rank %u: error %u of peer %u: %s", r, s.error, s.peer, describe(o).c_str());
		for (size_t i = 0; i < destinationLen(o, r); i++) {
			uint64_t want = expected(o, r, i), got = get(o.type, o.dst[r].p, i);
			if (!same(o.type, want, got))
				FAIL("rank %u element %zu: %#llx, want %#llx: %s", r, i, (unsigned long long)got, (unsigned long long)want,
					describe(o).c_str());
		}
	} else if (o.oddSig == o.sig) {
		uint64_t sent = o.sent[o.oddFrom][o.oddTo], detail = (uint64_t)o.oddFrom << 48 | o.due[o.oddFrom][o.oddTo];
		if (s.error != UBC_COUNTS || s.peer != o.oddTo || s.theirs != sent || s.detail != detail || s.abort)
			FAIL("rank %u: error %u, peer %u, theirs %llu, detail %#llx: %u expects %#llx: %s", r, s.error, s.peer,
				(unsigned long long)s.theirs, (unsigned long long)s.detail, o.oddTo, (unsigned long long)detail,
				describe(o).c_str());
	} else {
		unsigned want = (int)r != o.odd ? (o.refuses ? UBC_REFUSED : UBC_MISMATCH) : o.refuses ? UBC_OK : UBC_MISMATCH;
		if (s.error != want)
			FAIL("rank %u: error %u, want %u: %s", r, s.error, want, describe(o).c_str());
		if (want != UBC_OK && ((int)r == o.odd ? (int)s.peer == o.odd || s.theirs != o.sig
											   : (int)s.peer != o.odd || s.theirs != o.oddSig))
			FAIL("rank %u: error %u names peer %u and %#llx: %s", r, s.error, s.peer, (unsigned long long)s.theirs,
				describe(o).c_str());
		if (s.abort)
			FAIL("rank %u aborts: %s", r, describe(o).c_str());
	}
	if (!inside && !around)
		if (memcmp(o.src[r].p, o.input[r].data(), o.input[r].size()) != 0)
			FAIL("rank %u: the source has changed: %s", r, describe(o).c_str());
	memset(&ranks[r].status, 0, sizeof(ubc_status));
}

// State for the message when time is over. A kernel that does not even yield cannot be described.
static std::vector<operation> *running;
static unsigned long done;
static char **arguments;
static volatile sig_atomic_t overdue;

static void late(int) {
	if (overdue) {
		static const char text[] = "time is over, and a kernel does not yield\n";
		if (write(2, text, sizeof text - 1) >= 0)
			_exit(2);
	}
	overdue = 1;
	alarm(5);
}

// step is S.step, but exits when time is over.
static void step() {
	S.step();
	if (!overdue)
		return;
	fprintf(stderr, "seed %s, %s ranks: the time is over after %lu operations\n", arguments[1], arguments[2], done);
	size_t told = (size_t)-1;
	for (unsigned r = 0; running && r < N; r++) {
		const char *begun = ranks[r].running ? "" : ", which it has not begun";
		fprintf(stderr, "rank %u is at operation %u%s\n", r, ranks[r].next, begun);
		if (ranks[r].next < running->size() && ranks[r].next != told)
			fprintf(stderr, "%s\n", describe((*running)[told = ranks[r].next]).c_str());
	}
	exit(2);
}

// run runs the operations on each rank in order, at the rank's own pace. Rank absent runs none.
static void run(std::vector<operation> &ops, int absent, void (*ended)(const operation &, unsigned)) {
	running = &ops;
	for (;;) {
		bool left = false;
		for (unsigned r = 0; r < N; r++) {
			rank &k = ranks[r];
			if (k.running && k.l.running == 0) {
				k.running = false;
				for (rank &q : ranks)
					q.table[r][k.extent + k.next] = 0;
				ended(ops[k.next++], r);
			}
			if (k.running)
				left = true;
			if (k.running || k.next == ops.size() || (int)r == absent)
				continue;
			left = true;
			if (!chance(20) && !S.live.empty())
				continue; // this rank is slow
			operation &o = ops[k.next];
			bool odd = (int)r == o.odd;
			S.start(&k.l, odd ? o.oddF : o.f, params(o, r), odd && o.oddF != o.f ? 1 : o.blocks, o.threads);
			k.running = true;
		}
		if (!left)
			return;
		if (chance(10)) {
			S.slow = chance(30) ? nullptr : &ranks[below(N)].l;
			S.slowBlock = (int)below(4) - 1;
		}
		for (unsigned i = 0, n = 1 + below(400); i < n && !S.live.empty(); i++)
			step();
	}
}

static void data(unsigned long operations) {
	unsigned long total = 0;
	int type = 0;
	while (total < operations) {
		reset();
		for (int batch = 0; batch < 4 && total < operations; batch++) {
			std::vector<operation> ops;
			for (rank &r : ranks)
				r.used = 0, r.next = 0;
			import();
			for (unsigned i = 0, n = 1 + below(BATCH); i < n; i++) {
				type = type % (TYPES - 1) + 1;
				ops.push_back(random(type));
				if (N > 1 && chance(15))
					spoil(ops.back());
			}
			run(ops, -1, verify);
			done = total += ops.size();
		}
		release();
	}
	printf("%lu operations\n", total);
}

// --- errors that end a communicator

static int absent;
static unsigned wants; // bits of the allowed errors
static void failed(const operation &o, unsigned r) {
	const ubc_status &s = ranks[r].status;
	if (!(wants >> s.error & 1) || (N == 2 && (wants & (wants - 1)) == 0 && (int)s.peer != absent))
		FAIL("rank %u: error %u of peer %u: %s", r, s.error, s.peer, describe(o).c_str());
	if (s.error != UBC_OK && !s.abort)
		FAIL("rank %u has failed but does not abort", r);
}

static uint64_t limit;

static void runLimited(std::vector<operation> &ops, int gone) {
	// Like run, for one operation, with a timeout.
	running = &ops;
	for (unsigned r = 0; r < N; r++) {
		if ((int)r == gone)
			continue;
		operation &o = ops[0];
		ubc_vector_params p = params(o, r);
		p.p.timeout = limit;
		S.start(&ranks[r].l, o.f, p, o.blocks, o.threads);
	}
	uint64_t begin = S.now;
	while (!S.live.empty()) {
		step();
		if (S.now - begin > 1000000000)
			FAIL("hangs: %s", describe(ops[0]).c_str());
	}
	for (unsigned r = 0; r < N; r++)
		if ((int)r != gone)
			failed(ops[0], r);
}

// behind runs one more operation after one that has failed on all ranks except the absent one. It must do nothing, not
// even post its descriptor.
static void behind(std::vector<operation> &ops) {
	std::vector<std::vector<char>> before;
	for (rank &r : ranks) {
		before.emplace_back(r.area, r.area + UBC_AREA_PACKETS);
		r.used = 0;
		r.status.error = UBC_OK;
	}
	ops = {random(0)};
	wants = 1u << UBC_OK;
	runLimited(ops, absent);
	for (unsigned r = 0; r < N; r++)
		if (memcmp(before[r].data(), ranks[r].area, UBC_AREA_PACKETS) != 0)
			FAIL("rank %u's area has changed behind a failure: %s", r, describe(ops[0]).c_str());
}

static void errors(unsigned long rounds) {
	while (rounds-- > 0) {
		reset();
		std::vector<operation> ops{random(0)};
		absent = (int)below(N);
		limit = 300000;
		wants = 1u << UBC_TIMEOUT;
		runLimited(ops, absent);
		behind(ops);
		release();

		reset();
		ops = {random(0)};
		limit = 1ull << 60;
		wants = 1u << UBC_ABORTED;
		for (rank &r : ranks)
			r.status.abort = 1;
		runLimited(ops, absent);
		behind(ops);
		release();

		// A peer names an extent that is not mapped here, or an impossible one.
		reset();
		operation o = random(0);
		while (o.count == 0 || (o.kind != UBC_ALL_REDUCE && o.kind != UBC_ALL_GATHER) ||
			by_multicast(o) || stands_in(o) || o.name.find("packets") != std::string::npos || o.name.find("oneshot") != std::string::npos || by_lines(o))
			for (rank &r : ranks) {
				r.used = 0;
				if (&r == &ranks.back())
					o = random(0);
			}
		o.push = false;
		o.staging.assign(N, false);
		for (unsigned r = 0; r < N; r++)
			o.src[r].direct = o.dst[r].direct = true;
		ops = {o};
		unsigned was = ranks[absent].extent;
		ranks[absent].extent = chance(50) ? UBC_MAX_EXTENTS + below(15000) : (was + BATCH + 1) % UBC_MAX_EXTENTS;
		limit = 300000;
		wants = 1u << UBC_NO_EXTENT | 1u << UBC_TIMEOUT;
		runLimited(ops, -2);
		unsigned found = 0;
		for (unsigned r = 0; r < N; r++)
			found += ranks[r].status.error == UBC_NO_EXTENT && (int)ranks[r].status.peer == absent &&
				UBC_EXTENT(ranks[r].status.detail) == ranks[absent].extent;
		unsigned want = o.name.find("ring") == std::string::npos ? N - 1 : 1; // only the rank that writes there
		if (found != want)
			FAIL("%u of %u ranks have noticed the bad extent: %s", found, want, describe(o).c_str());
		release();
	}
	printf("errors\n");
}

int main(int argc, char **argv) {
	if (argc != 6)
		FAIL("check SEED RANKS data|errors TIMES SECONDS");
	arguments = argv;
	signal(SIGALRM, late);
	alarm((unsigned)atoi(argv[5]));
	S.random.seed(strtoull(argv[1], nullptr, 0));
	N = (unsigned)atoi(argv[2]);
	if (strcmp(argv[3], "multicast") == 0)
		multicast = 100;
	if (strcmp(argv[3], "errors") == 0)
		errors(strtoul(argv[4], nullptr, 0));
	else
		data(strtoul(argv[4], nullptr, 0));
	return 0;
}
