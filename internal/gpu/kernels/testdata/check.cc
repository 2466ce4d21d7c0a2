// Random operations of the kernels against a reference that is written another way: check SEED RANKS OPERATIONS
// SECONDS, or check SEED RANKS errors SECONDS. Prints what went wrong and fails; after so many seconds, what it was at.
#include "fibers.h"
#include "reference.h"

#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

extern "C" const struct entry {
	const char *name;
	kernel *f;
} ubc_emulated[];

static scheduler &S = scheduler::self();
static unsigned below(unsigned n) { return S.below(n); }
static bool chance(unsigned percent) { return below(100) < percent; }

static kernel *find(const std::string &name) {
	for (const entry *e = ubc_emulated; e->name; e++)
		if (name == e->name)
			return e->f;
	FAIL("no kernel %s", name.c_str());
}

// --- ranks

enum { GUARD = 64, HEAP = 8 << 20, BATCH = 6 };

struct rank {
	char *area = nullptr, *heap = nullptr;
	size_t used = 0;
	unsigned extent = 0;
	std::vector<std::vector<uint64_t>> table;
	ubc_status status;
	launch l;
	unsigned next = 0; // operation
	bool running = false;
};

static unsigned N;
static std::vector<rank> ranks;

static size_t areaBytes() {
	return UBC_AREA_PACKETS + 4ull * N * UBC_PACKET_BYTES + 4ull * UBC_STAGING;
}

static void fresh(char *&p, size_t n) {
	if (p)
		munmap(p, n);
	p = (char *)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		FAIL("no memory");
}

// import maps the ranks' memory, for each operation of a batch as an extent of its own: a rank may take it away when it
// has done the operation.
static void import() {
	for (rank &r : ranks) {
		r.table.assign(N, std::vector<uint64_t>(UBC_MAX_EXTENTS));
		for (unsigned q = 0; q < N; q++)
			for (unsigned i = 0; i < BATCH; i++)
				r.table[q][ranks[q].extent + i] = (uint64_t)ranks[q].heap;
	}
}

static void reset() {
	S.drop();
	ranks = std::vector<rank>(N);
	for (rank &r : ranks) {
		fresh(r.area, areaBytes());
		fresh(r.heap, HEAP);
		r.extent = below(UBC_MAX_EXTENTS - BATCH);
	}
	uint32_t epoch = chance(50) ? 0 : 0xfffffffc; // also around the end
	for (rank &r : ranks) {
		for (unsigned b = 0; b < UBC_MAX_BLOCKS; b++)
			((uint32_t *)r.area)[b] = epoch;
		memset(&r.status, 0, sizeof r.status);
	}
	import();
}

static void release() {
	for (rank &r : ranks) {
		munmap(r.area, areaBytes());
		munmap(r.heap, HEAP);
	}
}

struct buffer {
	char *p = nullptr;
	size_t n = 0;
	bool direct = false;
};

// allocate gives n bytes with guards, at some multiple of size.
static buffer allocate(rank &r, size_t n, unsigned size) {
	buffer b;
	size_t at = (r.used + 15) / 16 * 16 + GUARD + (chance(50) ? 0 : below(16 / size) * size);
	r.used = at + n + GUARD;
	if (r.used > HEAP)
		FAIL("the heap is too small");
	b.p = r.heap + at;
	b.n = n;
	b.direct = chance(60);
	memset(b.p - GUARD, 0xa5, n + 2 * GUARD);
	return b;
}

static uint64_t word(rank &r, const buffer &b) {
	return b.direct ? UBC_DIRECT | (uint64_t)(r.extent + r.next) << 48 | (uint64_t)(b.p - r.heap) : 0;
}

static uint64_t value(int t) {
	if (!isFloat(t))
		return S.random();
	switch (below(40)) {
	case 0:
		return bits(t, NAN);
	case 1:
		return bits(t, INFINITY);
	case 2:
		return bits(t, -0.0);
	case 3:
		return bits(t, 0.0);
	case 4:
		return bits(t, -INFINITY);
	case 5:
		return 1 + below(3); // subnormal
	case 6:
		return S.random(); // anything
	}
	return bits(t, (double)(int)below(20001) / 16.0 - 600);
}

struct operation {
	int kind, type, op, root;
	size_t count; // as in the signature
	std::string name;
	unsigned blocks, threads;
	bool push;
	int odd = -1; // the rank that does something else
	bool refuses = false;
	uint64_t sig, oddSig = 0;
	kernel *f, *oddF = nullptr;
	std::vector<buffer> src, dst;
	std::vector<std::vector<char>> input;
	std::vector<double> factor;
	std::vector<std::vector<size_t>> sent, due; // [from][to] of operations with lengths that differ
	unsigned oddFrom = 0, oddTo = 0;            // the pair whose counts do not fit, if oddF is f and oddSig sig
};

static uint64_t signature(int kind, int type, int op, int root, uint64_t count) {
	return (uint64_t)kind << 59 | (uint64_t)type << 55 | (uint64_t)op << 52 | (uint64_t)root << 40 | count;
}

static bool reduction(int k) { return k == UBC_ALL_REDUCE || k == UBC_REDUCE_SCATTER || k == UBC_REDUCE; }
static bool vectors(int k) { return k >= UBC_ALL_GATHER_V; }

// before is how many elements the first n ranks' parts have, of what rank r sends, or is due.
static size_t before(const operation &o, bool sends, unsigned r, unsigned n) {
	size_t all = 0;
	for (unsigned q = 0; q < n; q++)
		all += !sends ? o.due[q][r] : o.kind == UBC_ALL_GATHER_V ? (n == N ? o.sent[r][r] * (q == r) : 0) : o.sent[r][q];
	return all;
}

// lengths of source and destination in elements
static size_t sourceLen(const operation &o, unsigned r) {
	if (vectors(o.kind))
		return before(o, true, r, N);
	switch (o.kind) {
	case UBC_BARRIER:
		return 0;
	case UBC_REDUCE_SCATTER:
	case UBC_ALL_TO_ALL:
		return o.count * N;
	case UBC_BROADCAST:
		return (int)r == o.root ? o.count : 0;
	case UBC_SCATTER:
		return (int)r == o.root ? o.count * N : 0;
	}
	return o.count;
}

static size_t destinationLen(const operation &o, unsigned r) {
	if (vectors(o.kind))
		return before(o, false, r, N);
	bool root = (int)r == o.root;
	switch (o.kind) {
	case UBC_BARRIER:
		return 0;
	case UBC_ALL_GATHER:
	case UBC_ALL_TO_ALL:
		return o.count * N;
	case UBC_BROADCAST:
		return root ? 0 : o.count;
	case UBC_REDUCE:
		return root ? o.count : 0;
	case UBC_GATHER:
		return root ? o.count * N : 0;
	}
	return o.count;
}

static size_t counts() {
	switch (below(6)) {
	case 0:
		return below(4);
	case 1:
	case 2:
		return below(100);
	case 3:
		return 16 * below(40);
	case 4:
		return below(1000);
	}
	return below(5000);
}

// lengths draws who sends how much to whom.
static void lengths(operation &o) {
	size_t most = chance(50) ? counts() / N : 130; // of packets in the emulator
	o.sent.assign(N, std::vector<size_t>(N));
	for (unsigned s = 0; s < N; s++) {
		size_t same = below((unsigned)most + 1);
		for (unsigned d = 0; d < N; d++)
			if (o.kind == UBC_ALL_GATHER_V || (o.kind == UBC_GATHER_V && (int)d == o.root))
				o.sent[s][d] = same;
			else if (o.kind == UBC_ALL_TO_ALL_V || (o.kind == UBC_SCATTER_V && (int)s == o.root))
				o.sent[s][d] = chance(20) ? 0 : below((unsigned)most + 1);
	}
	o.due = o.sent;
}

static operation random(int only) {
	operation o;
	o.kind = 1 + (int)below(13);
	o.type = only ? only : 1 + (int)below(TYPES - 1);
	o.op = reduction(o.kind) ? 1 + (int)below(6) : 0;
	switch (o.kind) {
	case UBC_REDUCE:
	case UBC_BROADCAST:
	case UBC_GATHER:
	case UBC_SCATTER:
	case UBC_GATHER_V:
	case UBC_SCATTER_V:
		o.root = (int)below(N);
		break;
	default:
		o.root = 0;
	}
	o.count = o.kind == UBC_BARRIER || vectors(o.kind) ? 0 : counts();
	if (vectors(o.kind))
		lengths(o);
	switch (o.kind) {
	case UBC_BARRIER:
		o.name = "ubc_barrier";
		break;
	case UBC_ALL_REDUCE:
		o.name = below(2) == 0 ? "ubc_ring_" : below(3) == 0 ? "ubc_oneshot_" : chance(50) ? "ubc_packets_" : "ubc_twoshot_";
		break;
	case UBC_REDUCE_SCATTER:
	case UBC_REDUCE:
		o.name = chance(50) ? "ubc_packets_" : "ubc_twoshot_";
		break;
	case UBC_BROADCAST:
		o.name = chance(60) ? "ubc_broadcast" : chance(50) ? "ubc_move" : "ubc_move_packets";
		break;
	default:
		o.name = vectors(o.kind) ? "ubc_move_v" : chance(50) ? "ubc_move" : "ubc_move_packets";
	}
	if (o.name == "ubc_ring_") {
		o.name += types[o.type];
	} else if (reduction(o.kind)) {
		// Kernels for more ranks than there are work too.
		unsigned up = N <= 2 && chance(60) ? 2 : N <= 4 && chance(60) ? 4 : 8;
		o.name += types[o.type] + ("_" + std::to_string(up));
	}
	o.f = find(o.name);
	o.blocks = 1 + below(3);
	o.threads = UBC_MAX_RANKS + below(9);
	o.push = chance(40);
	o.sig = signature(o.kind, o.type, o.op, o.root, o.count);
	bool allDirect = chance(40), placed = chance(35);
	for (unsigned r = 0; r < N; r++) {
		size_t size = sizes[o.type], s = sourceLen(o, r) * size, d = destinationLen(o, r) * size, at = r * o.count * size;
		if (vectors(o.kind))
			at = before(o, s > d, r, r) * size;
		buffer src, dst;
		bool inPlace = placed && s > 0 && d > 0 && o.kind != UBC_ALL_TO_ALL && o.kind != UBC_ALL_TO_ALL_V;
		if (inPlace && s > d) {
			src = allocate(ranks[r], s, (unsigned)size);
			dst = src;
			dst.p += at;
			dst.n = d;
		} else if (inPlace) {
			dst = allocate(ranks[r], d, (unsigned)size);
			src = dst;
			if (d > s)
				src.p += at;
			src.n = s;
		} else {
			src = allocate(ranks[r], s, (unsigned)size);
			dst = allocate(ranks[r], d, (unsigned)size);
		}
		if (allDirect)
			src.direct = dst.direct = true;
		if (s > 0)
			for (size_t i = 0; i < sourceLen(o, r); i++)
				put(o.type, src.p, i, value(o.type));
		o.src.push_back(src);
		o.dst.push_back(dst);
		o.input.emplace_back(src.p, src.p + s);
		o.factor.push_back(chance(20) ? 1e30 : (double)(int)below(64) / 4 - 8);
	}
	return o;
}

// spoil makes one rank want something else, or refuse.
static void spoil(operation &o) {
	o.odd = (int)below(N);
	if (chance(40)) {
		o.refuses = true;
		o.oddSig = 7 + below(9);
		o.oddF = find("ubc_barrier");
		return;
	}
	o.oddF = o.f;
	if (vectors(o.kind) && chance(60)) { // a rank expects another count than what is sent, or sends another
		o.oddSig = o.sig;
		o.oddFrom = below(N);
		o.oddTo = below(N);
		if (o.kind == UBC_GATHER_V)
			o.oddTo = (unsigned)o.root;
		if (o.kind == UBC_SCATTER_V)
			o.oddFrom = (unsigned)o.root;
		size_t &n = o.due[o.oddFrom][o.oddTo];
		n -= n > 0 ? 1 : -1;
		return;
	}
	switch (below(3)) {
	case 0:
		if (o.kind != UBC_BARRIER && !vectors(o.kind)) { // fewer, so that it stays in its buffers
			o.oddSig = signature(o.kind, o.type, o.op, o.root, o.count + (o.count ? -1 : 1));
			break;
		}
		// fall through
	case 1:
		o.oddSig = signature(o.kind, o.type, o.op ^ 1, o.root, o.count);
		break;
	default:
		o.oddSig = signature(UBC_BARRIER, o.type, 0, 0, 0);
		o.oddF = find("ubc_barrier");
		if (o.oddSig == o.sig)
			o.oddSig++;
	}
}

static ubc_vector_params params(operation &o, unsigned r) {
	ubc_vector_params v;
	ubc_params &p = v.p;
	memset(&v, 0, sizeof v);
	for (unsigned q = 0; q < N && vectors(o.kind); q++) {
		v.send[q] = o.sent[r][q];
		v.recv[q] = o.due[q][r];
	}
	for (unsigned q = 0; q < N; q++) {
		unsigned d = (q - r + N) % N;
		p.area[d] = (uint64_t)ranks[q].area;
		p.table[d] = (uint64_t)ranks[r].table[q].data();
	}
	bool odd = (int)r == o.odd;
	p.status = (uint64_t)&ranks[r].status;
	p.signature = odd ? o.oddSig : o.sig;
	p.src = (uint64_t)o.src[r].p;
	p.dst = (uint64_t)o.dst[r].p;
	p.src_word = word(ranks[r], o.src[r]);
	p.dst_word = word(ranks[r], o.dst[r]);
	p.count = odd && !o.refuses ? o.oddSig & ((1ull << 40) - 1) : o.count;
	if (p.count > o.count)
		p.count = o.count;
	p.timeout = 1ull << 60;
	p.factor = o.factor[r];
	p.rank = r;
	p.ranks = N;
	p.op = o.op;
	p.root = o.root;
	p.size = sizes[o.type];
	p.push = o.push;
	return v;
}

static std::string describe(const operation &o) {
	char s[400];
	snprintf(s, sizeof s, "%s kind %d type %s op %d root %d count %zu grid %ux%u push %d odd %d refuses %d",
		o.name.c_str(), o.kind, types[o.type], o.op, o.root, o.count, o.blocks, o.threads, o.push, o.odd, o.refuses);
	std::string d = s;
	for (unsigned r = 0; r < N; r++) {
		snprintf(s, sizeof s, "\n  rank %u: src %p%s dst %p%s", r, (void *)o.src[r].p, o.src[r].direct ? " direct" : "",
			(void *)o.dst[r].p, o.dst[r].direct ? " direct" : "");
		d += s;
		for (unsigned q = 0; q < N && vectors(o.kind); q++)
			d += (q ? " " : " sends ") + std::to_string(o.sent[r][q]);
	}
	return d;
}

// expected is element i of rank r's destination.
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
	if (o.name.find("ring") != std::string::npos && N > 1) { // from the slice's rank on, with a rounding for each step
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

// What runs, for who has to say so when the time is over. A kernel that does not even yield is not heard of any more.
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

// step is S.step, until the time is over.
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

// run gives each rank the operations in order, at its own pace. But for absent.
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
				continue; // a rank that dawdles
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
		for (int batch = 0; batch < 4; batch++) {
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

// --- what ends a communicator

static int absent;
static unsigned wants; // bits of errors
static void failed(const operation &o, unsigned r) {
	const ubc_status &s = ranks[r].status;
	if (!(wants >> s.error & 1) || (N == 2 && (wants & (wants - 1)) == 0 && (int)s.peer != absent))
		FAIL("rank %u: error %u of peer %u: %s", r, s.error, s.peer, describe(o).c_str());
	if (s.error != UBC_OK && !s.abort)
		FAIL("rank %u has failed but does not abort", r);
}

static uint64_t limit;

static void runLimited(std::vector<operation> &ops, int gone) {
	// As run, with a deadline for all.
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

// behind runs one more operation behind one that has failed on all ranks but the absent one: it does nothing, not even tell
// the peers that it is there.
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

static void errors() {
	for (int i = 0; i < 60; i++) {
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

		// A peer names an extent that is not mapped here, or none that there can be.
		reset();
		operation o = random(0);
		while (o.count == 0 || (o.kind != UBC_ALL_REDUCE && o.kind != UBC_ALL_GATHER) ||
			o.name.find("packets") != std::string::npos || o.name.find("oneshot") != std::string::npos)
			for (rank &r : ranks) {
				r.used = 0;
				if (&r == &ranks.back())
					o = random(0);
			}
		o.push = false;
		for (unsigned r = 0; r < N; r++)
			o.src[r].direct = o.dst[r].direct = true;
		ops = {o};
		unsigned was = ranks[absent].extent;
		ranks[absent].extent = chance(50) ? UBC_MAX_EXTENTS + below(30000) : (was + BATCH) % UBC_MAX_EXTENTS;
		limit = 300000;
		wants = 1u << UBC_NO_EXTENT | 1u << UBC_TIMEOUT;
		runLimited(ops, -2);
		unsigned found = 0;
		for (unsigned r = 0; r < N; r++)
			found += ranks[r].status.error == UBC_NO_EXTENT && (int)ranks[r].status.peer == absent &&
				(ranks[r].status.detail >> 48 & 0x7fff) == ranks[absent].extent;
		unsigned want = o.name.find("ring") == std::string::npos ? N - 1 : 1; // the one that writes there
		if (found != want)
			FAIL("%u of %u ranks have noticed the bad extent: %s", found, want, describe(o).c_str());
		release();
	}
	printf("errors\n");
}

int main(int argc, char **argv) {
	if (argc != 5)
		FAIL("check SEED RANKS OPERATIONS|errors SECONDS");
	arguments = argv;
	signal(SIGALRM, late);
	alarm((unsigned)atoi(argv[4]));
	S.random.seed(strtoull(argv[1], nullptr, 0));
	N = (unsigned)atoi(argv[2]);
	if (strcmp(argv[3], "errors") == 0)
		errors();
	else
		data(strtoul(argv[3], nullptr, 0));
	return 0;
}
