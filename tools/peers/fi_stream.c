// fi_stream writes to a peer's memory over libfabric as fast as fi_writedata goes: a plain program to compare with.
//
//	fi_stream PROVIDER PORT BYTES COUNT          the receiver
//	fi_stream PROVIDER PORT BYTES COUNT HOST     the writer, which prints the bandwidth
//
// 8 writes are under way. The receiver counts what comes by its completions, and says when all of it has.
//
//	cc -O2 -o fi_stream tools/peers/fi_stream.c -lfabric
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { UNDER = 8 };

static void must(int64_t r, const char *what) {
	if (r < 0) {
		fprintf(stderr, "fi_stream: %s: %s\n", what, fi_strerror((int)-r));
		exit(1);
	}
}

static int socket_to(const char *host, int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	if (!host) {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(s, (void *)&a, sizeof a) || listen(s, 1))
			perror("fi_stream: listen"), exit(1);
		return accept(s, 0, 0);
	}
	inet_pton(AF_INET, host, &a.sin_addr);
	for (int i = 0; connect(s, (void *)&a, sizeof a); i++) {
		if (i == 100)
			perror("fi_stream: connect"), exit(1);
		usleep(50000);
		close(s);
		s = socket(AF_INET, SOCK_STREAM, 0);
	}
	return s;
}

static void exchange(int s, const void *mine, void *theirs, size_t n) {
	if (write(s, mine, n) != (ssize_t)n || recv(s, theirs, n, MSG_WAITALL) != (ssize_t)n)
		perror("fi_stream: exchange"), exit(1);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

struct side {
	char name[128];
	uint64_t name_bytes, address, key;
};

int main(int argc, char **argv) {
	if (argc < 5) {
		fprintf(stderr, "usage: fi_stream PROVIDER PORT BYTES COUNT [HOST]\n");
		return 2;
	}
	size_t bytes = strtoul(argv[3], 0, 0);
	long count = strtol(argv[4], 0, 0);
	const char *host = argc > 5 ? argv[5] : 0;
	struct fi_info *hints = fi_allocinfo(), *info;
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	if (getenv("DOMAIN"))
		hints->domain_attr->name = strdup(getenv("DOMAIN"));
	hints->addr_format = FI_SOCKADDR_IN;
	must(fi_getinfo(FI_VERSION(1, 9), 0, 0, 0, hints, &info), "fi_getinfo");
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_mr *mr;
	must(fi_fabric(info->fabric_attr, &fabric, 0), "fi_fabric");
	must(fi_domain(fabric, info, &domain, 0), "fi_domain");
	struct fi_cq_attr cq_attr = {.size = 1024, .format = FI_CQ_FORMAT_DATA};
	must(fi_cq_open(domain, &cq_attr, &cq, 0), "fi_cq_open");
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	must(fi_av_open(domain, &av_attr, &av, 0), "fi_av_open");
	must(fi_endpoint(domain, info, &ep, 0), "fi_endpoint");
	must(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV), "fi_ep_bind");
	must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	char *memory = aligned_alloc(4096, UNDER * bytes);
	memset(memory, host ? 7 : 0, UNDER * bytes);
	must(fi_mr_reg(domain, memory, UNDER * bytes, FI_WRITE | FI_REMOTE_WRITE, 0, 1, 0, &mr, 0), "fi_mr_reg");

	struct side mine = {.key = fi_mr_key(mr)}, theirs;
	mine.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)memory : 0;
	mine.name_bytes = sizeof mine.name;
	must(fi_getname(&ep->fid, mine.name, &mine.name_bytes), "fi_getname");
	int s = socket_to(host, atoi(argv[2]));
	exchange(s, &mine, &theirs, sizeof mine);
	fi_addr_t peer;
	if (fi_av_insert(av, theirs.name, 1, &peer, 0, 0) != 1)
		must(-FI_EINVAL, "fi_av_insert");
	struct fi_context2 context[UNDER];
	for (int round = 0; round < 2; round++) { // the first one connects
		long n = round ? count : 2 * UNDER, posted = 0, done = 0, came = 0;
		double begin = now();
		while (host ? done < n : came < n) {
			while (host && posted < n && posted - done < UNDER) {
				char *from = memory + posted % UNDER * bytes;
				from[0]++;
				ssize_t r = fi_writedata(ep, from, bytes, fi_mr_desc(mr), posted, peer, theirs.address + posted % UNDER * bytes, theirs.key,
					&context[posted % UNDER]);
				if (r == -FI_EAGAIN)
					break;
				must(r, "fi_writedata");
				posted++;
			}
			struct fi_cq_data_entry e[16];
			ssize_t r = fi_cq_read(cq, e, 16);
			if (r == -FI_EAGAIN)
				continue;
			must(r, "fi_cq_read");
			for (ssize_t i = 0; i < r; i++)
				*(e[i].flags & FI_REMOTE_CQ_DATA ? &came : &done) += 1;
		}
		char ack = 1;
		if (!host) {
			if (write(s, &ack, 1) != 1)
				return 1;
		} else {
			while (recv(s, &ack, 1, MSG_DONTWAIT) != 1) // what was posted may need this side's progress still
				fi_cq_read(cq, 0, 0);
			if (round)
				printf("%zu %.1f MB/s %.1f us\n", bytes, bytes * n / (now() - begin) / 1e6, (now() - begin) / n * 1e6);
		}
	}
	return 0;
}
