// Own declarations of libfabric's binary interface, version FABRIC_1.3: of structures, what this package uses and what lies
// before it; of tables of functions, those that it calls. testdata/abi.c compares them with libfabric's headers. Later
// versions have added fields at the end of structures, so only the library itself may allocate a uof_info.
// Source: libfabric 1.9 to 2.6, include/rdma/*.h and libfabric.map.in.
#ifndef UOF_ABI_H
#define UOF_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define UOF_VERSION(major, minor) ((major) << 16 | (minor))

// Capabilities, and flags of operations and completions.
#define UOF_MSG (1ULL << 1)
#define UOF_RMA (1ULL << 2)
#define UOF_ATOMIC (1ULL << 4)
#define UOF_READ (1ULL << 8)
#define UOF_WRITE (1ULL << 9)
#define UOF_RECV (1ULL << 10)
#define UOF_SEND (1ULL << 11)
#define UOF_REMOTE_READ (1ULL << 12)
#define UOF_REMOTE_WRITE (1ULL << 13)
#define UOF_REMOTE_CQ_DATA (1ULL << 17)
#define UOF_COMPLETION (1ULL << 24)
#define UOF_INJECT (1ULL << 25)
#define UOF_DELIVERY_COMPLETE (1ULL << 28)
#define UOF_HMEM (1ULL << 47)
#define UOF_REMOTE_COMM (1ULL << 52)

// What a provider asks of its user: mode.
#define UOF_CONTEXT (1ULL << 59)
#define UOF_MSG_PREFIX (1ULL << 58)
#define UOF_ASYNC_IOV (1ULL << 57)
#define UOF_RX_CQ_DATA (1ULL << 56)
#define UOF_LOCAL_MR (1ULL << 55)
#define UOF_NOTIFY_FLAGS_ONLY (1ULL << 54)
#define UOF_RESTRICTED_COMP (1ULL << 53)
#define UOF_CONTEXT2 (1ULL << 52)
#define UOF_BUFFERED_RECV (1ULL << 51)

// What it asks of registrations: mr_mode. The two lowest bits are modes of before 1.5.
#define UOF_MR_LOCAL (1 << 2)
#define UOF_MR_RAW (1 << 3)
#define UOF_MR_VIRT_ADDR (1 << 4)
#define UOF_MR_ALLOCATED (1 << 5)
#define UOF_MR_PROV_KEY (1 << 6)
#define UOF_MR_MMU_NOTIFY (1 << 7)
#define UOF_MR_RMA_EVENT (1 << 8)
#define UOF_MR_ENDPOINT (1 << 9)
#define UOF_MR_HMEM (1 << 10)
#define UOF_MR_COLLECTIVE (1 << 11)

enum { UOF_EP_RDM = 3 };
enum { UOF_PROGRESS_MANUAL = 2 };
enum { UOF_THREAD_SAFE = 1 };
enum { UOF_AV_TABLE = 2 };
enum { UOF_WAIT_NONE = 0, UOF_WAIT_FD = 3 };
enum { UOF_CQ_FORMAT_DATA = 3 };
enum { UOF_SOCKADDR_IN = 2, UOF_SOCKADDR_IN6 = 3 };
enum { UOF_GETWAIT = 5, UOF_ENABLE = 6 };
enum { UOF_LINK_DOWN = 1 };
#define UOF_ORDER_SAW (1ULL << 7)
enum { UOF_UINT64 = 7 };
enum { UOF_SUM = 2, UOF_CSWAP = 12 };
enum { UOF_EAVAIL = 259 };

typedef uint64_t uof_addr;
#define UOF_ADDR_UNSPEC ((uof_addr)-1)

typedef struct uof_fid uof_fid;

typedef struct {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t inject_size, size, iov_limit, rma_iov_limit;
} uof_tx_attr;

typedef struct {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t total_buffered_recv, size, iov_limit;
} uof_rx_attr;

typedef struct {
	int type;
	uint32_t protocol, protocol_version;
	size_t max_msg_size, msg_prefix_size;
} uof_ep_attr;

typedef struct {
	void *domain;
	char *name;
	int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
	size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx,
		max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
	uint64_t caps, mode;
	uint8_t *auth_key;
	size_t auth_key_size, max_err_data, mr_cnt;
} uof_domain_attr;

typedef struct {
	void *fabric;
	char *name, *prov_name;
	uint32_t prov_version, api_version;
} uof_fabric_attr;

typedef struct {
	char *name, *device_id, *device_version, *vendor_id, *driver, *firmware;
} uof_device_attr;

typedef struct {
	char *address;
	size_t mtu, speed;
	int state;
	char *network_type;
} uof_link_attr;

typedef struct {
	size_t size;
	int (*close)(uof_fid *);
	int (*bind)(uof_fid *, uof_fid *, uint64_t);
	int (*control)(uof_fid *, int, void *);
} uof_ops;

struct uof_fid {
	size_t fclass;
	void *context;
	uof_ops *ops;
};

typedef struct {
	uof_fid fid;
	uof_device_attr *device_attr;
	void *bus_attr;
	uof_link_attr *link_attr;
} uof_nic;

typedef struct uof_info {
	struct uof_info *next;
	uint64_t caps, mode;
	uint32_t addr_format;
	size_t src_addrlen, dest_addrlen;
	void *src_addr, *dest_addr;
	uof_fid *handle;
	uof_tx_attr *tx_attr;
	uof_rx_attr *rx_attr;
	uof_ep_attr *ep_attr;
	uof_domain_attr *domain_attr;
	uof_fabric_attr *fabric_attr;
	uof_nic *nic;
} uof_info;

typedef struct uof_fabric uof_fabric;
typedef struct uof_domain uof_domain;
typedef struct uof_ep uof_ep;
typedef struct uof_cq uof_cq;
typedef struct uof_av uof_av;
typedef struct uof_mr uof_mr;

typedef struct {
	size_t size;
	int (*domain)(uof_fabric *, uof_info *, uof_domain **, void *);
	void *passive_ep, *eq_open, *wait_open;
	int (*trywait)(uof_fabric *, uof_fid **, int);
} uof_ops_fabric;

struct uof_fabric {
	uof_fid fid;
	uof_ops_fabric *ops;
};

typedef struct {
	int type, rx_ctx_bits;
	size_t count, ep_per_node;
	const char *name;
	void *map_addr;
	uint64_t flags;
} uof_av_attr;

typedef struct {
	size_t size;
	uint64_t flags;
	int format, wait_obj, signaling_vector, wait_cond;
	void *wait_set;
	uint64_t later[8]; // fields of later versions, 0
} uof_cq_attr;

typedef struct {
	size_t size;
	int (*av_open)(uof_domain *, uof_av_attr *, uof_av **, void *);
	int (*cq_open)(uof_domain *, uof_cq_attr *, uof_cq **, void *);
	int (*endpoint)(uof_domain *, uof_info *, uof_ep **, void *);
} uof_ops_domain;

typedef struct {
	const struct iovec *mr_iov;
	size_t iov_count;
	uint64_t access, offset, requested_key;
	void *context;
	size_t auth_key_size;
	uint8_t *auth_key;
	int iface;
	union {
		uint64_t reserved;
		int cuda;
	} device;
	uint64_t later[8]; // fields of later versions, 0
} uof_mr_attr;

typedef struct {
	size_t size;
	void *reg, *regv;
	int (*regattr)(uof_fid *, const uof_mr_attr *, uint64_t, uof_mr **);
} uof_ops_mr;

struct uof_domain {
	uof_fid fid;
	uof_ops_domain *ops;
	uof_ops_mr *mr;
};

struct uof_mr {
	uof_fid fid;
	void *mem_desc;
	uint64_t key;
};

typedef struct {
	size_t size;
	int (*insert)(uof_av *, const void *, size_t, uof_addr *, uint64_t, void *);
	void *insertsvc, *insertsym;
	int (*remove)(uof_av *, uof_addr *, size_t, uint64_t);
} uof_ops_av;

struct uof_av {
	uof_fid fid;
	uof_ops_av *ops;
};

typedef struct {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
} uof_cq_data_entry;

typedef struct {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data, tag;
	size_t olen;
	int err, prov_errno;
	void *err_data;
	size_t err_data_size;
	uint64_t later[8]; // fields of later versions
} uof_cq_err_entry;

typedef struct {
	size_t size;
	ssize_t (*read)(uof_cq *, void *, size_t);
	void *readfrom;
	ssize_t (*readerr)(uof_cq *, uof_cq_err_entry *, uint64_t);
	void *sread, *sreadfrom, *signal;
	const char *(*strerror)(uof_cq *, int, const void *, char *, size_t);
} uof_ops_cq;

struct uof_cq {
	uof_fid fid;
	uof_ops_cq *ops;
};

typedef struct {
	size_t size;
	ssize_t (*cancel)(uof_fid *, void *);
} uof_ops_ep;

typedef struct {
	size_t size;
	void *setname;
	int (*getname)(uof_fid *, void *, size_t *);
} uof_ops_cm;

typedef struct {
	const struct iovec *msg_iov;
	void **desc;
	size_t iov_count;
	uof_addr addr;
	void *context;
	uint64_t data;
} uof_msg;

typedef struct {
	size_t size;
	void *recv, *recvv;
	ssize_t (*recvmsg)(uof_ep *, const uof_msg *, uint64_t);
	void *send, *sendv;
	ssize_t (*sendmsg)(uof_ep *, const uof_msg *, uint64_t);
	ssize_t (*inject)(uof_ep *, const void *, size_t, uof_addr);
	void *senddata;
	ssize_t (*injectdata)(uof_ep *, const void *, size_t, uint64_t, uof_addr);
} uof_ops_msg;

typedef struct {
	uint64_t addr;
	size_t len;
	uint64_t key;
} uof_rma_iov; // for atomics too, where len counts elements

typedef struct {
	const struct iovec *msg_iov;
	void **desc;
	size_t iov_count;
	uof_addr addr;
	const uof_rma_iov *rma_iov;
	size_t rma_iov_count;
	void *context;
	uint64_t data;
} uof_msg_rma;

typedef struct {
	size_t size;
	void *read, *readv;
	ssize_t (*readmsg)(uof_ep *, const uof_msg_rma *, uint64_t);
	void *write, *writev;
	ssize_t (*writemsg)(uof_ep *, const uof_msg_rma *, uint64_t);
	ssize_t (*inject)(uof_ep *, const void *, size_t, uof_addr, uint64_t, uint64_t);
	void *writedata;
	ssize_t (*injectdata)(uof_ep *, const void *, size_t, uint64_t, uof_addr, uint64_t, uint64_t);
} uof_ops_rma;

typedef struct {
	void *addr;
	size_t count;
} uof_ioc;

typedef struct {
	const uof_ioc *msg_iov;
	void **desc;
	size_t iov_count;
	uof_addr addr;
	const uof_rma_iov *rma_iov;
	size_t rma_iov_count;
	int datatype, op;
	void *context;
	uint64_t data;
} uof_msg_atomic;

typedef struct {
	size_t size;
	void *write, *writev, *writemsg, *inject, *readwrite, *readwritev;
	ssize_t (*readwritemsg)(uof_ep *, const uof_msg_atomic *, uof_ioc *, void **, size_t, uint64_t);
	void *compwrite, *compwritev;
	ssize_t (*compwritemsg)(uof_ep *, const uof_msg_atomic *, const uof_ioc *, void **, size_t, uof_ioc *, void **, size_t, uint64_t);
	void *writevalid;
	int (*readwritevalid)(uof_ep *, int, int, size_t *);
	int (*compwritevalid)(uof_ep *, int, int, size_t *);
} uof_ops_atomic;

struct uof_ep {
	uof_fid fid;
	uof_ops_ep *ops;
	uof_ops_cm *cm;
	uof_ops_msg *msg;
	uof_ops_rma *rma;
	void *tagged;
	uof_ops_atomic *atomic;
};

#endif
