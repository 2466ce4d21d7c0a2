// Random operations, with buffers and their content, and with one rank that does something else.
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "ranks.h"

#include <string>

#ifdef UBC_WIDE
#define KERNELS ubc_wide_emulated
#else
#define KERNELS ubc_emulated
#endif
extern "C" const struct entry {
	const char *name;
	kernel *f;
} KERNELS[];
extern "C" __attribute__((weak)) const struct entry ubc_stand_in_emulated[];

static kernel *find(const std::string &name) {
	std::string own = UBC_MANY ? "ubc_wide" + name.substr(3) : name;
	for (const entry *e = KERNELS; e->name; e++)
		if (own == e->name)
			return e->f;
	for (const entry *e = ubc_stand_in_emulated; e && e->name; e++)
		if (own == e->name)
			return e->f;
	FAIL("no kernel %s", name.c_str());
}

struct operation {
	int kind, type, op, root;
	size_t count; // as in the signature
	std::string name;
	unsigned blocks, threads;
	bool push;
	std::vector<bool> staging; // ranks that announce separate staging memory
	int odd = -1; // the rank that does something else
	bool refuses = false;
	uint64_t sig, oddSig = 0;
	kernel *f, *oddF = nullptr;
	std::vector<buffer> src, dst;
	std::vector<std::vector<char>> input;
	std::vector<double> factor;
	std::vector<std::vector<size_t>> sent, due; // [from][to], for operations with parts of different lengths
	unsigned oddFrom = 0, oddTo = 0;            // the pair with different counts, if oddF is f and oddSig is sig
};

static uint64_t signature(int kind, int type, int op, int root, uint64_t count) {
	return (uint64_t)kind << 59 | (uint64_t)type << 55 | (uint64_t)op << 52 | (uint64_t)root << 40 | count;
}

static bool reduction(int k) { return k == UBC_ALL_REDUCE || k == UBC_REDUCE_SCATTER || k == UBC_REDUCE; }
static bool vectors(int k) { return k >= UBC_ALL_GATHER_V; }

// before returns how many elements the first n ranks' parts have, of those that rank r sends, or expects.
static size_t before(const operation &o, bool sends, unsigned r, unsigned n) {
	size_t all = 0;
	for (unsigned q = 0; q < n; q++)
		all += !sends ? o.due[q][r] : o.kind == UBC_ALL_GATHER_V ? (n == N ? o.sent[r][r] * (q == r) : 0) : o.sent[r][q];
	return all;
}

// Lengths of source and destination, in elements.
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

// lengths draws how much each rank sends to each.
static void lengths(operation &o) {
	size_t most = chance(50) ? counts() / N : 130; // the emulator's limit for packets
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

// pick returns one of the names that this set of kernels has.
static std::string pick(std::initializer_list<const char *> names) {
	for (;;) {
		std::string name = names.begin()[below(names.size())];
		if (!UBC_MANY || (name.find("lines") == std::string::npos && name != "ubc_packets_"))
			return name;
	}
}
static bool by_lines(const operation &o) { return o.name.find("lines") != std::string::npos; }

static bool by_multicast(const operation &o) { return o.name.find("_nvls_") != std::string::npos; }

static bool stands_in(const operation &o) { return o.name.find("_stand_in_") != std::string::npos; }

// multicasts reports whether the kernels for multicast, and their stand-ins, do such an operation.
static bool multicasts(int kind, int type, int op) {
	if (kind == UBC_ALL_GATHER || kind == UBC_BROADCAST)
		return true;
	if (UBC_MANY || (kind != UBC_ALL_REDUCE && kind != UBC_REDUCE_SCATTER))
		return false;
	if (type == FLOAT32)
		return op == UBC_SUM || op == UBC_AVG;
	return type != FLOAT64 && type != BOOL && sizes[type] >= (isFloat(type) ? 2 : 4) &&
		(op == UBC_SUM || op == UBC_MIN || op == UBC_MAX);
}

static unsigned multicast = UBC_MANY ? 0 : 25; // percent of the operations that can be done so

static operation random(int only) {
	operation o;
	do {
		o.kind = 1 + (int)below(13);
		o.type = only ? only : 1 + (int)below(TYPES - 1);
		o.op = !reduction(o.kind) ? 0 : o.type == BOOL ? UBC_MIN + (int)below(2) : 1 + (int)below(6);
	} while (multicast == 100 && !multicasts(o.kind, o.type, o.op));
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
		o.name = chance(40) && (N > 1 || o.type != BOOL) ? "ubc_ring_" : pick({"ubc_oneshot_", "ubc_packets_", "ubc_lines_",
			"ubc_twoshot_"});
		break;
	case UBC_REDUCE:
		o.name = pick({"ubc_oneshot_", "ubc_packets_", "ubc_lines_", "ubc_twoshot_"});
		break;
	case UBC_REDUCE_SCATTER:
		o.name = pick({"ubc_packets_", "ubc_lines_", "ubc_twoshot_"});
		break;
	case UBC_BROADCAST:
		o.name = chance(50) ? "ubc_broadcast" : pick({"ubc_move", "ubc_move_packets", "ubc_move_lines"});
		break;
	default:
		o.name = vectors(o.kind) ? "ubc_move_v" : pick({"ubc_move", "ubc_move_packets", "ubc_move_lines"});
	}
	std::string elements = types[o.type == BOOL ? UINT8 : o.type + (o.type < UINT64 && o.type % 2)]; // like the host
	if (multicasts(o.kind, o.type, o.op) && chance(multicast)) {
		o.name = chance(50) ? "ubc_stand_in_" : "ubc_nvls_";
		o.name += reduction(o.kind) ? elements : "move";
	} else if (o.name == "ubc_ring_") {
		o.name += elements;
	} else if (reduction(o.kind)) {
		// Kernels for more ranks than necessary work, too.
		unsigned up = UBC_MANY ? 0 : N <= 2 && chance(60) ? 2 : N <= 4 && chance(60) ? 4 : 8;
		o.name += elements + (up ? "_" + std::to_string(up) : "");
	}
	o.f = find(o.name);
	o.blocks = 1 + below(3);
	o.threads = by_lines(o) ? 16 * (1 + below(3)) : (N < 8 ? 8 : N) + below(9);
	o.push = chance(40);
	o.staging.assign(N, chance(50));
	for (unsigned r = 0, some = chance(50); r < N; r++)
		o.staging[r] = o.staging[r] || (some && chance(50));
	o.sig = signature(o.kind, o.type, o.op, o.root, o.count);
	bool allDirect = chance(40), placed = chance(35);
	// For multicast all buffers are mostly at the same place in the heaps.
	bool alike = by_multicast(o) && chance(80);
	bool sides[2] = {chance(60), chance(60)}; // of which all are direct
	size_t from = 0, odd[2] = {below(16 / sizes[o.type]) * sizes[o.type], below(16 / sizes[o.type]) * sizes[o.type]};
	for (size_t &x : odd)
		x = chance(25) ? x : 0;
	for (unsigned r = 0; alike && r < N; r++)
		from = std::max(from, ranks[r].used);
	for (unsigned r = 0; r < N; r++) {
		if (alike)
			ranks[r].used = from;
		size_t size = sizes[o.type], s = sourceLen(o, r) * size, d = destinationLen(o, r) * size, at = r * o.count * size;
		if (vectors(o.kind))
			at = before(o, s > d, r, r) * size;
		if (o.kind == UBC_BROADCAST && (by_multicast(o) || stands_in(o)) && (int)r == o.root)
			d = s; // it may get the data, too
		buffer src, dst;
		bool inPlace = placed && s > 0 && d > 0 && o.kind != UBC_ALL_TO_ALL && o.kind != UBC_ALL_TO_ALL_V;
		if (alike) { // of the same sizes, also where a rank has no such buffer
			size_t most = sizes[o.type] * o.count * (o.kind == UBC_REDUCE_SCATTER || o.kind == UBC_ALL_GATHER ? N : 1);
			src = allocate(ranks[r], most, (unsigned)size, odd[0]);
			dst = placed ? src : allocate(ranks[r], most, (unsigned)size, odd[1]);
			if (placed && o.kind == UBC_REDUCE_SCATTER)
				dst.p += at;
			if (placed && o.kind == UBC_ALL_GATHER)
				src.p += at;
			src.n = s, dst.n = d;
			src.direct = src.direct || sides[0];
			dst.direct = placed ? src.direct : dst.direct || sides[1];
			if (o.kind == UBC_BROADCAST && (int)r != o.root)
				src = allocate(ranks[r], 0, 1);
		} else if (inPlace && s > d) {
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

// spoil makes one rank run another operation, or refuse.
static void spoil(operation &o) {
	o.odd = (int)below(N);
	if (chance(40)) {
		o.refuses = true;
		o.oddSig = 7 + below(9);
		o.oddF = find("ubc_barrier");
		return;
	}
	o.oddF = o.f;
	if (vectors(o.kind) && chance(60)) { // one of two ranks has a wrong count
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
		if (o.kind != UBC_BARRIER && !vectors(o.kind)) { // fewer elements, so that they fit its buffers
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
		v.count[q].send = o.sent[r][q];
		v.count[q].recv = o.due[q][r];
	}
	for (unsigned q = 0; q < N; q++) {
		unsigned d = (q + N - r) % N;
		if (UBC_MANY && d > 0)
			continue;
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
	p.row = ROW;
	p.little = LITTLE;
	p.large = LARGE;
	p.stage = (uint64_t)ranks[r].stage;
	if (by_multicast(o)) {
		p.multi = (uint64_t)object;
		p.src_word = place(ranks[r], o.src[r]);
		p.dst_word = place(ranks[r], o.dst[r]);
	}
	if (o.staging[r])
		p.stage_word = UBC_DIRECT | (uint64_t)(ranks[r].extent + BATCH) << 48;
	if (by_lines(o)) {
		unsigned turn = 15 * o.blocks * o.threads;
		size_t bytes = p.count * p.size;
		if (N > 2 && (o.kind == UBC_ALL_REDUCE || o.kind == UBC_REDUCE))
			bytes = ((bytes + N - 1) / N + 15) / 16 * 16;
		p.lines = (ubc_u32)lines();
		p.line_row = LINE_ROW;
		p.turns = LINE_ROW / (16 * o.blocks * o.threads);
		p.steps = bytes ? (ubc_u32)((bytes + turn - 1) / turn) : 1;
	}
	return v;
}

static std::string describe(const operation &o) {
	char s[400];
	snprintf(s, sizeof s, "%s kind %d type %s op %d root %d count %zu grid %ux%u push %d odd %d refuses %d staging",
		o.name.c_str(), o.kind, types[o.type], o.op, o.root, o.count, o.blocks, o.threads, o.push, o.odd, o.refuses);
	std::string d = s;
	for (unsigned r = 0; r < N; r++)
		d += o.staging[r] ? " 1" : " 0";
	for (unsigned r = 0; r < N; r++) {
		snprintf(s, sizeof s, "\n  rank %u: src %p%s dst %p%s", r, (void *)o.src[r].p, o.src[r].direct ? " direct" : "",
			(void *)o.dst[r].p, o.dst[r].direct ? " direct" : "");
		d += s;
		for (unsigned q = 0; q < N && vectors(o.kind); q++)
			d += (q ? " " : " sends ") + std::to_string(o.sent[r][q]);
	}
	return d;
}

#endif
