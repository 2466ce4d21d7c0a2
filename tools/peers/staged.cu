// staged measures what a plain program does to sum two ranks' device memory across a network: it copies the buffer to
// page-locked host memory, exchanges it over a TCP connection, copies what has come to the device, and adds it there by a
// kernel. Nothing overlaps but sending and receiving. One process listens, the other one connects:
//
//	nvcc -O2 -o staged tools/peers/staged.cu
//	staged PORT - CALLS BYTES ...
//	staged PORT ADDRESS CALLS BYTES ...
//
// The side with the address prints lines "bytes microseconds": the median of calls, each begun when both sides have lined
// up by a byte there and back. Before a call the buffer is set anew on the device. Results are checked.
#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void check(int bad, const char *what) {
	if (!bad) return;
	perror(what);
	exit(1);
}

static void cuda(cudaError_t e, const char *what) {
	if (e == cudaSuccess) return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

static double now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// exchange sends n bytes and receives as many. It polls.
static void exchange(int s, const char *out, char *in, size_t n) {
	const size_t most = 512 << 10;
	for (size_t sent = 0, come = 0; sent < n || come < n;) {
		if (sent < n) {
			ssize_t k = send(s, out + sent, n - sent < most ? n - sent : most, MSG_NOSIGNAL | MSG_DONTWAIT);
			check(k < 0 && errno != EAGAIN, "send");
			if (k > 0) sent += k;
		}
		if (come < n) {
			ssize_t k = recv(s, in + come, n - come < most ? n - come : most, MSG_DONTWAIT);
			check(k == 0, "the other side has ended");
			check(k < 0 && errno != EAGAIN, "recv");
			if (k > 0) come += k;
		}
	}
}

static int join(const char *port, const char *address) {
	struct sockaddr_in a = {};
	a.sin_family = AF_INET, a.sin_port = htons(atoi(port)), a.sin_addr.s_addr = htonl(INADDR_ANY);
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	check(s < 0, "socket");
	if (!address) {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		check(bind(s, (struct sockaddr *)&a, sizeof a) < 0, "bind");
		check(listen(s, 1) < 0, "listen");
		s = accept(s, NULL, NULL);
		check(s < 0, "accept");
	} else {
		check(inet_pton(AF_INET, address, &a.sin_addr) != 1, "address");
		for (int i = 0; connect(s, (struct sockaddr *)&a, sizeof a) < 0; i++) {
			check(i == 500, "connect");
			close(s);
			s = socket(AF_INET, SOCK_STREAM, 0);
			usleep(20000);
		}
	}
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return s;
}

__global__ void add(float *a, const float *b, size_t n) {
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x) a[i] += b[i];
}

__global__ void set(float *a, float x, size_t n) {
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x) a[i] = x + i % 1000;
}

int main(int argc, char **argv) {
	if (argc < 5) {
		fprintf(stderr, "usage: staged PORT -|ADDRESS CALLS BYTES ...\n");
		return 6;
	}
	int measures = strcmp(argv[2], "-") != 0, s = join(argv[1], measures ? argv[2] : NULL), calls = atoi(argv[3]);
	double *times = (double *)malloc(calls * sizeof *times);
	cudaStream_t st;
	cuda(cudaStreamCreate(&st), "stream");
	for (int k = 4; k < argc; k++) {
		size_t bytes = strtoull(argv[k], NULL, 0), n = bytes / 4;
		float *mine, *theirs;
		char *out, *in, byte = 0;
		cuda(cudaMalloc(&mine, bytes), "memory"), cuda(cudaMalloc(&theirs, bytes), "memory");
		cuda(cudaMallocHost(&out, bytes), "host memory"), cuda(cudaMallocHost(&in, bytes), "host memory");
		for (int i = -2; i < calls; i++) {
			set<<<256, 256, 0, st>>>(mine, i, n);
			cuda(cudaStreamSynchronize(st), "set");
			exchange(s, &byte, &byte, 1);
			double start = now_us();
			cuda(cudaMemcpyAsync(out, mine, bytes, cudaMemcpyDeviceToHost, st), "copy");
			cuda(cudaStreamSynchronize(st), "copy");
			exchange(s, out, in, bytes);
			cuda(cudaMemcpyAsync(theirs, in, bytes, cudaMemcpyHostToDevice, st), "copy");
			add<<<256, 256, 0, st>>>(mine, theirs, n);
			cuda(cudaStreamSynchronize(st), "add");
			if (i >= 0) times[i] = now_us() - start;
			cuda(cudaMemcpy(out, mine, bytes, cudaMemcpyDeviceToHost), "copy");
			for (size_t j = 0; j < n; j += 997)
				if (((float *)out)[j] != 2 * (i + (float)(j % 1000))) {
					fprintf(stderr, "element %zu is %g\n", j, ((float *)out)[j]);
					return 1;
				}
		}
		qsort(times, calls, sizeof *times, by_value);
		if (measures) printf("%zu %.1f\n", bytes, times[calls / 2]);
		cudaFree(mine), cudaFree(theirs), cudaFreeHost(out), cudaFreeHost(in);
	}
	return 0;
}
