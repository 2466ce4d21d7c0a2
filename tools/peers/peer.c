// peer measures one collective of an MPI, or messages, on float32 by the protocol of protocol.h. It prints a line "bytes
// microseconds" for each size. Sizes are those of `ubcoll bench`: bytes of the larger of a rank's two buffers.
//
//	mpicc -O2 -o peer peer.c && mpirun -n 2 ./peer all_reduce 4 67108864 4 [calls]
#include "protocol.h"
#include <mpi.h>
#include <unistd.h>

static int ranks, rank;

struct buffers {
	char *src, *dst;
	int n;          // elements in one rank's part
	size_t in, out; // bytes that this rank reads and writes
};

struct operation {
	const char *name;
	int parts;                              // whether the larger buffer has one part for each rank
	int root_in, root_out, all_in, all_out; // parts in the root's buffers and in the others'; -1: one for each rank
	int (*call)(const struct buffers *);
};

static int all_reduce(const struct buffers *b) {
	return MPI_Allreduce(b->src, b->dst, b->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int all_gather(const struct buffers *b) {
	return MPI_Allgather(b->src, b->n, MPI_FLOAT, b->dst, b->n, MPI_FLOAT, MPI_COMM_WORLD);
}
static int reduce_scatter(const struct buffers *b) {
	return MPI_Reduce_scatter_block(b->src, b->dst, b->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int broadcast(const struct buffers *b) {
	return MPI_Bcast(rank == 0 ? b->src : b->dst, b->n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int reduce(const struct buffers *b) {
	return MPI_Reduce(b->src, b->dst, b->n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static int gather(const struct buffers *b) {
	return MPI_Gather(b->src, b->n, MPI_FLOAT, b->dst, b->n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int scatter(const struct buffers *b) {
	return MPI_Scatter(b->src, b->n, MPI_FLOAT, b->dst, b->n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int all_to_all(const struct buffers *b) {
	return MPI_Alltoall(b->src, b->n, MPI_FLOAT, b->dst, b->n, MPI_FLOAT, MPI_COMM_WORLD);
}

// sent returns how many elements go from one rank to another, as in `ubcoll bench alltoallv`: half the average to one
// peer, one and a half times the average to the next.
static int sent(int from, int to, int n) {
	int k = (to - from + ranks) % ranks;
	if (ranks % 2 == 1 && k == ranks - 1) return n;
	return k % 2 == 0 ? n + n / 2 : n - n / 2;
}

static int *sends, *receives, *send_at, *receive_at;

static void count(int n) {
	for (int i = 0, s = 0, r = 0; i < ranks; i++) {
		sends[i] = sent(rank, i, n);
		receives[i] = sent(i, rank, n);
		send_at[i] = s;
		receive_at[i] = r;
		s += sends[i];
		r += receives[i];
	}
}

static int all_to_all_v(const struct buffers *b) {
	return MPI_Alltoallv(b->src, sends, send_at, MPI_FLOAT, b->dst, receives, receive_at, MPI_FLOAT, MPI_COMM_WORLD);
}

// The reported time is half of a ping-pong's.
static int ping_pong(const struct buffers *b) {
	int peer = rank ^ 1;
	if (peer >= ranks) return MPI_SUCCESS;
	if (rank < peer) MPI_Send(b->src, b->n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
	MPI_Recv(b->dst, b->n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank > peer) MPI_Send(b->src, b->n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
	return MPI_SUCCESS;
}
static int send_recv(const struct buffers *b) {
	return MPI_Sendrecv(b->src, b->n, MPI_FLOAT, (rank + 1) % ranks, 0, b->dst, b->n, MPI_FLOAT,
		(rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

enum { WINDOW = 64 };

// send_window is a call of osu_mbw_mr: rank i of the first half sends a window of messages to rank i of the second half,
// all from one buffer and into one, and 4 bytes come back when all have arrived. The reported time is one message's.
static int send_window(const struct buffers *b) {
	MPI_Request window[WINDOW];
	int half = ranks / 2, sends = rank < half, peer = (rank + half) % ranks, answer = 0;
	for (int i = 0; i < WINDOW; i++) {
		if (sends) MPI_Isend(b->src, b->n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &window[i]);
		else MPI_Irecv(b->dst, b->n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &window[i]);
	}
	MPI_Waitall(WINDOW, window, MPI_STATUSES_IGNORE);
	if (sends) return MPI_Recv(&answer, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return MPI_Send(&answer, 1, MPI_INT, peer, 1, MPI_COMM_WORLD);
}

// put_window is a call of osu_put_bw: rank i of the first half puts a window to one place of rank i of the second half, and
// flushes, which waits until all have arrived. The reported time is one put's.
static MPI_Win exposed;
static int put_window(const struct buffers *b) {
	int half = ranks / 2;
	if (rank >= half) return MPI_SUCCESS;
	for (int i = 0; i < WINDOW; i++) MPI_Put(b->src, b->n, MPI_FLOAT, rank + half, 0, b->n, MPI_FLOAT, exposed);
	return MPI_Win_flush(rank + half, exposed);
}

static int barrier(const struct buffers *b) {
	(void)b;
	return MPI_Barrier(MPI_COMM_WORLD);
}

static const struct operation operations[] = {
	{"all_reduce", 0, 1, 1, 1, 1, all_reduce},
	{"all_gather", 1, 1, -1, 1, -1, all_gather},
	{"reduce_scatter", 1, -1, 1, -1, 1, reduce_scatter},
	{"broadcast", 0, 1, 0, 0, 1, broadcast},
	{"reduce", 0, 1, 1, 1, 0, reduce},
	{"gather", 1, 1, -1, 1, 0, gather},
	{"scatter", 1, -1, 1, 0, 1, scatter},
	{"alltoall", 1, -1, -1, -1, -1, all_to_all},
	{"alltoallv", 1, -1, -1, -1, -1, all_to_all_v},
	{"pingpong", 0, 1, 1, 1, 1, ping_pong},
	{"sendrecv", 0, 1, 1, 1, 1, send_recv},
	{"mbw_mr", 0, 1, 0, 0, 1, send_window},
	{"put_bw", 0, 1, 0, 0, 1, put_window},
	{"barrier", 0, 0, 0, 0, 0, barrier},
};

static size_t parts(int n, size_t bytes) { return n < 0 ? bytes * ranks : bytes * n; }

static double measure(const struct operation *op, const struct buffers *b, int timed, double *us, double clock) {
	for (int i = -(timed / 10 + 1); i < timed; i++) {
		if (op->call == put_window) MPI_Barrier(MPI_COMM_WORLD); // the receiver does not know when a call ends
		change_lines(b->src, b->in);
		look_at_lines(b->dst, b->out);
		MPI_Barrier(MPI_COMM_WORLD);
		settle();
		double start = now_us();
		op->call(b);
		double t = now_us() - start - clock;
		if (i >= 0) us[i] = t > 0 ? t : 0;
	}
	double *slower = malloc(timed * sizeof *slower);
	MPI_Reduce(us, slower, timed, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	double m = rank == 0 ? median(slower, timed) : 0;
	free(slower);
	return m;
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const struct operation *op = NULL;
	for (size_t i = 0; argc > 1 && i < sizeof operations / sizeof *operations; i++)
		if (strcmp(argv[1], operations[i].name) == 0) op = &operations[i];
	int windows = op && (op->call == send_window || op->call == put_window); // roots are the first half
	size_t low = argc > 2 ? strtoul(argv[2], NULL, 10) : 0, high = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	size_t factor = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
	int want = argc > 5 ? atoi(argv[5]) : 0;
	if (!op || low == 0 || high < low || factor < 2 || (windows && ranks % 2 == 1)) {
		if (rank == 0) fprintf(stderr, "usage: peer OP MINBYTES MAXBYTES FACTOR [CALLS]; mbw_mr and put_bw on an even number of ranks\n");
		MPI_Abort(MPI_COMM_WORLD, 6);
	}
	sends = calloc(4 * ranks, sizeof *sends);
	receives = sends + ranks, send_at = receives + ranks, receive_at = send_at + ranks;
	struct buffers b = {memory(high), memory(high), 0, 0, 0};
	if (op->call == put_window) {
		MPI_Win_create(b.dst, high, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &exposed);
		MPI_Win_lock_all(0, exposed);
	}
	int root = windows ? rank < ranks / 2 : rank == 0;
	int messages = windows ? WINDOW : 1; // in a call
	double clock = clock_cost(), *us = malloc(sizeof *us * (want > 2000 ? want : 2000));
	for (size_t bytes = low; bytes <= high; bytes *= factor) {
		b.n = bytes / sizeof(float) / (op->parts ? ranks : 1);
		count(b.n);
		size_t part = b.n * sizeof(float);
		b.in = parts(root ? op->root_in : op->all_in, part);
		b.out = parts(root ? op->root_out : op->all_out, part);
		double m = measure(op, &b, calls(bytes * messages, want), us, clock) / (op->call == ping_pong ? 2 : messages);
		if (rank == 0) {
			printf("%zu %.3f\n", b.in > b.out ? b.in : b.out, m); // one of the root's buffers is the larger
			fflush(stdout);
		}
		if (strcmp(op->name, "barrier") == 0) break;
	}
	if (op->call == put_window) {
		MPI_Win_unlock_all(exposed);
		MPI_Win_free(&exposed);
	}
#ifdef MPICH_VERSION // 4.0 with UCX over TCP at times waits in MPI_Finalize for ranks that wait there as well
	MPI_Barrier(MPI_COMM_WORLD);
	usleep(100000); // the others' messages of the barrier arrive
	_exit(0);
#endif
	return MPI_Finalize();
}
