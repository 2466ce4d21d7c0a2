// Compares abi.h with libfabric's headers: the test compiles this file, and nothing runs.
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "../abi.h"

#define AT(ours, theirs, field) \
	_Static_assert(offsetof(ours, field) == offsetof(struct theirs, field), #ours "." #field); \
	_Static_assert(sizeof(((ours *)0)->field) == sizeof(((struct theirs *)0)->field), #ours "." #field " size")
#define SAME(ours, theirs) _Static_assert(sizeof(ours) == sizeof(struct theirs), #ours)
#define PREFIX(ours, theirs) _Static_assert(sizeof(ours) <= sizeof(struct theirs), #ours)
#define ROOM(ours, theirs) _Static_assert(sizeof(ours) >= sizeof(struct theirs), #ours)
#define NUMBER(name) _Static_assert((uint64_t)UOF_##name == (uint64_t)FI_##name, #name)

NUMBER(MSG);
NUMBER(RMA);
NUMBER(ATOMIC);
NUMBER(READ);
NUMBER(WRITE);
NUMBER(RECV);
NUMBER(SEND);
NUMBER(REMOTE_READ);
NUMBER(REMOTE_WRITE);
NUMBER(REMOTE_CQ_DATA);
NUMBER(COMPLETION);
NUMBER(INJECT);
NUMBER(DELIVERY_COMPLETE);
NUMBER(HMEM);
NUMBER(REMOTE_COMM);
NUMBER(CONTEXT);
NUMBER(MSG_PREFIX);
NUMBER(ASYNC_IOV);
NUMBER(RX_CQ_DATA);
NUMBER(CONTEXT2);
NUMBER(MR_LOCAL);
NUMBER(MR_RAW);
NUMBER(MR_VIRT_ADDR);
NUMBER(MR_ALLOCATED);
NUMBER(MR_PROV_KEY);
NUMBER(MR_MMU_NOTIFY);
NUMBER(MR_RMA_EVENT);
NUMBER(MR_ENDPOINT);
NUMBER(MR_HMEM);
NUMBER(EP_RDM);
NUMBER(PROGRESS_MANUAL);
NUMBER(THREAD_SAFE);
NUMBER(AV_TABLE);
NUMBER(WAIT_NONE);
NUMBER(WAIT_FD);
NUMBER(CQ_FORMAT_DATA);
NUMBER(SOCKADDR_IN);
NUMBER(SOCKADDR_IN6);
NUMBER(GETWAIT);
NUMBER(ENABLE);
NUMBER(LINK_DOWN);
NUMBER(UINT64);
NUMBER(SUM);
NUMBER(CSWAP);
NUMBER(EAVAIL);
NUMBER(ADDR_UNSPEC);
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION > 9
NUMBER(MR_COLLECTIVE);
#endif
#if FI_MAJOR_VERSION < 2 // later ones have retired these, whose bits stay reserved
NUMBER(LOCAL_MR);
NUMBER(NOTIFY_FLAGS_ONLY);
NUMBER(RESTRICTED_COMP);
NUMBER(BUFFERED_RECV);
#endif

PREFIX(uof_info, fi_info);
AT(uof_info, fi_info, next);
AT(uof_info, fi_info, caps);
AT(uof_info, fi_info, mode);
AT(uof_info, fi_info, addr_format);
AT(uof_info, fi_info, src_addrlen);
AT(uof_info, fi_info, src_addr);
AT(uof_info, fi_info, tx_attr);
AT(uof_info, fi_info, rx_attr);
AT(uof_info, fi_info, ep_attr);
AT(uof_info, fi_info, domain_attr);
AT(uof_info, fi_info, fabric_attr);
AT(uof_info, fi_info, nic);
PREFIX(uof_tx_attr, fi_tx_attr);
AT(uof_tx_attr, fi_tx_attr, caps);
AT(uof_tx_attr, fi_tx_attr, mode);
AT(uof_tx_attr, fi_tx_attr, inject_size);
AT(uof_tx_attr, fi_tx_attr, size);
PREFIX(uof_rx_attr, fi_rx_attr);
AT(uof_rx_attr, fi_rx_attr, mode);
AT(uof_rx_attr, fi_rx_attr, size);
PREFIX(uof_ep_attr, fi_ep_attr);
AT(uof_ep_attr, fi_ep_attr, type);
AT(uof_ep_attr, fi_ep_attr, max_msg_size);
PREFIX(uof_domain_attr, fi_domain_attr);
AT(uof_domain_attr, fi_domain_attr, name);
AT(uof_domain_attr, fi_domain_attr, threading);
AT(uof_domain_attr, fi_domain_attr, data_progress);
AT(uof_domain_attr, fi_domain_attr, av_type);
AT(uof_domain_attr, fi_domain_attr, mr_mode);
AT(uof_domain_attr, fi_domain_attr, mr_key_size);
AT(uof_domain_attr, fi_domain_attr, cq_data_size);
AT(uof_domain_attr, fi_domain_attr, mr_cnt);
PREFIX(uof_fabric_attr, fi_fabric_attr);
AT(uof_fabric_attr, fi_fabric_attr, name);
AT(uof_fabric_attr, fi_fabric_attr, prov_name);
AT(uof_fabric_attr, fi_fabric_attr, prov_version);
PREFIX(uof_nic, fid_nic);
AT(uof_nic, fid_nic, device_attr);
AT(uof_nic, fid_nic, link_attr);
AT(uof_device_attr, fi_device_attr, name);
AT(uof_link_attr, fi_link_attr, speed);
AT(uof_link_attr, fi_link_attr, state);

AT(uof_fid, fid, ops);
AT(uof_ops, fi_ops, close);
AT(uof_ops, fi_ops, bind);
AT(uof_ops, fi_ops, control);
AT(uof_fabric, fid_fabric, ops);
AT(uof_ops_fabric, fi_ops_fabric, domain);
AT(uof_ops_fabric, fi_ops_fabric, trywait);
AT(uof_domain, fid_domain, ops);
AT(uof_domain, fid_domain, mr);
AT(uof_ops_domain, fi_ops_domain, av_open);
AT(uof_ops_domain, fi_ops_domain, cq_open);
AT(uof_ops_domain, fi_ops_domain, endpoint);
AT(uof_ops_mr, fi_ops_mr, regattr);
ROOM(uof_mr_attr, fi_mr_attr);
AT(uof_mr_attr, fi_mr_attr, access);
AT(uof_mr_attr, fi_mr_attr, offset);
AT(uof_mr_attr, fi_mr_attr, requested_key);
AT(uof_mr_attr, fi_mr_attr, iface);
AT(uof_mr_attr, fi_mr_attr, device);
AT(uof_mr, fid_mr, mem_desc);
AT(uof_mr, fid_mr, key);
SAME(uof_av_attr, fi_av_attr);
AT(uof_av, fid_av, ops);
AT(uof_ops_av, fi_ops_av, insert);
AT(uof_ops_av, fi_ops_av, remove);
ROOM(uof_cq_attr, fi_cq_attr);
AT(uof_cq_attr, fi_cq_attr, wait_set);
AT(uof_cq_attr, fi_cq_attr, wait_obj);
AT(uof_cq, fid_cq, ops);
AT(uof_ops_cq, fi_ops_cq, read);
AT(uof_ops_cq, fi_ops_cq, readerr);
AT(uof_ops_cq, fi_ops_cq, strerror);
SAME(uof_cq_data_entry, fi_cq_data_entry);
AT(uof_cq_data_entry, fi_cq_data_entry, data);
ROOM(uof_cq_err_entry, fi_cq_err_entry);
AT(uof_cq_err_entry, fi_cq_err_entry, err);
AT(uof_cq_err_entry, fi_cq_err_entry, prov_errno);
AT(uof_cq_err_entry, fi_cq_err_entry, err_data);
AT(uof_ep, fid_ep, ops);
AT(uof_ep, fid_ep, cm);
AT(uof_ep, fid_ep, msg);
AT(uof_ep, fid_ep, rma);
AT(uof_ep, fid_ep, atomic);
AT(uof_ops_ep, fi_ops_ep, cancel);
AT(uof_ops_cm, fi_ops_cm, getname);
AT(uof_ops_msg, fi_ops_msg, recvmsg);
AT(uof_ops_msg, fi_ops_msg, sendmsg);
AT(uof_ops_msg, fi_ops_msg, inject);
AT(uof_ops_msg, fi_ops_msg, injectdata);
SAME(uof_msg, fi_msg);
AT(uof_msg, fi_msg, data);
AT(uof_ops_rma, fi_ops_rma, readmsg);
AT(uof_ops_rma, fi_ops_rma, writemsg);
AT(uof_ops_rma, fi_ops_rma, inject);
AT(uof_ops_rma, fi_ops_rma, injectdata);
SAME(uof_msg_rma, fi_msg_rma);
AT(uof_msg_rma, fi_msg_rma, rma_iov);
AT(uof_msg_rma, fi_msg_rma, data);
SAME(uof_rma_iov, fi_rma_iov);
SAME(uof_rma_iov, fi_rma_ioc);
SAME(uof_ioc, fi_ioc);
AT(uof_ops_atomic, fi_ops_atomic, readwritemsg);
AT(uof_ops_atomic, fi_ops_atomic, compwritemsg);
AT(uof_ops_atomic, fi_ops_atomic, readwritevalid);
AT(uof_ops_atomic, fi_ops_atomic, compwritevalid);
SAME(uof_msg_atomic, fi_msg_atomic);
AT(uof_msg_atomic, fi_msg_atomic, datatype);
AT(uof_msg_atomic, fi_msg_atomic, data);
