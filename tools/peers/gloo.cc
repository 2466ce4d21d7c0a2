// gloo measures one collective of gloo over TCP on float32 by the protocol of protocol.h. It prints a line "bytes
// microseconds" for each size, as peer.c does, and takes the same arguments. Before a size is timed, every element of its
// result is checked once.
//
//	c++ -O2 -o gloo gloo.cc -lgloo
//	GLOO_STORE=FOLDER hosts 2 -mpi env -- gloo all_reduce 4 67108864 4 [calls]
//
// UBCOLL_RANK and UBCOLL_SIZE say which rank this is. GLOO_STORE is an empty folder that all ranks see, where they find each
// other. GLOO_IFACE is the interface (eth0). Algorithms are gloo's defaults, and so is its waiting: a thread of its own polls
// the sockets.
#include "protocol.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <unistd.h>
#include <vector>

static int ranks, rank_;

struct buffers {
	float *src, *dst;
	size_t n;            // elements in one rank's part
	size_t in, out;      // bytes that this rank reads and writes
	const float *source; // not null: the call works in place in dst, which gets this input before
};

using Reduce = void (*)(void *, const void *, const void *, size_t);

static const Reduce add = gloo::sum<float>, larger = gloo::max<double>;

using Context = std::shared_ptr<gloo::Context>;
using Call = std::function<void()>;

// Each function makes a call that can be repeated, so that what can be prepared is not timed.
static Call all_reduce(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::AllreduceOptions>(c);
	o->setInput(b.src, b.n);
	o->setOutput(b.dst, b.n);
	o->setReduceFunction(add);
	return [o] { gloo::allreduce(*o); };
}

static Call all_gather(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::AllgatherOptions>(c);
	o->setInput(b.src, b.n);
	o->setOutput(b.dst, b.n * ranks);
	return [o] { gloo::allgather(*o); };
}

// gloo reduces and scatters in place, only by an algorithm of its older interface. The result is at the start of the buffer.
static Call reduce_scatter(const Context &c, const buffers &b) {
	auto a = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(c, std::vector<float *>{b.dst}, int(b.n * ranks),
		std::vector<int>(ranks, int(b.n)));
	return [a] { a->run(); };
}

static Call broadcast(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::BroadcastOptions>(c);
	o->setOutput(rank_ == 0 ? b.src : b.dst, b.n);
	o->setRoot(0);
	return [o] { gloo::broadcast(*o); };
}

static Call reduce(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::ReduceOptions>(c);
	o->setInput(b.src, b.n);
	o->setOutput(b.dst, b.n); // the other ranks', too: it is where gloo adds up
	o->setReduceFunction(add);
	o->setRoot(0);
	return [o] { gloo::reduce(*o); };
}

static Call gather(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::GatherOptions>(c);
	o->setInput(b.src, b.n);
	if (rank_ == 0) o->setOutput(b.dst, b.n * ranks);
	o->setRoot(0);
	return [o] { gloo::gather(*o); };
}

static Call scatter(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::ScatterOptions>(c);
	std::vector<float *> parts;
	for (int i = 0; i < ranks; i++) parts.push_back(b.src + i * b.n);
	if (rank_ == 0) o->setInputs(parts, b.n);
	o->setOutput(b.dst, b.n);
	o->setRoot(0);
	return [o] { gloo::scatter(*o); };
}

static Call all_to_all(const Context &c, const buffers &b) {
	auto o = std::make_shared<gloo::AlltoallOptions>(c);
	o->setInput(b.src, b.n * ranks);
	o->setOutput(b.dst, b.n * ranks);
	return [o] { gloo::alltoall(*o); };
}

// given is element i of a rank's input in the check; sums of them are exact.
static float given(int r, size_t i) { return float((r * 31 + i) % 97); }

static float sum(size_t i) {
	float s = 0;
	for (int r = 0; r < ranks; r++) s += given(r, i);
	return s;
}

struct operation {
	const char *name;
	int parts;                              // as in peer.c
	int root_in, root_out, all_in, all_out; // as in peer.c
	bool in_place;
	Call (*make)(const Context &, const buffers &);
	float (*want)(const buffers &, size_t i); // element i of this rank's result
};

static const operation operations[] = {
	{"all_reduce", 0, 1, 1, 1, 1, false, all_reduce, [](const buffers &, size_t i) { return sum(i); }},
	{"all_gather", 1, 1, -1, 1, -1, false, all_gather, [](const buffers &b, size_t i) { return given(int(i / b.n), i % b.n); }},
	{"reduce_scatter", 1, -1, 1, -1, 1, true, reduce_scatter, [](const buffers &b, size_t i) { return sum(rank_ * b.n + i); }},
	{"broadcast", 0, 1, 0, 0, 1, false, broadcast, [](const buffers &, size_t i) { return given(0, i); }},
	{"reduce", 0, 1, 1, 1, 0, false, reduce, [](const buffers &, size_t i) { return sum(i); }},
	{"gather", 1, 1, -1, 1, 0, false, gather, [](const buffers &b, size_t i) { return given(int(i / b.n), i % b.n); }},
	{"scatter", 1, -1, 1, 0, 1, false, scatter, [](const buffers &b, size_t i) { return given(0, rank_ * b.n + i); }},
	{"alltoall", 1, -1, -1, -1, -1, false, all_to_all,
		[](const buffers &b, size_t i) { return given(int(i / b.n), rank_ * b.n + i % b.n); }},
};

static size_t parts(int n, size_t bytes) { return n < 0 ? bytes * ranks : bytes * n; }

static void fill(float *p, size_t bytes) { // as memory does
	for (size_t i = 0; i < bytes / 4; i++) p[i] = float(i * 4 % 1001);
}

// check makes the call once, and exits if an element of the result is wrong.
static void check(const operation &op, const buffers &b, const Call &call, size_t high) {
	for (size_t i = 0; i < b.in / 4; i++) b.src[i] = given(rank_, i);
	for (size_t i = 0; i < high / 4; i++) b.dst[i] = NAN;
	if (b.source) memcpy(b.dst, b.source, b.in);
	call();
	for (size_t i = 0; i < b.out / 4; i++)
		if (!(b.dst[i] == op.want(b, i))) {
			fprintf(stderr, "gloo: %s of %zu elements a rank: element %zu of rank %d is %g, not %g\n", op.name, b.n, i, rank_, b.dst[i],
				op.want(b, i));
			_exit(7);
		}
	fill(b.src, b.in);
	fill(b.dst, high);
}

static double measure(const Context &c, const buffers &b, const Call &call, int timed, double *us, double clock) {
	gloo::BarrierOptions line_up(c);
	for (int i = -(timed / 10 + 1); i < timed; i++) {
		change_lines((char *)b.src, b.in);
		look_at_lines((const char *)b.dst, b.out);
		if (b.source) memcpy(b.dst, b.source, b.in);
		gloo::barrier(line_up);
		settle();
		double start = now_us();
		call();
		double t = now_us() - start - clock;
		if (i >= 0) us[i] = t > 0 ? t : 0;
	}
	std::vector<double> slower(timed);
	gloo::AllreduceOptions o(c);
	o.setInput(us, timed);
	o.setOutput(slower.data(), timed);
	o.setReduceFunction(larger);
	gloo::allreduce(o);
	return median(slower.data(), timed);
}

static const char *variable(const char *name, const char *otherwise) {
	const char *s = getenv(name);
	if (!s && !otherwise) {
		fprintf(stderr, "gloo: %s is not set\n", name);
		exit(6);
	}
	return s ? s : otherwise;
}

static int measure_all(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "--version") == 0) {
		printf("gloo %d.%d.%d\n", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
		return 0;
	}
	rank_ = atoi(variable("UBCOLL_RANK", nullptr));
	ranks = atoi(variable("UBCOLL_SIZE", nullptr));
	const operation *op = nullptr;
	for (const auto &o : operations)
		if (argc > 1 && strcmp(argv[1], o.name) == 0) op = &o;
	size_t low = argc > 2 ? strtoul(argv[2], nullptr, 10) : 0, high = argc > 3 ? strtoul(argv[3], nullptr, 10) : 0;
	size_t factor = argc > 4 ? strtoul(argv[4], nullptr, 10) : 0;
	int want = argc > 5 ? atoi(argv[5]) : 0;
	if (!op || low == 0 || high < low || factor < 2) {
		if (rank_ == 0) fprintf(stderr, "usage: gloo OP MINBYTES MAXBYTES FACTOR [CALLS]\n");
		return 6;
	}
	gloo::transport::tcp::attr at;
	at.iface = variable("GLOO_IFACE", "eth0");
	auto device = gloo::transport::tcp::CreateDevice(at);
	gloo::rendezvous::FileStore store(variable("GLOO_STORE", nullptr));
	auto c = std::make_shared<gloo::rendezvous::Context>(rank_, ranks);
	c->connectFullMesh(store, device);

	buffers b = {(float *)memory(high), (float *)memory(high), 0, 0, 0, nullptr};
	double clock = clock_cost();
	std::vector<double> us(std::max(want, 2000));
	for (size_t bytes = low; bytes <= high; bytes *= factor) {
		b.n = bytes / sizeof(float) / (op->parts ? ranks : 1);
		size_t part = b.n * sizeof(float);
		b.in = parts(rank_ == 0 ? op->root_in : op->all_in, part);
		b.out = parts(rank_ == 0 ? op->root_out : op->all_out, part);
		b.source = op->in_place ? b.src : nullptr;
		Call call = op->make(c, b);
		check(*op, b, call, high);
		double m = measure(c, b, call, calls(bytes, want), us.data(), clock);
		if (rank_ == 0) {
			printf("%zu %.3f\n", std::max(b.in, b.out), m);
			fflush(stdout);
		}
		gloo::BarrierOptions line_up(c);
		gloo::barrier(line_up); // nobody gives up buffers that others still use
	}
	return 0;
}

int main(int argc, char **argv) {
	try {
		return measure_all(argc, argv);
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: rank %d: %s\n", rank_, e.what());
		_exit(1);
	}
}
