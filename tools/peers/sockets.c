// sockets measures half the time that 8 bytes take there and back over TCP between two processes that poll and never
// sleep: the least that a message between hosts costs. One process listens, the other one measures:
//
//	sockets PORT
//	sockets PORT ADDRESS [CALLS]
#pragma GCC diagnostic ignored "-Wunused-function" // only the clock of the protocol is used
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

int main(int argc, char **argv) {
	if (argc < 2) {
		fprintf(stderr, "usage: sockets PORT [ADDRESS [CALLS]]\n");
		return 6;
	}
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	check(s < 0, "socket");
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (argc == 2) {
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
	char b[8] = {0};
	if (argc == 2) {
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
