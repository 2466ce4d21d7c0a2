// The functions that Go calls.
#ifndef UBCOLL_COLLNET_LIB_H
#define UBCOLL_COLLNET_LIB_H

#include "abi.h"

// A plugin of one of the versions.
typedef struct {
	int version;
	const cn_v10 *v10;
	const cn_v11 *v11;
	void *context; // of version 11
} cn_plugin;

// What a plugin has, of its device.
typedef struct {
	char name[128], pci[128];
	int pointers, speed, port, max_comms;
	uint64_t max_bytes;
} cn_device;

// One call of a group. The structure outlives the call, also one that does not return.
typedef struct {
	int kind; // CN_CALL_
	int type, op;
	void *send, *receive;
	void *send_handle, *receive_handle;
	uint64_t count;                            // elements, of an all-reduce
	uint64_t bytes_per_rank, window, window_bytes; // of the others
	uint64_t bytes;                            // that are received
	void *request;
	int error, got;
} cn_call;

enum { CN_CALL_ALL_REDUCE, CN_CALL_ALL_GATHER, CN_CALL_REDUCE_SCATTER };

// How a run of calls ended.
enum { CN_RAN = 0, CN_FAILED, CN_CANCELLED, CN_SHORT };

// path is tried first, then libnccl-net-PATH.so. others has the versions that the plugin exports besides, if it has none of ours.
// before: the process had it already.
int cn_load(const char *path, cn_plugin *p, char *found, char *why, size_t len, int *others, int *before);
const char *cn_name(const cn_plugin *p);
int cn_missing(const cn_plugin *p, const char **what);
int cn_init(cn_plugin *p, uint64_t id);
int cn_devices(const cn_plugin *p, int *n);
int cn_device_of(const cn_plugin *p, int device, cn_device *d);
int cn_listen(const cn_plugin *p, int device, void *handle, void **listen);
int cn_connect(const cn_plugin *p, void *handles, int ranks, int rank, void *listen, void **comm);
int cn_supports(const cn_plugin *p, int type, int op, int *supported);
int cn_reg(const cn_plugin *p, void *comm, uintptr_t data, size_t bytes, void **handle);
int cn_dereg(const cn_plugin *p, void *comm, void *handle);
// run makes n calls, up to `most` of them under way, and waits for them until *cancel.
int cn_run(const cn_plugin *p, void *comm, cn_call *calls, int n, int most, const volatile int *cancel, const char **step);
int cn_close(const cn_plugin *p, void *comm);
int cn_close_listen(const cn_plugin *p, void *listen);
int cn_finalize(const cn_plugin *p);

// logged takes the next line that the plugin has logged: it returns its level, or 0.
int cn_logged(char *line, size_t len, uint64_t *lost);

#endif
