// The part of libibverbs' interface that this package binds, declared here so that building needs no rdma-core. Names
// are those of infiniband/verbs.h, with ubv_ for ibv_. Where that header is installed, a test compares every size,
// offset and value with it. This is the interface of IBVERBS_1.1 and later, which rdma-core keeps stable for compiled
// programs.
//
// The functions that user space calls often (post, poll, notify) are reached through the context's table of functions,
// as the header's inline functions do. All others are exports of libibverbs.so.1.
#ifndef UBV_ABI_H
#define UBV_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { // enum ibv_rereg_mr_flags
	UBV_REREG_ACCESS = 1 << 2,
};

enum { // enum ibv_access_flags
	UBV_ACCESS_LOCAL_WRITE = 1,
	UBV_ACCESS_REMOTE_WRITE = 2,
	UBV_ACCESS_REMOTE_READ = 4,
	UBV_ACCESS_REMOTE_ATOMIC = 8,
	UBV_ACCESS_ON_DEMAND = 64,
	UBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};

enum { UBV_LINK_UNSPECIFIED, UBV_LINK_INFINIBAND, UBV_LINK_ETHERNET };
enum { UBV_PORT_DOWN = 1, UBV_PORT_INIT, UBV_PORT_ARMED, UBV_PORT_ACTIVE };
enum { UBV_GRH_REQUIRED = 1 }; // ubv_port_attr.flags
enum { UBV_GID_IB, UBV_GID_ROCE_V1, UBV_GID_ROCE_V2 };
enum { UBV_QPT_RC = 2 };
enum { UBV_QPS_RESET, UBV_QPS_INIT, UBV_QPS_RTR, UBV_QPS_RTS, UBV_QPS_SQD, UBV_QPS_SQE, UBV_QPS_ERR };
enum { UBV_ATOMIC_NONE, UBV_ATOMIC_HCA, UBV_ATOMIC_GLOB };

enum { // enum ibv_qp_attr_mask
	UBV_QP_STATE = 1 << 0,
	UBV_QP_ACCESS_FLAGS = 1 << 3,
	UBV_QP_PKEY_INDEX = 1 << 4,
	UBV_QP_PORT = 1 << 5,
	UBV_QP_AV = 1 << 7,
	UBV_QP_PATH_MTU = 1 << 8,
	UBV_QP_TIMEOUT = 1 << 9,
	UBV_QP_RETRY_CNT = 1 << 10,
	UBV_QP_RNR_RETRY = 1 << 11,
	UBV_QP_RQ_PSN = 1 << 12,
	UBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	UBV_QP_MIN_RNR_TIMER = 1 << 15,
	UBV_QP_SQ_PSN = 1 << 16,
	UBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	UBV_QP_DEST_QPN = 1 << 20,
};

enum { // enum ibv_wr_opcode
	UBV_WR_WRITE,
	UBV_WR_WRITE_WITH_IMM,
	UBV_WR_SEND,
	UBV_WR_SEND_WITH_IMM,
	UBV_WR_READ,
	UBV_WR_CMP_SWAP,
	UBV_WR_FETCH_ADD,
};

enum { UBV_SEND_FENCE = 1, UBV_SEND_SIGNALED = 2, UBV_SEND_SOLICITED = 4, UBV_SEND_INLINE = 8 };

enum { // enum ibv_wc_status; ibv_wc_status_str has the texts
	UBV_WC_SUCCESS,
	UBV_WC_LOC_LEN_ERR,
	UBV_WC_LOC_QP_OP_ERR,
	UBV_WC_LOC_EEC_OP_ERR,
	UBV_WC_LOC_PROT_ERR,
	UBV_WC_WR_FLUSH_ERR,
	UBV_WC_MW_BIND_ERR,
	UBV_WC_BAD_RESP_ERR,
	UBV_WC_LOC_ACCESS_ERR,
	UBV_WC_REM_INV_REQ_ERR,
	UBV_WC_REM_ACCESS_ERR,
	UBV_WC_REM_OP_ERR,
	UBV_WC_RETRY_EXC_ERR,
	UBV_WC_RNR_RETRY_EXC_ERR,
	UBV_WC_FATAL_ERR = 19,
	UBV_WC_RESP_TIMEOUT_ERR = 20,
	UBV_WC_GENERAL_ERR = 21,
};

enum { // enum ibv_wc_opcode
	UBV_WC_SEND,
	UBV_WC_WRITE,
	UBV_WC_READ,
	UBV_WC_CMP_SWAP,
	UBV_WC_FETCH_ADD,
	UBV_WC_RECV = 128,
	UBV_WC_RECV_WITH_IMM = 129,
};

enum { UBV_WC_WITH_IMM = 2 };

enum { // enum ibv_event_type
	UBV_EVENT_CQ_ERR,
	UBV_EVENT_QP_FATAL,
	UBV_EVENT_QP_REQ_ERR,
	UBV_EVENT_QP_ACCESS_ERR,
	UBV_EVENT_COMM_EST,
	UBV_EVENT_SQ_DRAINED,
	UBV_EVENT_PATH_MIG,
	UBV_EVENT_PATH_MIG_ERR,
	UBV_EVENT_DEVICE_FATAL,
	UBV_EVENT_PORT_ACTIVE,
	UBV_EVENT_PORT_ERR,
	UBV_EVENT_LID_CHANGE,
	UBV_EVENT_PKEY_CHANGE,
	UBV_EVENT_SM_CHANGE,
	UBV_EVENT_SRQ_ERR,
	UBV_EVENT_SRQ_LIMIT_REACHED,
	UBV_EVENT_QP_LAST_WQE_REACHED,
	UBV_EVENT_CLIENT_REREGISTER,
	UBV_EVENT_GID_CHANGE,
};

enum { UBV_ODP_SUPPORT = 1 };                                                       // ibv_odp_caps.general_caps
enum { UBV_ODP_SEND = 1, UBV_ODP_RECV = 2, UBV_ODP_WRITE = 4, UBV_ODP_READ = 8, UBV_ODP_ATOMIC = 16 }; // rc_odp_caps

enum { UBV_FORK_UNNEEDED = 2 };

typedef struct ubv_context ubv_context;
typedef struct ubv_cq ubv_cq;
typedef struct ubv_qp ubv_qp;
typedef struct ubv_srq ubv_srq;

typedef struct {
	void *ops[2];
	int node_type, transport_type;
	char name[64], dev_name[64], dev_path[256], ibdev_path[256];
} ubv_device;

typedef struct {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid; // in network byte order
	uint64_t max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
	int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach;
	int max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
} ubv_device_attr;

typedef struct { // the beginning of ibv_device_attr_ex; the library fills in as many bytes as the caller has
	ubv_device_attr orig;
	uint32_t comp_mask;
	struct {
		uint64_t general;
		uint32_t rc, uc, ud;
	} odp;
} ubv_device_attr_ex;

typedef struct {
	int state, max_mtu, active_mtu, gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
} ubv_port_attr;

typedef struct {
	uint8_t gid[16];
	uint32_t index, port, type, ifindex;
} ubv_gid_entry;

typedef struct {
	ubv_context *context;
	uint32_t handle;
} ubv_pd;

typedef struct {
	ubv_context *context;
	ubv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
} ubv_mr;

typedef struct {
	ubv_context *context;
	int fd, refcnt;
} ubv_comp_channel;

typedef struct {
	uint64_t addr;
	uint32_t length, lkey;
} ubv_sge;

typedef struct ubv_send_wr {
	uint64_t wr_id;
	struct ubv_send_wr *next;
	ubv_sge *sg_list;
	int num_sge, opcode;
	unsigned send_flags;
	uint32_t imm_data; // in network byte order
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr, compare_add, swap;
			uint32_t rkey;
		} atomic;
	} wr;
	uint64_t rest[7]; // for other kinds of queue pair, and for memory windows
} ubv_send_wr;

typedef struct ubv_recv_wr {
	uint64_t wr_id;
	struct ubv_recv_wr *next;
	ubv_sge *sg_list;
	int num_sge;
} ubv_recv_wr;

typedef struct {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len;
	uint32_t imm_data; // in network byte order
	uint32_t qp_num, src_qp;
	unsigned wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
} ubv_wc;

typedef struct {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
} ubv_qp_cap;

typedef struct {
	void *qp_context;
	ubv_cq *send_cq, *recv_cq;
	ubv_srq *srq;
	ubv_qp_cap cap;
	int qp_type, sq_sig_all;
} ubv_qp_init_attr;

typedef struct {
	_Alignas(8) uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} ubv_ah_attr;

typedef struct {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned qp_access_flags;
	ubv_qp_cap cap;
	ubv_ah_attr ah, alt_ah;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout;
	uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
} ubv_qp_attr;

typedef struct {
	uint32_t max_wr, max_sge, srq_limit;
} ubv_srq_attr;

typedef struct {
	void *srq_context;
	uint32_t max_wr, max_sge, srq_limit; // srq_limit takes effect in modify_srq only
} ubv_srq_init_attr;

enum { UBV_SRQ_LIMIT = 2 }; // enum ibv_srq_attr_mask

typedef struct {
	union {
		ubv_cq *cq;
		ubv_qp *qp;
		ubv_srq *srq;
		int port;
	} element;
	int type;
} ubv_async_event;

struct ubv_cq {
	ubv_context *context;
	ubv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed, async_events_completed;
};

struct ubv_srq {
	ubv_context *context;
	void *srq_context;
	ubv_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ubv_qp {
	ubv_context *context;
	void *qp_context;
	ubv_pd *pd;
	ubv_cq *send_cq, *recv_cq;
	ubv_srq *srq;
	uint32_t handle, qp_num;
	int state, qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ubv_context {
	ubv_device *device;
	struct { // struct ibv_context_ops; skipped are entries that are no longer used
		void *skip1[11];
		int (*poll_cq)(ubv_cq *, int, ubv_wc *);
		int (*req_notify_cq)(ubv_cq *, int);
		void *skip2[7];
		int (*post_srq_recv)(ubv_srq *, ubv_recv_wr *, ubv_recv_wr **);
		void *skip3[4];
		int (*post_send)(ubv_qp *, ubv_send_wr *, ubv_send_wr **);
		int (*post_recv)(ubv_qp *, ubv_recv_wr *, ubv_recv_wr **);
		void *skip4[5];
	} ops;
	int cmd_fd, async_fd, num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat; // (void *)UINTPTR_MAX if a ubv_extension precedes the context
};

// The end of struct verbs_context, as far as it is read, up to the context. New fields are added at its beginning; sz
// is its whole length.
typedef struct {
	int (*query_port)(ubv_context *, uint8_t, ubv_port_attr *, size_t);
	void *skip1[26];
	int (*query_device_ex)(ubv_context *, const void *, ubv_device_attr_ex *, size_t);
	void *skip2[10];
	uint64_t skip3;
	size_t sz;
	ubv_context context;
} ubv_extension;

// The exports that are called: result, name, parameters. UBV_OPTIONAL has those that came with later versions
// (reg_dmabuf_mr with 34, query_qp_data_in_order with 41, is_fork_initialized with 37) or that are used only where they
// help.
#define UBV_CALLS(F) \
	F(ubv_device **, get_device_list, (int *)) \
	F(void, free_device_list, (ubv_device **)) \
	F(ubv_context *, open_device, (ubv_device *)) \
	F(int, close_device, (ubv_context *)) \
	F(int, query_device, (ubv_context *, ubv_device_attr *)) \
	F(int, query_port, (ubv_context *, uint8_t, ubv_port_attr *)) \
	F(int, query_pkey, (ubv_context *, uint8_t, int, uint16_t *)) \
	F(ubv_pd *, alloc_pd, (ubv_context *)) \
	F(int, dealloc_pd, (ubv_pd *)) \
	F(ubv_mr *, reg_mr, (ubv_pd *, void *, size_t, int)) \
	F(ubv_mr *, reg_mr_iova2, (ubv_pd *, void *, size_t, uint64_t, unsigned)) \
	F(int, rereg_mr, (ubv_mr *, int, ubv_pd *, void *, size_t, int)) \
	F(int, dereg_mr, (ubv_mr *)) \
	F(ubv_comp_channel *, create_comp_channel, (ubv_context *)) \
	F(int, destroy_comp_channel, (ubv_comp_channel *)) \
	F(ubv_cq *, create_cq, (ubv_context *, int, void *, ubv_comp_channel *, int)) \
	F(int, destroy_cq, (ubv_cq *)) \
	F(int, get_cq_event, (ubv_comp_channel *, ubv_cq **, void **)) \
	F(void, ack_cq_events, (ubv_cq *, unsigned)) \
	F(ubv_srq *, create_srq, (ubv_pd *, ubv_srq_init_attr *)) \
	F(int, modify_srq, (ubv_srq *, ubv_srq_attr *, int)) \
	F(int, destroy_srq, (ubv_srq *)) \
	F(ubv_qp *, create_qp, (ubv_pd *, ubv_qp_init_attr *)) \
	F(int, modify_qp, (ubv_qp *, ubv_qp_attr *, int)) \
	F(int, query_qp, (ubv_qp *, ubv_qp_attr *, int, ubv_qp_init_attr *)) \
	F(int, destroy_qp, (ubv_qp *)) \
	F(int, get_async_event, (ubv_context *, ubv_async_event *)) \
	F(void, ack_async_event, (ubv_async_event *)) \
	F(const char *, wc_status_str, (int)) \
	F(const char *, event_type_str, (int)) \
	F(int, fork_init, (void))

#define UBV_OPTIONAL(F) \
	F(ubv_mr *, reg_dmabuf_mr, (ubv_pd *, uint64_t, size_t, uint64_t, int, int)) \
	F(int, query_qp_data_in_order, (ubv_qp *, int, uint32_t)) \
	F(int, is_fork_initialized, (void))

// _ibv_query_gid_table, whose name has an underscore, is loaded beside these. rdma-core 33 has it, and all of the
// above.

#endif
