// A libfabric that does nothing but what real ones do wrong, or no longer: FAKE_VERSION is its version, FAKE_SLOW how many
// seconds fi_getinfo takes. It installs signal handlers as libinfinipath does, when it is loaded and at the first question, and
// fi_getinfo answers with a number that tells of its environment.
#include "../abi.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION UOF_VERSION(1, 17)
#endif
#ifndef FAKE_SLOW
#define FAKE_SLOW 0
#endif

static int quiet; // whether the libraries below were asked for no backtraces

static void handler(int s) { (void)s; _exit(99); }

static void install(int s) {
	struct sigaction a = {.sa_handler = handler};
	sigaction(s, &a, 0);
}

__attribute__((constructor)) static void start(void) {
	install(SIGTERM);
	install(SIGINT);
	quiet = getenv("IPATH_NO_BACKTRACE") && getenv("HFI_NO_BACKTRACE");
}

uint32_t fi_version(void) { return FAKE_VERSION; }
const char *fi_strerror(int e) { return e == 1 ? "cache off" : e == 2 ? "cache as it is" : e == 3 ? "cache as the user wants" : "loud"; }
int fi_fabric(void *attr, void *fabric, void *context) { return -38; }

uof_info *fi_dupinfo(const uof_info *i) {
	uof_info *d = calloc(1, sizeof *d);
	d->ep_attr = calloc(1, sizeof *d->ep_attr);
	d->domain_attr = calloc(1, sizeof *d->domain_attr);
	d->fabric_attr = calloc(1, sizeof *d->fabric_attr);
	return d;
}

void fi_freeinfo(uof_info *i) {
	free(i->fabric_attr->prov_name);
	free(i->fabric_attr);
	free(i->domain_attr->name);
	free(i->domain_attr);
	free(i->ep_attr);
	free(i);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const uof_info *hints, uof_info **all) {
	const char *max = getenv("FI_MR_CACHE_MAX_COUNT");
	install(SIGHUP);
	if (FAKE_SLOW)
		sleep(FAKE_SLOW);
	if (!quiet || getenv("IPATH_NO_BACKTRACE"))
		return -4;
	return !max ? -2 : strcmp(max, "0") == 0 ? -1 : -3;
}
