// Compiled by TestABI only: compares every size, offset and value of abi.h with the installed header.
#include "../abi.h"
#include <infiniband/verbs.h>

#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs);
#define AT(ours, theirs, a, b) \
	_Static_assert(offsetof(ours, a) == offsetof(theirs, b), #theirs "." #b); \
	_Static_assert(sizeof(((ours *)0)->a) == sizeof(((theirs *)0)->b), #theirs "." #b " in size");
#define SAME(s, f) AT(ubv_##s, struct ibv_##s, f, f)
#define VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs);

SIZE(ubv_device, struct ibv_device)
SAME(device, node_type) SAME(device, transport_type) SAME(device, name) SAME(device, dev_name) SAME(device, ibdev_path)

SIZE(ubv_device_attr, struct ibv_device_attr)
SAME(device_attr, fw_ver) SAME(device_attr, node_guid) SAME(device_attr, max_mr_size) SAME(device_attr, vendor_id)
SAME(device_attr, vendor_part_id) SAME(device_attr, hw_ver) SAME(device_attr, max_qp) SAME(device_attr, max_qp_wr)
SAME(device_attr, device_cap_flags) SAME(device_attr, max_sge) SAME(device_attr, max_sge_rd) SAME(device_attr, max_cq)
SAME(device_attr, max_cqe) SAME(device_attr, max_mr) SAME(device_attr, max_pd) SAME(device_attr, max_qp_rd_atom)
SAME(device_attr, max_qp_init_rd_atom) SAME(device_attr, atomic_cap) SAME(device_attr, max_srq) SAME(device_attr, max_srq_wr)
SAME(device_attr, max_srq_sge) SAME(device_attr, max_pkeys) SAME(device_attr, local_ca_ack_delay)
SAME(device_attr, phys_port_cnt)

AT(ubv_device_attr_ex, struct ibv_device_attr_ex, orig, orig_attr)
AT(ubv_device_attr_ex, struct ibv_device_attr_ex, odp.general, odp_caps.general_caps)
AT(ubv_device_attr_ex, struct ibv_device_attr_ex, odp.rc, odp_caps.per_transport_caps.rc_odp_caps)

SIZE(ubv_port_attr, struct ibv_port_attr)
SAME(port_attr, state) SAME(port_attr, max_mtu) SAME(port_attr, active_mtu) SAME(port_attr, gid_tbl_len)
SAME(port_attr, max_msg_sz) SAME(port_attr, pkey_tbl_len) SAME(port_attr, lid) SAME(port_attr, sm_lid) SAME(port_attr, lmc)
SAME(port_attr, sm_sl) SAME(port_attr, active_width) SAME(port_attr, active_speed) SAME(port_attr, phys_state)
SAME(port_attr, link_layer) SAME(port_attr, flags)

SIZE(ubv_gid_entry, struct ibv_gid_entry)
AT(ubv_gid_entry, struct ibv_gid_entry, gid, gid)
AT(ubv_gid_entry, struct ibv_gid_entry, index, gid_index)
AT(ubv_gid_entry, struct ibv_gid_entry, port, port_num)
AT(ubv_gid_entry, struct ibv_gid_entry, type, gid_type)
AT(ubv_gid_entry, struct ibv_gid_entry, ifindex, ndev_ifindex)

SIZE(ubv_pd, struct ibv_pd) SAME(pd, context) SAME(pd, handle)
SIZE(ubv_mr, struct ibv_mr) SAME(mr, pd) SAME(mr, addr) SAME(mr, length) SAME(mr, handle) SAME(mr, lkey) SAME(mr, rkey)
SIZE(ubv_comp_channel, struct ibv_comp_channel) SAME(comp_channel, fd) SAME(comp_channel, refcnt)
SIZE(ubv_sge, struct ibv_sge) SAME(sge, addr) SAME(sge, length) SAME(sge, lkey)

SIZE(ubv_send_wr, struct ibv_send_wr)
SAME(send_wr, wr_id) SAME(send_wr, next) SAME(send_wr, sg_list) SAME(send_wr, num_sge) SAME(send_wr, opcode)
SAME(send_wr, send_flags) SAME(send_wr, imm_data) SAME(send_wr, wr.rdma.remote_addr) SAME(send_wr, wr.rdma.rkey)
SAME(send_wr, wr.atomic.remote_addr) SAME(send_wr, wr.atomic.compare_add) SAME(send_wr, wr.atomic.swap)
SAME(send_wr, wr.atomic.rkey)

SIZE(ubv_recv_wr, struct ibv_recv_wr)
SAME(recv_wr, wr_id) SAME(recv_wr, next) SAME(recv_wr, sg_list) SAME(recv_wr, num_sge)

SIZE(ubv_wc, struct ibv_wc)
SAME(wc, wr_id) SAME(wc, status) SAME(wc, opcode) SAME(wc, vendor_err) SAME(wc, byte_len) SAME(wc, imm_data)
SAME(wc, qp_num) SAME(wc, src_qp) SAME(wc, wc_flags) SAME(wc, pkey_index) SAME(wc, slid) SAME(wc, sl)

SIZE(ubv_qp_cap, struct ibv_qp_cap)
SAME(qp_cap, max_send_wr) SAME(qp_cap, max_recv_wr) SAME(qp_cap, max_send_sge) SAME(qp_cap, max_recv_sge)
SAME(qp_cap, max_inline_data)

SIZE(ubv_qp_init_attr, struct ibv_qp_init_attr)
SAME(qp_init_attr, send_cq) SAME(qp_init_attr, recv_cq) SAME(qp_init_attr, srq) SAME(qp_init_attr, cap)
SAME(qp_init_attr, qp_type) SAME(qp_init_attr, sq_sig_all)

SIZE(ubv_ah_attr, struct ibv_ah_attr)
AT(ubv_ah_attr, struct ibv_ah_attr, dgid, grh.dgid)
AT(ubv_ah_attr, struct ibv_ah_attr, flow_label, grh.flow_label)
AT(ubv_ah_attr, struct ibv_ah_attr, sgid_index, grh.sgid_index)
AT(ubv_ah_attr, struct ibv_ah_attr, hop_limit, grh.hop_limit)
AT(ubv_ah_attr, struct ibv_ah_attr, traffic_class, grh.traffic_class)
SAME(ah_attr, dlid) SAME(ah_attr, sl) SAME(ah_attr, src_path_bits) SAME(ah_attr, static_rate) SAME(ah_attr, is_global)
SAME(ah_attr, port_num)

SIZE(ubv_qp_attr, struct ibv_qp_attr)
SAME(qp_attr, qp_state) SAME(qp_attr, path_mtu) SAME(qp_attr, rq_psn) SAME(qp_attr, sq_psn) SAME(qp_attr, dest_qp_num)
SAME(qp_attr, qp_access_flags) SAME(qp_attr, cap) SAME(qp_attr, pkey_index) SAME(qp_attr, max_rd_atomic)
SAME(qp_attr, max_dest_rd_atomic) SAME(qp_attr, min_rnr_timer) SAME(qp_attr, port_num) SAME(qp_attr, timeout)
SAME(qp_attr, retry_cnt) SAME(qp_attr, rnr_retry) SAME(qp_attr, rate_limit)
AT(ubv_qp_attr, struct ibv_qp_attr, ah, ah_attr)
AT(ubv_qp_attr, struct ibv_qp_attr, alt_ah, alt_ah_attr)

SIZE(ubv_srq_attr, struct ibv_srq_attr) SAME(srq_attr, max_wr) SAME(srq_attr, max_sge) SAME(srq_attr, srq_limit)
VALUE(UBV_SRQ_LIMIT, IBV_SRQ_LIMIT)
SIZE(ubv_srq_init_attr, struct ibv_srq_init_attr)
AT(ubv_srq_init_attr, struct ibv_srq_init_attr, max_wr, attr.max_wr)
AT(ubv_srq_init_attr, struct ibv_srq_init_attr, max_sge, attr.max_sge)
AT(ubv_srq_init_attr, struct ibv_srq_init_attr, srq_limit, attr.srq_limit)

SIZE(ubv_async_event, struct ibv_async_event)
AT(ubv_async_event, struct ibv_async_event, element.port, element.port_num)
AT(ubv_async_event, struct ibv_async_event, type, event_type)

SIZE(ubv_cq, struct ibv_cq) SAME(cq, context) SAME(cq, channel) SAME(cq, cqe) SAME(cq, cond) SAME(cq, async_events_completed)
SIZE(ubv_srq, struct ibv_srq) SAME(srq, pd) SAME(srq, cond) SAME(srq, events_completed)
SIZE(ubv_qp, struct ibv_qp)
SAME(qp, pd) SAME(qp, send_cq) SAME(qp, srq) SAME(qp, handle) SAME(qp, qp_num) SAME(qp, state) SAME(qp, qp_type) SAME(qp, cond)
SAME(qp, events_completed)

SIZE(ubv_context, struct ibv_context)
SAME(context, device) SAME(context, ops.poll_cq) SAME(context, ops.req_notify_cq) SAME(context, ops.post_srq_recv)
SAME(context, ops.post_send) SAME(context, ops.post_recv) SAME(context, cmd_fd) SAME(context, async_fd)
SAME(context, num_comp_vectors) SAME(context, mutex) SAME(context, abi_compat)

// Offsets count from the end: a later header may have added fields at the beginning.
#define BACK(ours, theirs) \
	_Static_assert(sizeof(ubv_extension) - offsetof(ubv_extension, ours) == \
		sizeof(struct verbs_context) - offsetof(struct verbs_context, theirs), "verbs_context." #theirs);
BACK(query_port, query_port) BACK(query_device_ex, query_device_ex) BACK(sz, sz) BACK(context, context)

VALUE(UBV_REREG_ACCESS, IBV_REREG_MR_CHANGE_ACCESS)
VALUE(UBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE) VALUE(UBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE)
VALUE(UBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_READ) VALUE(UBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC)
VALUE(UBV_ACCESS_ON_DEMAND, IBV_ACCESS_ON_DEMAND) VALUE(UBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_RELAXED_ORDERING)
VALUE(UBV_LINK_INFINIBAND, IBV_LINK_LAYER_INFINIBAND) VALUE(UBV_LINK_ETHERNET, IBV_LINK_LAYER_ETHERNET)
VALUE(UBV_PORT_DOWN, IBV_PORT_DOWN) VALUE(UBV_PORT_ACTIVE, IBV_PORT_ACTIVE)
VALUE(UBV_GRH_REQUIRED, IBV_QPF_GRH_REQUIRED)
VALUE(UBV_GID_IB, IBV_GID_TYPE_IB) VALUE(UBV_GID_ROCE_V1, IBV_GID_TYPE_ROCE_V1) VALUE(UBV_GID_ROCE_V2, IBV_GID_TYPE_ROCE_V2)
VALUE(UBV_QPT_RC, IBV_QPT_RC)
VALUE(UBV_QPS_RESET, IBV_QPS_RESET) VALUE(UBV_QPS_INIT, IBV_QPS_INIT) VALUE(UBV_QPS_RTR, IBV_QPS_RTR)
VALUE(UBV_QPS_RTS, IBV_QPS_RTS) VALUE(UBV_QPS_ERR, IBV_QPS_ERR)
VALUE(UBV_ATOMIC_NONE, IBV_ATOMIC_NONE) VALUE(UBV_ATOMIC_HCA, IBV_ATOMIC_HCA) VALUE(UBV_ATOMIC_GLOB, IBV_ATOMIC_GLOB)
VALUE(UBV_QP_STATE, IBV_QP_STATE) VALUE(UBV_QP_ACCESS_FLAGS, IBV_QP_ACCESS_FLAGS)
VALUE(UBV_QP_PKEY_INDEX, IBV_QP_PKEY_INDEX) VALUE(UBV_QP_PORT, IBV_QP_PORT) VALUE(UBV_QP_AV, IBV_QP_AV)
VALUE(UBV_QP_PATH_MTU, IBV_QP_PATH_MTU) VALUE(UBV_QP_TIMEOUT, IBV_QP_TIMEOUT) VALUE(UBV_QP_RETRY_CNT, IBV_QP_RETRY_CNT)
VALUE(UBV_QP_RNR_RETRY, IBV_QP_RNR_RETRY) VALUE(UBV_QP_RQ_PSN, IBV_QP_RQ_PSN)
VALUE(UBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC) VALUE(UBV_QP_MIN_RNR_TIMER, IBV_QP_MIN_RNR_TIMER)
VALUE(UBV_QP_SQ_PSN, IBV_QP_SQ_PSN) VALUE(UBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC)
VALUE(UBV_QP_DEST_QPN, IBV_QP_DEST_QPN)
VALUE(UBV_WR_WRITE, IBV_WR_RDMA_WRITE) VALUE(UBV_WR_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM)
VALUE(UBV_WR_SEND, IBV_WR_SEND) VALUE(UBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM) VALUE(UBV_WR_READ, IBV_WR_RDMA_READ)
VALUE(UBV_WR_CMP_SWAP, IBV_WR_ATOMIC_CMP_AND_SWP) VALUE(UBV_WR_FETCH_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD)
VALUE(UBV_SEND_FENCE, IBV_SEND_FENCE) VALUE(UBV_SEND_SIGNALED, IBV_SEND_SIGNALED)
VALUE(UBV_SEND_SOLICITED, IBV_SEND_SOLICITED) VALUE(UBV_SEND_INLINE, IBV_SEND_INLINE)
VALUE(UBV_WC_SUCCESS, IBV_WC_SUCCESS) VALUE(UBV_WC_LOC_LEN_ERR, IBV_WC_LOC_LEN_ERR)
VALUE(UBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR) VALUE(UBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR)
VALUE(UBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR) VALUE(UBV_WC_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR)
VALUE(UBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR) VALUE(UBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR)
VALUE(UBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR) VALUE(UBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR)
VALUE(UBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR) VALUE(UBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR)
VALUE(UBV_WC_FATAL_ERR, IBV_WC_FATAL_ERR) VALUE(UBV_WC_RESP_TIMEOUT_ERR, IBV_WC_RESP_TIMEOUT_ERR)
VALUE(UBV_WC_GENERAL_ERR, IBV_WC_GENERAL_ERR)
VALUE(UBV_WC_SEND, IBV_WC_SEND) VALUE(UBV_WC_WRITE, IBV_WC_RDMA_WRITE) VALUE(UBV_WC_READ, IBV_WC_RDMA_READ)
VALUE(UBV_WC_CMP_SWAP, IBV_WC_COMP_SWAP) VALUE(UBV_WC_FETCH_ADD, IBV_WC_FETCH_ADD) VALUE(UBV_WC_RECV, IBV_WC_RECV)
VALUE(UBV_WC_RECV_WITH_IMM, IBV_WC_RECV_RDMA_WITH_IMM) VALUE(UBV_WC_WITH_IMM, IBV_WC_WITH_IMM)
VALUE(UBV_EVENT_CQ_ERR, IBV_EVENT_CQ_ERR) VALUE(UBV_EVENT_QP_FATAL, IBV_EVENT_QP_FATAL)
VALUE(UBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR) VALUE(UBV_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_FATAL)
VALUE(UBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE) VALUE(UBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ERR)
VALUE(UBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_ERR) VALUE(UBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_SRQ_LIMIT_REACHED)
VALUE(UBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED) VALUE(UBV_EVENT_GID_CHANGE, IBV_EVENT_GID_CHANGE)
VALUE(UBV_ODP_SUPPORT, IBV_ODP_SUPPORT) VALUE(UBV_ODP_SEND, IBV_ODP_SUPPORT_SEND) VALUE(UBV_ODP_RECV, IBV_ODP_SUPPORT_RECV)
VALUE(UBV_ODP_WRITE, IBV_ODP_SUPPORT_WRITE) VALUE(UBV_ODP_READ, IBV_ODP_SUPPORT_READ)
VALUE(UBV_ODP_ATOMIC, IBV_ODP_SUPPORT_ATOMIC)
VALUE(UBV_FORK_UNNEEDED, IBV_FORK_UNNEEDED)

int main(void) { return 0; }
