// sockets measures half the time that 8 bytes take there and back over TCP between two processes that poll and never
// sleep: the least that a message between hosts costs. One process listens, the other one measures:
//
//	sockets PORT
//	sockets PORT ADDRESS [CALLS]
//
// With sizes it measures how long both take to send each other so many bytes at the same time, by the protocol of protocol.h:
// the least that an exchange of a collective costs. Without an address it listens; 0 calls are those of the protocol.
//
//	sockets PORT - CALLS BYTES ...
//	sockets PORT ADDRESS CALLS BYTES ...
//
// With "stream" before the calls it measures a message of 64 that the side with the address sends one after another; 8 bytes come
// back when all have arrived. That is the least that a stream of puts costs.
#include "protocol.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int bad, const char *what) {
	if (!bad) return;
	perror(what);
	exit(1);
}

static void put(int s, char *b) {
	for (ssize_t k = 0; k < 8;) {
		ssize_t n = send(s, b + k, 8 - k, MSG_NOSIGNAL);
		check(n < 0 && errno != EAGAIN, "send");
		if (n > 0) k += n;
	}
}

static int get(int s, char *b) {
	for (ssize_t k = 0; k < 8;) {
		ssize_t n = recv(s, b + k, 8 - k, 0);
		if (n == 0) return 0;
		check(n < 0 && errno != EAGAIN, "recv");
		if (n > 0) k += n;
	}
	return 1;
}

// exchange sends n bytes and receives as many.
static void exchange(int s, const char *out, char *in, size_t n) {
	enum { MOST = 512 << 10 };
	for (size_t sent = 0, come = 0; sent < n || come < n;) {
		if (sent < n) {
			ssize_t k = send(s, out + sent, n - sent < MOST ? n - sent : MOST, MSG_NOSIGNAL);
			check(k < 0 && errno != EAGAIN, "send");
			if (k > 0) sent += k;
		}
		if (come < n) {
			ssize_t k = recv(s, in + come, n - come < MOST ? n - come : MOST, 0);
			check(k == 0, "the other side has ended");
			check(k < 0 && errno != EAGAIN, "recv");
			if (k > 0) come += k;
		}
	}
}

// exchanges measures exchanges of n bytes. Who listens tells the other side how long its own took.
static void exchanges(int s, int listens, size_t n, int want) {
	int timed = calls(n, want);
	double clock = clock_cost(), *us = malloc(timed * sizeof *us), theirs;
	char *out = memory(n), *in = memory(n), b[8] = {0};
	for (int i = -timed / 10 - 1; i < timed; i++) {
		change_lines(out, n);
		look_at_lines(in, n);
		if (listens) {
			get(s, b);
			put(s, b);
		} else {
			put(s, b);
			get(s, b);
		}
		double start = now_us();
		exchange(s, out, in, n);
		double took = now_us() - start - clock;
		if (listens) {
			put(s, (char *)&took);
		} else {
			get(s, (char *)&theirs);
			if (i >= 0) us[i] = theirs > took ? theirs : took;
		}
	}
	if (!listens) printf("%zu %.3f\n", n, median(us, timed));
	fflush(stdout);
	free(us);
	munmap(out, n);
	munmap(in, n);
}

enum { WINDOW = 64 };

// streams measures windows of n bytes each. Only who sends has a time that counts.
static void streams(int s, int listens, size_t n, int want) {
	enum { MOST = 512 << 10 };
	int timed = calls(n * WINDOW, want);
	double clock = clock_cost(), *us = malloc(timed * sizeof *us);
	char *p = memory(n), b[8] = {0};
	for (int i = -timed / 10 - 1; i < timed; i++) {
		if (listens) {
			look_at_lines(p, n);
			get(s, b);
			put(s, b);
		} else {
			change_lines(p, n);
			put(s, b);
			get(s, b);
		}
		double start = now_us();
		for (size_t at = 0; at < n * WINDOW;) {
			size_t left = n - at % n;
			ssize_t k = listens ? recv(s, p + at % n, left < MOST ? left : MOST, 0)
			                    : send(s, p + at % n, left < MOST ? left : MOST, MSG_NOSIGNAL);
			check(listens && k == 0, "the other side has ended");
			check(k < 0 && errno != EAGAIN, listens ? "recv" : "send");
			if (k > 0) at += k;
		}
		if (listens) {
			put(s, b);
		} else {
			get(s, b);
			if (i >= 0) us[i] = (now_us() - start - clock) / WINDOW;
		}
	}
	if (!listens) printf("%zu %.3f\n", n, median(us, timed));
	fflush(stdout);
	free(us);
	munmap(p, n);
}

int main(int argc, char **argv) {
	if (argc < 2) {
		fprintf(stderr, "usage: sockets PORT [ADDRESS|- [[stream] CALLS [BYTES ...]]]\n");
		return 6;
	}
	int listens = argc == 2 || !strcmp(argv[2], "-");
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	check(s < 0, "socket");
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (listens) {
		check(bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1), "listen");
		check((s = accept(s, NULL, NULL)) < 0, "accept");
	} else {
		check(inet_pton(AF_INET, argv[2], &at.sin_addr) != 1, argv[2]);
		int tries = 0;
		while (connect(s, (struct sockaddr *)&at, sizeof at)) { // the other side may not listen yet
			check(++tries > 1000, "connect");
			usleep(10000);
			close(s);
			s = socket(AF_INET, SOCK_STREAM, 0);
		}
	}
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	fcntl(s, F_SETFL, O_NONBLOCK);
	if (argc > 4 && !strcmp(argv[3], "stream")) {
		for (int i = 5; i < argc; i++) streams(s, listens, atol(argv[i]), atoi(argv[4]));
		return 0;
	}
	if (argc > 4) {
		for (int i = 4; i < argc; i++) exchanges(s, listens, atol(argv[i]), atoi(argv[3]));
		return 0;
	}
	char b[8] = {0};
	if (listens) {
		while (get(s, b)) put(s, b);
		return 0;
	}
	int timed = argc > 3 ? atoi(argv[3]) : 20000;
	double clock = clock_cost(), *us = malloc(timed * sizeof *us);
	for (int i = -timed / 10; i < timed; i++) {
		double start = now_us();
		put(s, b);
		get(s, b);
		if (i >= 0) us[i] = (now_us() - start - clock) / 2;
	}
	printf("8 %.3f\n", median(us, timed));
	return 0;
}
