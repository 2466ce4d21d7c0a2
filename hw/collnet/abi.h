// The interface of NCCL's CollNet plugins, versions 10 and 11, as plugins export it (ncclCollNetPlugin_v10 and _v11):
// https://github.com/NVIDIA/nccl, src/include/plugin/net. Names are ours, layouts are NCCL's.
#ifndef UBCOLL_COLLNET_ABI_H
#define UBCOLL_COLLNET_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { // ncclResult_t
	CN_OK = 0,
	CN_SYSTEM = 2,
	CN_INTERNAL = 3,
	CN_ARGUMENT = 4,
	CN_USAGE = 5,
	CN_REMOTE = 6,
};

enum { // ncclDataType_t
	CN_INT8 = 0,
	CN_UINT8 = 1,
	CN_INT32 = 2,
	CN_UINT32 = 3,
	CN_INT64 = 4,
	CN_UINT64 = 5,
	CN_FLOAT16 = 6,
	CN_FLOAT32 = 7,
	CN_FLOAT64 = 8,
	CN_BFLOAT16 = 9,
};

enum { // ncclRedOp_t
	CN_SUM = 0,
	CN_PROD = 1,
	CN_MAX = 2,
	CN_MIN = 3,
};

enum { CN_PTR_HOST = 1, CN_PTR_CUDA = 2, CN_PTR_DMABUF = 4 };
enum { CN_HANDLE_BYTES = 128, CN_REQUESTS = 32, CN_DEVICES_PER_NIC = 4 };
enum { CN_LOG_VERSION = 1, CN_LOG_WARN = 2, CN_LOG_INFO = 3 };

typedef void (*cn_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
	int ndevs;
	int devs[CN_DEVICES_PER_NIC];
} cn_vprops;

typedef struct {
	char *name, *pci;
	uint64_t guid;
	int pointers; // CN_PTR_
	int global;   // registrations are not a group's
	int force_flush;
	int speed; // Mbit/s
	int port;
	float latency;
	int max_comms;
	int max_recvs;
	int device_type, device_version;
	cn_vprops v;
	size_t max_p2p, max_coll; // bytes of a call
	int max_multi;            // from version 11 on
} cn_props;

#define CN_PROPS_V10 offsetof(cn_props, max_multi)

typedef struct {
	void *handle, *address;
	size_t size;
} cn_part;

#define CN_CALLS                                                                                                           \
	int (*connect)(void *handles[], int ranks, int rank, void *listen, void **comm);                                         \
	int (*reduce_support)(int type, int op, int *supported);                                                                 \
	int (*reg)(void *comm, void *data, size_t bytes, int pointer, void **handle);                                            \
	int (*reg_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd, void **handle);            \
	int (*dereg)(void *comm, void *handle);                                                                                  \
	int (*all_reduce)(void *comm, void *send, void *receive, size_t count, int type, int op, void *send_handle,              \
		void *receive_handle, void **request);                                                                                 \
	int (*all_gather)(void *comm, void *send, int parts, cn_part *receive, size_t bytes_per_rank, size_t window,             \
		size_t window_bytes, void *send_handle, void **request);                                                               \
	int (*reduce_scatter)(void *comm, int parts, cn_part *send, void *receive, size_t bytes_per_rank, size_t window,         \
		size_t window_bytes, int type, int op, void *receive_handle, void **request);                                          \
	int (*flush)(void *comm, void *data, int bytes, void *handle, void **request);                                           \
	int (*test)(void *request, int *done, int *bytes);                                                                       \
	int (*close)(void *comm);                                                                                                \
	int (*close_listen)(void *listen);                                                                                       \
	int (*make_vdevice)(int *device, cn_vprops *v);

typedef struct {
	const char *name;
	int (*init)(cn_log log);
	int (*devices)(int *n);
	int (*properties)(int device, cn_props *p); // of version 10: CN_PROPS_V10 bytes
	int (*listen)(int device, void *handle, void **listen);
	CN_CALLS
} cn_v10;

typedef struct {
	const char *name;
	int (*init)(void **context, uint64_t id, cn_log log);
	int (*devices)(int *n);
	int (*properties)(int device, cn_props *p);
	int (*listen)(void *context, int device, void *handle, void **listen);
	CN_CALLS
	int (*finalize)(void *context);
} cn_v11;

#endif
