// nccl measures NCCL by nccl-tests' method, as `ubcoll bench -device cuda` does: calls follow each other on a stream,
// or in a graph that is launched several times, at up to 20 places of the buffers in turn, and the mean of a call
// counts, on the slowest rank. A first launch of each graph is not timed: it takes the graph to the device. One process
// for each GPU, float32, out of place. It prints lines "mode bytes microseconds", and lines that begin with "#" for
// people.
//
//	mpirun -n 2 ./nccl unregistered,registered,symmetric all_reduce 16 1073741824 4 20 20
//
// Modes are memory of cudaMalloc (unregistered), memory of ncclMemAlloc with ncclCommRegister (registered) or in
// windows (symmetric), which versions before 2.27 leave out. Operations are all_reduce (sum) and sendrecv (to the next
// rank, from the one before). The numbers are the smallest and the largest size, the factor between, timed calls (5 come
// before), and launches of a graph of them, 0 for none; a quarter of the launches is made from 64 MiB on.
//
// NVLS stays off (NCCL_NVLS_ENABLE=0): the comparison is of what the link between the GPUs does.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOWS (NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0))

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

// buffers are in memory of one mode.
struct buffers {
	char *src, *dst;
	size_t bytes;
	void *handles[2];
};

static int is(const char *mode, const char *name) { return strcmp(mode, name) == 0; }

// fill puts floats from 0.5 to 1 everywhere: zeros might travel faster.
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

// make says whether this NCCL has the mode here.
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

static void call(const struct buffers *b, size_t bytes, int is_reduce, int i) {
	size_t places = b->bytes / bytes, at = bytes * (i % (places < SHIFTS ? places : SHIFTS)), n = bytes / sizeof(float);
	if (is_reduce) {
		NCCL(ncclAllReduce(b->src + at, b->dst + at, n, ncclFloat, ncclSum, comm, stream));
		return;
	}
	NCCL(ncclGroupStart());
	NCCL(ncclSend(b->src + at, n, ncclFloat, (rank + 1) % ranks, comm, stream));
	NCCL(ncclRecv(b->dst + at, n, ncclFloat, (rank + ranks - 1) % ranks, comm, stream));
	NCCL(ncclGroupEnd());
}

// finish waits as nccl-tests does.
static void finish(void) {
	cudaError_t e;
	while ((e = cudaStreamQuery(stream)) == cudaErrorNotReady) sched_yield();
	CUDA(e);
}

// check makes one call of each size's kind of numbers that everybody knows the result of.
static void check(const struct buffers *b, const char *mode, int is_reduce) {
	enum { N = 1000 };
	float x[N], want = is_reduce ? ranks * (ranks + 1) / 2 : (rank + ranks - 1) % ranks + 1;
	size_t n = b->bytes / sizeof *x < N ? b->bytes / sizeof *x : N;
	for (size_t i = 0; i < n; i++) x[i] = rank + 1;
	CUDA(cudaMemcpy(b->src, x, n * sizeof *x, cudaMemcpyHostToDevice));
	CUDA(cudaMemset(b->dst, 0x55, n * sizeof *x));
	call(b, n * sizeof *x, is_reduce, 0);
	finish();
	CUDA(cudaMemcpy(x, b->dst, n * sizeof *x, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < n; i++)
		if (x[i] != want) fail(mode, "wrong data");
}

static double measure(const struct buffers *b, size_t bytes, int is_reduce, int calls, int launches) {
	cudaGraphExec_t graph = NULL;
	for (int i = 0; i < WARMUP; i++) call(b, bytes, is_reduce, i);
	finish();
	if (launches > 0) {
		cudaGraph_t g;
		CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		for (int i = 0; i < calls; i++) call(b, bytes, is_reduce, i);
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
		for (int i = 0; i < calls; i++) call(b, bytes, is_reduce, i);
	finish();
	double us = (now_us() - start) / calls / (launches > 0 ? launches : 1), slowest = 0;
	MPI_Reduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (graph) CUDA(cudaGraphExecDestroy(graph));
	return slowest;
}

static void usage(void) {
	if (rank == 0) fprintf(stderr, "usage: nccl MODE[,MODE] OP MINBYTES MAXBYTES FACTOR CALLS LAUNCHES\n");
	MPI_Abort(MPI_COMM_WORLD, 6);
}

// open makes the communicator, on the GPU of the local rank.
static void open_comm(void) {
	const char *nvls = getenv("NCCL_NVLS_ENABLE");
	if (nvls && !is(nvls, "0")) fail("NCCL_NVLS_ENABLE", "must be 0 here");
	setenv("NCCL_NVLS_ENABLE", "0", 1);
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
	if (rank == 0) printf("# NCCL %d.%d.%d, NCCL_NVLS_ENABLE=0%s\n", version / 10000, version / 100 % 100, version % 100,
			nvls ? "" : " (set by this program)");
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 8) usage();
	int is_reduce = is(argv[2], "all_reduce"), calls = atoi(argv[6]), launches = atoi(argv[7]);
	size_t low = strtoul(argv[3], NULL, 10), high = strtoul(argv[4], NULL, 10), factor = strtoul(argv[5], NULL, 10);
	if (!is_reduce && !is(argv[2], "sendrecv")) usage();
	if (low < sizeof(float) || high < low || factor < 2 || calls < 1 || launches < 0) usage();
	open_comm();
	for (char *mode = strtok(argv[1], ","); mode; mode = strtok(NULL, ",")) {
		if (!is(mode, "unregistered") && !is(mode, "registered") && !is(mode, "symmetric")) usage();
		struct buffers b;
		if (!make(&b, mode, high)) {
			if (rank == 0) printf("# %s: NCCL does not have that here\n", mode);
			drop(&b, mode);
			continue;
		}
		check(&b, mode, is_reduce);
		for (size_t bytes = low; bytes <= high; bytes *= factor) {
			int times = bytes < 64 << 20 ? launches : launches / 4 > 2 ? launches / 4 : launches < 2 ? launches : 2;
			double us = measure(&b, bytes, is_reduce, calls, times);
			if (rank == 0) printf("%s %zu %.3f\n", mode, bytes, us);
		}
		fflush(stdout);
		drop(&b, mode);
	}
	NCCL(ncclCommDestroy(comm));
	return MPI_Finalize();
}
