// Random operations of the kernels against a reference that is written another way: check SEED RANKS OPERATIONS, or
// check SEED RANKS errors. Prints what went wrong and fails.
#include "fibers.h"
#include "reference.h"

#include <string>
#include <sys/mman.h>

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

enum { GUARD = 64, HEAP = 8 << 20 };

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

static void reset() {
	S.drop();
	ranks = std::vector<rank>(N);
	for (rank &r : ranks) {
		fresh(r.area, areaBytes());
		fresh(r.heap, HEAP);
		r.extent = below(UBC_MAX_EXTENTS);
	}
	uint32_t epoch = chance(50) ? 0 : 0xfffffffc; // also around the end
	for (rank &r : ranks) {
		for (unsigned b = 0; b < UBC_MAX_BLOCKS; b++)
			((uint32_t *)r.area)[b] = epoch;
		r.table.assign(N, std::vector<uint64_t>(UBC_MAX_EXTENTS));
		for (unsigned q = 0; q < N; q++)
			r.table[q][ranks[q].extent] = (uint64_t)ranks[q].heap;
		memset(&r.status, 0, sizeof r.status);
	}
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
	return b.direct ? UBC_DIRECT | (uint64_t)r.extent << 48 | (uint64_t)(b.p - r.heap) : 0;
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
};

static uint64_t signature(int kind, int type, int op, int root, uint64_t count) {
	return (uint64_t)kind << 59 | (uint64_t)type << 55 | (uint64_t)op << 52 | (uint64_t)root << 40 | count;
}

static bool reduction(int k) { return k == UBC_ALL_REDUCE || k == UBC_REDUCE_SCATTER || k == UBC_REDUCE; }

// lengths of source and destination in elements
static size_t sourceLen(const operation &o, unsigned r) {
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

static operation random(int only) {
	operation o;
	o.kind = 1 + (int)below(9);
	o.type = only ? only : 1 + (int)below(TYPES - 1);
	o.op = reduction(o.kind) ? 1 + (int)below(6) : 0;
	o.root = o.kind == UBC_REDUCE || o.kind == UBC_BROADCAST || o.kind == UBC_GATHER || o.kind == UBC_SCATTER
		? (int)below(N) : 0;
	o.count = o.kind == UBC_BARRIER ? 0 : counts();
	switch (o.kind) {
	case UBC_BARRIER:
		o.name = "ubc_barrier";
		break;
	case UBC_ALL_REDUCE:
		o.name = below(3) == 0 ? "ubc_oneshot_" : chance(50) ? "ubc_packets_" : "ubc_twoshot_";
		break;
	case UBC_REDUCE_SCATTER:
	case UBC_REDUCE:
		o.name = chance(50) ? "ubc_packets_" : "ubc_twoshot_";
		break;
	default:
		o.name = chance(50) ? "ubc_move" : "ubc_move_packets";
	}
	if (reduction(o.kind)) {
		// Kernels for more ranks than there are work too.
		unsigned up = N <= 2 && chance(60) ? 2 : N <= 4 && chance(60) ? 4 : 8;
		o.name.insert(o.name.size() - 1, std::to_string(up));
		o.name += types[o.type];
	}
	o.f = find(o.name);
	o.blocks = 1 + below(3);
	o.threads = UBC_MAX_RANKS + below(9);
	o.push = chance(40);
	o.sig = signature(o.kind, o.type, o.op, o.root, o.count);
	bool allDirect = chance(40), placed = chance(35);
	for (unsigned r = 0; r < N; r++) {
		size_t size = sizes[o.type], s = sourceLen(o, r) * size, d = destinationLen(o, r) * size, part = o.count * size;
		buffer src, dst;
		bool inPlace = placed && s > 0 && d > 0 && o.kind != UBC_ALL_TO_ALL;
		if (inPlace && s > d) {
			src = allocate(ranks[r], s, (unsigned)size);
			dst = src;
			dst.p += r * part;
			dst.n = part;
		} else if (inPlace) {
			dst = allocate(ranks[r], d, (unsigned)size);
			src = dst;
			if (d > s)
				src.p += r * part;
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
	switch (below(3)) {
	case 0:
		if (o.kind != UBC_BARRIER) { // fewer, so that it stays in its buffers
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

static ubc_params params(operation &o, unsigned r) {
	ubc_params p;
	memset(&p, 0, sizeof p);
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
	return p;
}

static std::string describe(const operation &o) {
	char s[300];
	snprintf(s, sizeof s, "%s kind %d type %s op %d root %d count %zu grid %ux%u push %d odd %d refuses %d",
		o.name.c_str(), o.kind, types[o.type], o.op, o.root, o.count, o.blocks, o.threads, o.push, o.odd, o.refuses);
	std::string d = s;
	for (unsigned r = 0; r < N; r++) {
		snprintf(s, sizeof s, "\n  rank %u: src %p%s dst %p%s", r, (void *)o.src[r].p, o.src[r].direct ? " direct" : "",
			(void *)o.dst[r].p, o.dst[r].direct ? " direct" : "");
		d += s;
	}
	return d;
}

// expected is element i of rank r's destination.
static uint64_t expected(const operation &o, unsigned r, size_t i) {
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
	return reduced(o.type, o.op, v);
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

// run gives each rank the operations in order, at its own pace. But for absent.
static void run(std::vector<operation> &ops, int absent, void (*done)(const operation &, unsigned)) {
	for (;;) {
		bool left = false;
		for (unsigned r = 0; r < N; r++) {
			rank &k = ranks[r];
			if (k.running && k.l.running == 0) {
				k.running = false;
				done(ops[k.next++], r);
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
		for (unsigned i = 0, n = 1 + below(400); i < n && !S.live.empty(); i++)
			S.step();
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
			for (unsigned i = 0, n = 1 + below(6); i < n; i++) {
				type = type % (TYPES - 1) + 1;
				ops.push_back(random(type));
				if (N > 1 && chance(15))
					spoil(ops.back());
			}
			run(ops, -1, verify);
			total += ops.size();
		}
		release();
	}
	printf("%lu operations\n", total);
}

// --- what ends a communicator

static int absent;
static unsigned wants; // bits of errors
static void ended(const operation &o, unsigned r) {
	const ubc_status &s = ranks[r].status;
	if (!(wants >> s.error & 1) || (N == 2 && (wants & (wants - 1)) == 0 && (int)s.peer != absent))
		FAIL("rank %u: error %u of peer %u: %s", r, s.error, s.peer, describe(o).c_str());
	if (s.error == UBC_TIMEOUT && !s.abort)
		FAIL("rank %u has timed out but does not abort", r);
}

static uint64_t limit;

static void runLimited(std::vector<operation> &ops, int gone) {
	// As run, with a deadline for all.
	for (unsigned r = 0; r < N; r++) {
		if ((int)r == gone)
			continue;
		operation &o = ops[0];
		ubc_params p = params(o, r);
		p.timeout = limit;
		S.start(&ranks[r].l, o.f, p, o.blocks, o.threads);
	}
	uint64_t begin = S.now;
	while (!S.live.empty()) {
		S.step();
		if (S.now - begin > 1000000000)
			FAIL("hangs: %s", describe(ops[0]).c_str());
	}
	for (unsigned r = 0; r < N; r++)
		if ((int)r != gone)
			ended(ops[0], r);
}

static void errors() {
	for (int i = 0; i < 60; i++) {
		reset();
		std::vector<operation> ops{random(0)};
		absent = (int)below(N);
		limit = 300000;
		wants = 1u << UBC_TIMEOUT;
		runLimited(ops, absent);
		release();

		reset();
		ops = {random(0)};
		limit = 1ull << 60;
		wants = 1u << UBC_ABORTED;
		for (rank &r : ranks)
			r.status.abort = 1;
		runLimited(ops, absent);
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
		ranks[absent].extent = chance(50) ? UBC_MAX_EXTENTS + below(30000) : (was + 1) % UBC_MAX_EXTENTS;
		limit = 300000;
		wants = 1u << UBC_NO_EXTENT | 1u << UBC_TIMEOUT;
		runLimited(ops, -2);
		unsigned found = 0;
		for (unsigned r = 0; r < N; r++)
			found += ranks[r].status.error == UBC_NO_EXTENT && (int)ranks[r].status.peer == absent &&
				(ranks[r].status.detail >> 48 & 0x7fff) == ranks[absent].extent;
		if (found != N - 1)
			FAIL("%u of %u ranks have noticed the bad extent: %s", found, N - 1, describe(o).c_str());
		release();
	}
	printf("errors\n");
}

int main(int argc, char **argv) {
	if (argc != 4)
		FAIL("check SEED RANKS OPERATIONS|errors");
	S.random.seed(strtoull(argv[1], nullptr, 0));
	N = (unsigned)atoi(argv[2]);
	if (strcmp(argv[3], "errors") == 0)
		errors();
	else
		data(strtoul(argv[3], nullptr, 0));
	return 0;
}
