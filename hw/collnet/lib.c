//go:build linux && cgo && (amd64 || arm64)

// A plugin is loaded once and never unloaded: its threads do not survive that.
#include "lib.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// What a plugin logs, from any of its threads, until Go takes it. More is lost, and counted.
static struct {
	pthread_mutex_t mu;
	unsigned first, n;
	uint64_t lost;
	struct {
		int level;
		char line[512];
	} ring[64];
} logs = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
	(void)flags;
	if (level != CN_LOG_VERSION && level != CN_LOG_WARN && level != CN_LOG_INFO) // the rest is for those who wrote it
		return;
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	const char *base = file ? strrchr(file, '/') : 0;
	pthread_mutex_lock(&logs.mu);
	if (logs.n == 64)
		logs.lost++;
	else {
		unsigned i = (logs.first + logs.n++) % 64;
		logs.ring[i].level = level;
		if (level == CN_LOG_WARN)
			snprintf(logs.ring[i].line, sizeof logs.ring[i].line, "%s:%d: %.400s", base ? base + 1 : file ? file : "?", line, text);
		else
			snprintf(logs.ring[i].line, sizeof logs.ring[i].line, "%s", text);
	}
	pthread_mutex_unlock(&logs.mu);
}

int cn_logged(char *line, size_t len, uint64_t *lost) {
	pthread_mutex_lock(&logs.mu);
	int level = 0;
	*lost = logs.lost;
	logs.lost = 0;
	if (logs.n > 0) {
		level = logs.ring[logs.first].level;
		snprintf(line, len, "%s", logs.ring[logs.first].line);
		logs.first = (logs.first + 1) % 64;
		logs.n--;
	}
	pthread_mutex_unlock(&logs.mu);
	return level;
}

int cn_load(const char *path, cn_plugin *p, char *found, char *why, size_t len, int *others, int *before) {
	snprintf(found, len, "%s", path);
	void *lib = dlopen(found, RTLD_NOW | RTLD_NOLOAD);
	*before = lib != 0;
	if (!lib) {
		dlerror();
		lib = dlopen(found, RTLD_NOW | RTLD_LOCAL);
	}
	if (!lib) {
		snprintf(why, len, "%s", dlerror());
		if (strchr(path, '/'))
			return 0;
		snprintf(found, len, "libnccl-net-%s.so", path);
		lib = dlopen(found, RTLD_NOW | RTLD_LOCAL);
	}
	if (!lib) {
		size_t n = strlen(why);
		snprintf(why + n, len - n, "; %s", dlerror());
		return 0;
	}
	if ((p->v11 = dlsym(lib, "ncclCollNetPlugin_v11")))
		p->version = 11;
	else if ((p->v10 = dlsym(lib, "ncclCollNetPlugin_v10")))
		p->version = 10;
	for (int v = 2; p->version == 0 && v < 32; v++) {
		char symbol[64];
		snprintf(symbol, sizeof symbol, "ncclCollNetPlugin_v%d", v);
		if (dlsym(lib, symbol))
			*others |= 1 << v;
	}
	return 1;
}

// CALL calls a function that both versions have.
#define CALL(f, ...) (p->v11 ? p->v11->f(__VA_ARGS__) : p->v10->f(__VA_ARGS__))
#define HAS(f) (p->v11 ? p->v11->f != 0 : p->v10->f != 0)

const char *cn_name(const cn_plugin *p) { return p->v11 ? p->v11->name : p->v10->name; }

int cn_missing(const cn_plugin *p, const char **what) {
#define NEEDS(f, name) \
	if (!HAS(f))         \
		return *what = name, 1;
	NEEDS(init, "init")
	NEEDS(devices, "devices")
	NEEDS(properties, "getProperties")
	NEEDS(listen, "listen")
	NEEDS(connect, "connect")
	NEEDS(reduce_support, "reduceSupport")
	NEEDS(reg, "regMr")
	NEEDS(dereg, "deregMr")
	NEEDS(all_reduce, "iallreduce")
	NEEDS(test, "test")
	NEEDS(close, "closeColl")
	NEEDS(close_listen, "closeListen")
	return 0;
}

int cn_init(cn_plugin *p, uint64_t id) { return p->v11 ? p->v11->init(&p->context, id, logger) : p->v10->init(logger); }

int cn_devices(const cn_plugin *p, int *n) { return CALL(devices, n); }

int cn_device_of(const cn_plugin *p, int device, cn_device *d) {
	struct {
		cn_props p;
		char room[1024]; // for plugins that think that there is more
	} props;
	memset(&props, 0, sizeof props);
	int r = CALL(properties, device, &props.p);
	if (r)
		return r;
	snprintf(d->name, sizeof d->name, "%s", props.p.name ? props.p.name : "");
	snprintf(d->pci, sizeof d->pci, "%s", props.p.pci ? props.p.pci : "");
	d->pointers = props.p.pointers;
	d->speed = props.p.speed;
	d->port = props.p.port;
	d->max_comms = props.p.max_comms;
	d->max_bytes = props.p.max_coll;
	return 0;
}

int cn_listen(const cn_plugin *p, int device, void *handle, void **listen) {
	return p->v11 ? p->v11->listen(p->context, device, handle, listen) : p->v10->listen(device, handle, listen);
}

int cn_connect(const cn_plugin *p, void *handles, int ranks, int rank, void *listen, void **comm) {
	void **each = malloc((size_t)ranks * sizeof *each);
	if (!each)
		return CN_SYSTEM;
	for (int r = 0; r < ranks; r++)
		each[r] = (char *)handles + r * CN_HANDLE_BYTES;
	int r = CALL(connect, each, ranks, rank, listen, comm);
	free(each);
	return r;
}

int cn_supports(const cn_plugin *p, int type, int op, int *supported) { return CALL(reduce_support, type, op, supported); }

int cn_reg(const cn_plugin *p, void *comm, uintptr_t data, size_t bytes, void **handle) {
	return CALL(reg, comm, (void *)data, bytes, CN_PTR_HOST, handle);
}

int cn_dereg(const cn_plugin *p, void *comm, void *handle) { return CALL(dereg, comm, handle); }

static int begin(const cn_plugin *p, void *comm, cn_call *c) {
	cn_part part = {c->send_handle, c->send, c->window_bytes};
	switch (c->kind) {
	case CN_CALL_ALL_REDUCE:
		return CALL(all_reduce, comm, c->send, c->receive, c->count, c->type, c->op, c->send_handle, c->receive_handle,
			&c->request);
	case CN_CALL_ALL_GATHER:
		part = (cn_part){c->receive_handle, c->receive, c->window_bytes};
		return CALL(all_gather, comm, c->send, 1, &part, c->bytes_per_rank, c->window, c->window_bytes, c->send_handle,
			&c->request);
	}
	return CALL(reduce_scatter, comm, 1, &part, c->receive, c->bytes_per_rank, c->window, c->window_bytes, c->type, c->op,
		c->receive_handle, &c->request);
}

int cn_run(const cn_plugin *p, void *comm, cn_call *calls, int n, int most, const volatile int *cancel, const char **step) {
	static const char *const names[] = {"iallreduce", "iallgather", "ireducescatter"};
	for (int begun = 0, ended = 0, idle = 0; ended < n;) {
		if (*cancel)
			return CN_CANCELLED;
		int moved = 0;
		if (begun < n && begun - ended < most) {
			cn_call *c = &calls[begun];
			*step = names[c->kind];
			c->request = 0;
			if ((c->error = begin(p, comm, c)))
				return CN_FAILED;
			moved = c->request != 0;
			begun += moved;
		}
		if (ended < begun) {
			cn_call *c = &calls[ended];
			int done = 0;
			c->got = -1;
			*step = "test";
			if ((c->error = CALL(test, c->request, &done, &c->got)))
				return CN_FAILED;
			if (done) {
				if (c->got >= 0 && (uint64_t)c->got != c->bytes)
					return CN_SHORT;
				ended++;
				moved = 1;
			}
		}
		idle = moved ? 0 : idle + 1;
		if (idle > 1000) // nothing moves for a while, and others need the processor
			nanosleep(&(struct timespec){.tv_nsec = 20000}, 0);
		else if (idle > 0)
			sched_yield();
	}
	return CN_RAN;
}

int cn_close(const cn_plugin *p, void *comm) { return CALL(close, comm); }

int cn_close_listen(const cn_plugin *p, void *listen) { return CALL(close_listen, listen); }

int cn_finalize(const cn_plugin *p) { return p->v11 && p->v11->finalize ? p->v11->finalize(p->context) : 0; }
