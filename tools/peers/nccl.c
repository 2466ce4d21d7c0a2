// nccl measures NCCL by the method of nccl-tests, as `ubcoll bench -device cuda` does. Calls follow each other on a
// stream, or in a graph that is launched several times, using up to 20 places of the buffers in turn. The result is the
// mean time of a call on the slowest rank. The first launch of each graph is not timed, since it moves the graph to the
// device. There is one process for each GPU; data is float32, reductions are sums, the root is rank 0. It prints lines
// "operation mode bytes microseconds", and lines for people that begin with "#".
//
//	mpirun -n 2 ./nccl 1073741824 20 20 symmetric:all_reduce:16,64 registered:all_gather:1048576
//
// The numbers are: bytes of each of the two buffers, the same for everything that is measured; timed calls (5 untimed
// ones come before); launches of a graph of these calls, 0 for none. From 64 MiB on only a quarter of the launches is
// made. The rest says what to measure: mode, operation and sizes. If the mode changes, new buffers are made.
//
// Modes: memory of cudaMalloc (unregistered), memory of ncclMemAlloc with ncclCommRegister (registered), or memory of
// ncclMemAlloc in windows (symmetric), which versions before 2.27 leave out. Calls are out of place; all_reduce, reduce
// and broadcast are in place if the mode ends with -in-place. Operations and sizes are those of nccl-tests: for
// all_gather, reduce_scatter, alltoall, scatter and gather, a size is of all ranks' parts together. Each part has
// bytes/4/ranks floats, rounded down as in `ubcoll bench` (nccl-tests rounds to 16 bytes: the same for powers of 2).
//
// NVLS is off unless NCCL_NVLS_ENABLE says otherwise. Without it the comparison is of what the link between the GPUs can
// do.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOWS (NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0))
#define MOVES (NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)) // NCCL has alltoall, gather and scatter

static int rank, ranks;
static ncclComm_t comm;
static cudaStream_t stream;

static void fail(const char *what, const char *why) {
	fprintf(stderr, "nccl: rank %d: %s: %s\n", rank, what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define CUDA(call) \
	do { \
		cudaError_t e = (call); \
		if (e != cudaSuccess) fail(#call, cudaGetErrorString(e)); \
	} while (0)
#define NCCL(call) \
	do { \
		ncclResult_t e = (call); \
		if (e != ncclSuccess) fail(#call, ncclGetErrorString(e)); \
	} while (0)

static double now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

enum { WARMUP = 5, SHIFTS = 20 };

// buffers are buffers in memory of one mode.
struct buffers {
	char *src, *dst;
	size_t bytes;
	void *handles[2];
};

static int is(const char *mode, const char *name) { return strcmp(mode, name) == 0; }

// fill writes floats from 0.5 to 1 everywhere: zeros might travel faster.
static void fill(char *p, size_t bytes) {
	size_t have = bytes < 1 << 20 ? bytes : 1 << 20;
	unsigned *x = malloc(1 << 20);
	for (unsigned i = 0; i < (1 << 20) / 4; i++) x[i] = 0x3f000000u | (i * 2654435769u) >> 9;
	CUDA(cudaMemcpy(p, x, have, cudaMemcpyHostToDevice));
	free(x);
	while (have < bytes) {
		size_t n = have < bytes - have ? have : bytes - have;
		CUDA(cudaMemcpy(p + have, p, n, cudaMemcpyDeviceToDevice));
		have += n;
	}
}

// make returns whether this NCCL has the mode.
static int make(struct buffers *b, const char *mode, size_t bytes) {
	int have = 1;
	char **at[2] = {&b->src, &b->dst};
	b->bytes = bytes;
	for (int i = 0; i < 2; i++) {
		b->handles[i] = NULL;
		if (is(mode, "unregistered")) {
			CUDA(cudaMalloc((void **)at[i], bytes));
		} else {
			NCCL(ncclMemAlloc((void **)at[i], bytes));
			if (is(mode, "registered")) NCCL(ncclCommRegister(comm, *at[i], bytes, &b->handles[i]));
#if WINDOWS
			if (is(mode, "symmetric"))
				NCCL(ncclCommWindowRegister(comm, *at[i], bytes, (ncclWindow_t *)&b->handles[i], NCCL_WIN_COLL_SYMMETRIC));
#endif
			have = b->handles[i] != NULL;
		}
		fill(*at[i], bytes);
	}
	return have;
}

static void drop(struct buffers *b, const char *mode) {
	char *at[2] = {b->src, b->dst};
	for (int i = 0; i < 2; i++) {
		if (is(mode, "unregistered")) {
			CUDA(cudaFree(at[i]));
			continue;
		}
		if (is(mode, "registered") && b->handles[i]) NCCL(ncclCommDeregister(comm, b->handles[i]));
#if WINDOWS
		if (is(mode, "symmetric") && b->handles[i]) NCCL(ncclCommWindowDeregister(comm, b->handles[i]));
#endif
		NCCL(ncclMemFree(at[i]));
	}
}

// Operations. n is the elements of one part if the size is of all ranks' parts, else of everything.
static void all_reduce(char *src, char *dst, size_t n) { NCCL(ncclAllReduce(src, dst, n, ncclFloat, ncclSum, comm, stream)); }
static void all_gather(char *src, char *dst, size_t n) { NCCL(ncclAllGather(src, dst, n, ncclFloat, comm, stream)); }
static void reduce_scatter(char *src, char *dst, size_t n) {
	NCCL(ncclReduceScatter(src, dst, n, ncclFloat, ncclSum, comm, stream));
}
static void broadcast(char *src, char *dst, size_t n) { NCCL(ncclBroadcast(src, dst, n, ncclFloat, 0, comm, stream)); }
static void reduce(char *src, char *dst, size_t n) { NCCL(ncclReduce(src, dst, n, ncclFloat, ncclSum, 0, comm, stream)); }

// exchange sends parts of src to the ranks from `to` on, and receives parts of dst from the ranks from `from` on.
static void exchange(char *src, int to, int sends, char *dst, int from, int recvs, size_t n) {
	NCCL(ncclGroupStart());
	for (int i = 0; i < sends; i++) NCCL(ncclSend(src + i * n * sizeof(float), n, ncclFloat, to + i, comm, stream));
	for (int i = 0; i < recvs; i++) NCCL(ncclRecv(dst + i * n * sizeof(float), n, ncclFloat, from + i, comm, stream));
	NCCL(ncclGroupEnd());
}
static void sendrecv(char *src, char *dst, size_t n) {
	exchange(src, (rank + 1) % ranks, 1, dst, (rank + ranks - 1) % ranks, 1, n);
}
#if MOVES
static void alltoall(char *src, char *dst, size_t n) { NCCL(ncclAlltoAll(src, dst, n, ncclFloat, comm, stream)); }
static void scatter(char *src, char *dst, size_t n) { NCCL(ncclScatter(src, dst, n, ncclFloat, 0, comm, stream)); }
static void gather(char *src, char *dst, size_t n) { NCCL(ncclGather(src, dst, n, ncclFloat, 0, comm, stream)); }
#else
static void alltoall(char *src, char *dst, size_t n) { exchange(src, 0, ranks, dst, 0, ranks, n); }
static void scatter(char *src, char *dst, size_t n) { exchange(src, 0, rank == 0 ? ranks : 0, dst, 0, 1, n); }
static void gather(char *src, char *dst, size_t n) { exchange(src, 0, 1, dst, 0, rank == 0 ? ranks : 0, n); }
#endif

// given is the value of the elements in a part of a rank's source, when results are checked.
static float given(int from, int part) { return from * ranks + part + 1; }

// The expected value of a part of a result.
static float from_root(int part) { return given(0, part); }
static float from_part(int part) { return given(part, 0); }
static float mine_from(int part) { return given(part, rank); }
static float from_previous(int part) { return given((rank + ranks - 1) % ranks, part); }
static float sum_of(int part) {
	float sum = 0;
	for (int r = 0; r < ranks; r++) sum += given(r, part);
	return sum;
}
static float sum_of_mine(int part) { return sum_of(rank + part); }

enum { ONE, ALL, ROOT, ROOT_ALL }; // how many parts a result has; with ROOT, only on rank 0

static const struct operation {
	const char *name;
	void (*call)(char *src, char *dst, size_t n);
	int parts; // whether the size is of all ranks' parts
	int in_place;
	int result;
	float (*want)(int part);
} operations[] = {
	{"all_reduce", all_reduce, 0, 1, ONE, sum_of},
	{"all_gather", all_gather, 1, 0, ALL, from_part},
	{"reduce_scatter", reduce_scatter, 1, 0, ONE, sum_of_mine},
	{"alltoall", alltoall, 1, 0, ALL, mine_from},
	{"broadcast", broadcast, 0, 1, ONE, from_root},
	{"reduce", reduce, 0, 1, ROOT, sum_of},
	{"scatter", scatter, 1, 0, ONE, mine_from},
	{"gather", gather, 1, 0, ROOT_ALL, from_part},
	{"sendrecv", sendrecv, 0, 0, ONE, from_previous},
};

// work is what is measured at one time.
struct work {
	const struct operation *op;
	const struct buffers *on;
	int in_place;
};

// elements returns how many elements a part has at this size.
static size_t elements(const struct operation *op, size_t bytes) { return bytes / sizeof(float) / (op->parts ? ranks : 1); }

// call makes the i-th call, with n elements in each part.
static void call(const struct work *w, size_t n, int i) {
	size_t bytes = n * sizeof(float) * (w->op->parts ? ranks : 1), places = w->on->bytes / bytes;
	size_t at = bytes * (i % (places < SHIFTS ? places : SHIFTS));
	w->op->call(w->on->src + at, (w->in_place ? w->on->src : w->on->dst) + at, n);
}

// finish waits like nccl-tests.
static void finish(void) {
	cudaError_t e;
	while ((e = cudaStreamQuery(stream)) == cudaErrorNotReady) sched_yield();
	CUDA(e);
}

// check makes one call whose result is known, and checks it.
static void check(const struct work *w, const char *mode) {
	enum { N = 1000 };
	float x[N];
	char *dst = w->in_place ? w->on->src : w->on->dst;
	int given_parts = w->op->parts ? ranks : 1, got = w->op->result == ALL || w->op->result == ROOT_ALL ? ranks : 1;
	size_t n = elements(w->op, w->on->bytes) < N ? elements(w->op, w->on->bytes) : N, bytes = n * sizeof *x;
	if (rank > 0 && (w->op->result == ROOT || w->op->result == ROOT_ALL)) got = 0;
	if (!w->in_place) CUDA(cudaMemset(dst, 0x55, given_parts * bytes));
	for (int p = 0; p < given_parts; p++) {
		for (size_t i = 0; i < n; i++) x[i] = given(rank, p);
		CUDA(cudaMemcpy(w->on->src + p * bytes, x, bytes, cudaMemcpyHostToDevice));
	}
	CUDA(cudaDeviceSynchronize());
	MPI_Barrier(MPI_COMM_WORLD);
	call(w, n, 0);
	finish();
	for (int p = 0; p < got; p++) {
		CUDA(cudaMemcpy(x, dst + p * bytes, bytes, cudaMemcpyDeviceToHost));
		for (size_t i = 0; i < n; i++)
			if (x[i] != w->op->want(p)) {
				char why[200];
				snprintf(why, sizeof why, "%s: element %zu of part %d is %g, not %g", w->op->name, i, p, x[i], w->op->want(p));
				fail(mode, why);
			}
	}
}

static double measure(const struct work *w, size_t n, int calls, int launches) {
	cudaGraphExec_t graph = NULL;
	for (int i = 0; i < WARMUP; i++) call(w, n, i);
	finish();
	if (launches > 0) {
		cudaGraph_t g;
		CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		for (int i = 0; i < calls; i++) call(w, n, i);
		CUDA(cudaStreamEndCapture(stream, &g));
		CUDA(cudaGraphInstantiateWithFlags(&graph, g, 0));
		CUDA(cudaGraphDestroy(g));
		CUDA(cudaGraphLaunch(graph, stream));
		finish();
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double start = now_us();
	if (graph)
		for (int i = 0; i < launches; i++) CUDA(cudaGraphLaunch(graph, stream));
	else
		for (int i = 0; i < calls; i++) call(w, n, i);
	finish();
	double us = (now_us() - start) / calls / (launches > 0 ? launches : 1), slowest = 0;
	MPI_Reduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (graph) CUDA(cudaGraphExecDestroy(graph));
	return slowest;
}

static void usage(const char *what) {
	if (rank == 0) fprintf(stderr, "nccl: %s\nusage: nccl MEMORY CALLS LAUNCHES MODE:OP:BYTES[,BYTES]...\n", what);
	MPI_Abort(MPI_COMM_WORLD, 6);
}

// open_comm makes the communicator, on the GPU of the local rank.
static void open_comm(void) {
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	MPI_Comm host;
	int local, devices, version;
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
	MPI_Comm_rank(host, &local);
	MPI_Comm_free(&host);
	CUDA(cudaGetDeviceCount(&devices));
	if (local >= devices) fail("devices", "fewer than ranks");
	CUDA(cudaSetDevice(local));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	ncclUniqueId id;
	if (rank == 0) NCCL(ncclGetUniqueId(&id));
	MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
	NCCL(ncclCommInitRank(&comm, ranks, id, rank));
	NCCL(ncclGetVersion(&version));
	if (rank == 0) printf("# NCCL %d.%d.%d, NCCL_NVLS_ENABLE=%s\n", version / 10000, version / 100 % 100, version % 100,
			getenv("NCCL_NVLS_ENABLE"));
}

// number parses text up to a comma or its end.
static size_t number(const char *text, size_t least) {
	char *end;
	size_t n = strtoull(text, &end, 10);
	if (end == text || (*end && *end != ',') || n < least) usage(text);
	return n;
}

// each measures the sizes of one argument in buffers of its mode.
static void each(const struct work *w, const char *mode, const char *sizes, int calls, int launches) {
	check(w, mode);
	for (const char *s = sizes; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		size_t bytes = number(s, sizeof(float)), n = elements(w->op, bytes);
		if (n < 1 || bytes > w->on->bytes) usage("a size that is more than the memory, or less than a number for each rank");
		double us = measure(w, n, calls, bytes < 64 << 20 ? launches : launches / 4 > 2 ? launches / 4 : launches < 2 ? launches : 2);
		if (rank == 0) printf("%s %s %zu %.3f\n", w->op->name, mode, n * sizeof(float) * (w->op->parts ? ranks : 1), us);
	}
	fflush(stdout);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 5) usage("too few arguments");
	size_t memory = number(argv[1], ranks * sizeof(float));
	int calls = number(argv[2], 1), launches = number(argv[3], 0);
	open_comm();
	static const char suffix[] = "-in-place";
	struct buffers b;
	char have[32] = ""; // the mode of b, or ""
	int had = 0;        // whether this NCCL has that mode
	for (int i = 4; i < argc; i++) {
		char *name = strchr(argv[i], ':'), *sizes = name ? strchr(name + 1, ':') : NULL, mode[32], full[sizeof mode];
		if (!sizes || name - argv[i] >= (int)sizeof mode) usage(argv[i]);
		*name++ = *sizes++ = 0;
		strcpy(full, argv[i]);
		strcpy(mode, full);
		struct work w = {NULL, &b, 0};
		if (strlen(mode) >= sizeof suffix && is(mode + strlen(mode) + 1 - sizeof suffix, suffix)) {
			w.in_place = 1;
			mode[strlen(mode) + 1 - sizeof suffix] = 0;
		}
		for (size_t k = 0; k < sizeof operations / sizeof *operations; k++)
			if (is(name, operations[k].name)) w.op = &operations[k];
		if (!w.op || (w.in_place && !w.op->in_place)) usage(name);
		if (!is(mode, "unregistered") && !is(mode, "registered") && !is(mode, "symmetric")) usage(full);
		if (!is(mode, have)) {
			if (*have) drop(&b, have);
			had = make(&b, mode, memory);
			strcpy(have, mode);
			if (!had && rank == 0) printf("# %s: NCCL does not have that here\n", mode);
		}
		if (had) each(&w, full, sizes, calls, launches);
	}
	drop(&b, have);
	NCCL(ncclCommDestroy(comm));
	return MPI_Finalize();
}
