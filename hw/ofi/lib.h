// The functions that Go calls. Each returns 0 or an error of libfabric (an errno, or a number above 256), unless it says
// what else.
#ifndef UOF_LIB_H
#define UOF_LIB_H

#include "abi.h"

// One operation, laid out as Go's Work.
typedef struct {
	uint64_t id;
	uint64_t local, length;
	void *desc; // local's registration, where the provider wants one
	uof_addr peer;
	uint64_t remote, key;
	uint64_t data;
	uint64_t add_or_compare, swap; // of atomics, in this structure
	uint8_t op, flags;
	uint8_t pad[6];
} uof_work;

enum { UOF_OP_SEND, UOF_OP_RECEIVE, UOF_OP_WRITE, UOF_OP_READ, UOF_OP_FETCH_ADD, UOF_OP_COMPARE_SWAP };
enum { UOF_FLAG_DATA = 1, UOF_FLAG_DELIVERED = 2, UOF_FLAG_INLINE = 4 };

// The end of one, or what a peer has sent; laid out as Go's Completion.
typedef struct {
	uint64_t id, flags, length, data;
	int32_t err, prov;
	uint8_t op, ours; // ours: id and op are those of an operation of this endpoint
	char text[62];
} uof_done;

// An endpoint with its queue, addresses and contexts.
typedef struct uof_end uof_end;

// before: the process had loaded the library already.
int uof_load(const char *path, char *why, size_t len, const char **missing, uint32_t *version, int *before);
const char *uof_text(int error);

int uof_getinfo(const char *provider, const char *domain, uint64_t caps, uint64_t mode, int mr_mode, int ep_type,
	uof_info **all);
uof_info *uof_dup(const uof_info *info);
void uof_free(uof_info *info);

int uof_open(uof_info *info, uof_fabric **fabric, uof_domain **domain);
int uof_close(void *fid);

int uof_register(uof_domain *domain, uof_end *bind, uintptr_t address, size_t length, uint64_t access, uint64_t key, int cuda,
	uof_mr **mr);

// slots: how many operations may be under way; key: for the endpoint's own registration; call: which call has failed.
int uof_endpoint(uof_fabric *fabric, uof_domain *domain, uof_info *info, uint32_t slots, int waits, uint64_t key, uof_end **end,
	const char **call);
int uof_end_close(uof_end *end);
int uof_end_fd(uof_end *end); // -1: there is none
int uof_may_wait(uof_end *end); // EAGAIN: poll first
int uof_name(uof_end *end, void *name, size_t *length);
int uof_insert(uof_end *end, const void *address, uof_addr *peer);
int uof_remove(uof_end *end, uof_addr peer);
int uof_atomics(uof_end *end);
int uof_post(uof_end *end, const uof_work *work); // one operation
int uof_poll(uof_end *end, uof_done *done, int max, int tries, int *n);

#endif
