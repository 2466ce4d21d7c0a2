// The functions that Go calls. Each stands for one of libibverbs, except that posting and polling take arrays, so that
// a batch is one call from Go. Each returns 0 or an errno, whatever libibverbs' function returns.
#ifndef UBV_LIB_H
#define UBV_LIB_H

#include "abi.h"

// One work request with one segment, laid out as Go's Work.
typedef struct {
	uint64_t id;
	uint64_t local;
	uint32_t length, lkey;
	uint64_t remote;
	uint32_t rkey;
	uint32_t immediate; // in host order
	uint64_t add_or_compare, swap;
	uint8_t op, flags;
	uint8_t pad[6];
} ubv_work;

// A receive, laid out as Go's Receive.
typedef struct {
	uint64_t id;
	uint64_t local;
	uint32_t length, lkey;
} ubv_receive;

int ubv_load(const char *path, char *why, size_t len, const char **missing);
int ubv_has_dmabuf(void);
const char *ubv_status(int status);
const char *ubv_event_name(int type);
void ubv_fork_init(void);

int ubv_devices(ubv_device ***list, int *n);
void ubv_free_devices(ubv_device **list);
ubv_device *ubv_device_at(ubv_device **list, int i);
int ubv_open(ubv_device *device, ubv_context **context);
int ubv_close(ubv_context *context);
int ubv_describe(ubv_context *context, ubv_device_attr_ex *attr);
int ubv_port(ubv_context *context, int port, ubv_port_attr *attr);
int ubv_pkey(ubv_context *context, int port, int index, uint16_t *key);
int ubv_gids(ubv_context *context, ubv_gid_entry *entries, int max, int *n);

int ubv_alloc_pd(ubv_context *context, ubv_pd **pd);
int ubv_dealloc_pd(ubv_pd *pd);
int ubv_reg(ubv_pd *pd, uintptr_t address, size_t length, unsigned access, ubv_mr **mr);
int ubv_reg_dmabuf(ubv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned access, ubv_mr **mr);
int ubv_rereg(ubv_mr *mr, unsigned access);
int ubv_dereg(ubv_mr *mr);

int ubv_create_channel(ubv_context *context, ubv_comp_channel **channel);
int ubv_destroy_channel(ubv_comp_channel *channel);
int ubv_get_event(ubv_comp_channel *channel, ubv_cq **cq);
void ubv_ack(ubv_cq *cq, unsigned n);
int ubv_create_cq(ubv_context *context, int entries, ubv_comp_channel *channel, int vector, ubv_cq **cq);
int ubv_destroy_cq(ubv_cq *cq);
int ubv_poll(ubv_cq *cq, ubv_wc *done, int max, int tries, int *n);
int ubv_notify(ubv_cq *cq, int solicited);

int ubv_create_srq(ubv_pd *pd, uint32_t work, uint32_t limit, ubv_srq **srq, uint32_t *got);
int ubv_destroy_srq(ubv_srq *srq);

int ubv_create_qp(ubv_pd *pd, ubv_cq *send, ubv_cq *receive, ubv_srq *srq, ubv_qp_cap *cap, ubv_qp **qp);
int ubv_modify_qp(ubv_qp *qp, ubv_qp_attr *attr, int mask);
int ubv_query_qp(ubv_qp *qp, int *state);
int ubv_destroy_qp(ubv_qp *qp);
int ubv_in_order(ubv_qp *qp, int op);
int ubv_post(ubv_qp *qp, const ubv_work *work, int n, uint32_t inline_max, int *posted, int *inlined);
int ubv_post_receive(ubv_qp *qp, ubv_srq *srq, const ubv_receive *work, int n, int *posted); // to qp, or to srq if it is not 0

int ubv_get_async(ubv_context *context, int *type, int *port, uint32_t *qp);

#endif
