//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
)

// Device is an open RDMA device.
type Device struct {
	owner
	name    string
	sysfs   string
	context *C.ubv_context
	limits  Limits
	async   *waiter

	pairs sync.Map // by number: *QP
}

// Open opens the device of that name. (ibv_open_device)
func Open(name string) (*Device, error) {
	d := &Device{name: name}
	found, code := false, C.int(0)
	err := each(func(dev *C.ubv_device) bool {
		if C.GoString(&dev.name[0]) != name {
			return true
		}
		found = true
		d.sysfs = C.GoString(&dev.ibdev_path[0])
		var c *C.ubv_context
		code = C.ubv_open(dev, &c)
		d.context = c
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		names, _ := Devices()
		return nil, fmt.Errorf("no RDMA device %q; there is: %s: %w", name, orNone(names), fault.ErrArgument)
	case code != 0:
		e := &Error{Call: "ibv_open_device", Device: name, Errno: syscall.Errno(code)}
		if e.Errno == syscall.EACCES || e.Errno == syscall.EPERM || e.Errno == syscall.ENOENT {
			e.What = "may this user open /dev/infiniband/uverbs*?"
		}
		return nil, e
	}
	if err := d.describe(); err != nil {
		C.ubv_close(d.context)
		return nil, err
	}
	if d.async, err = newWaiter(int(d.context.async_fd), name+" events"); err != nil {
		C.ubv_close(d.context)
		return nil, err
	}
	return d, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (d *Device) describe() error {
	var a C.ubv_device_attr_ex
	if err := d.check("ibv_query_device_ex", "", C.ubv_describe(d.context, &a)); err != nil {
		return err
	}
	o := &a.orig
	// Some drivers return -1 or nonsense where they know no limit.
	most := func(n C.int) int { return max(int(n), 0) }
	d.limits = Limits{
		Firmware: C.GoString(&o.fw_ver[0]), Vendor: uint32(o.vendor_id), Part: uint32(o.vendor_part_id),
		GUID: bits.ReverseBytes64(uint64(o.node_guid)), Ports: int(o.phys_port_cnt), MaxMRBytes: uint64(o.max_mr_size),
		MRs: most(o.max_mr), PDs: most(o.max_pd), QPs: most(o.max_qp), Work: most(o.max_qp_wr), CQs: most(o.max_cq),
		CQEntries: most(o.max_cqe), SRQs: most(o.max_srq), SRQWork: most(o.max_srq_wr),
		ReadsOut: most(o.max_qp_init_rd_atom), ReadsIn: most(o.max_qp_rd_atom), Atomics: Atomics(o.atomic_cap),
		OnDemand: a.odp.general&C.UBV_ODP_SUPPORT != 0 && a.odp.rc&onDemandOps == onDemandOps,
		DMABuf:   C.ubv_has_dmabuf() != 0,
	}
	return nil
}

// onDemandOps are the operations that OnDemand regions must support. Few devices do atomics on such regions.
const onDemandOps = C.UBV_ODP_SEND | C.UBV_ODP_RECV | C.UBV_ODP_WRITE | C.UBV_ODP_READ

// check makes an error of the result of a call.
func (d *Device) check(call, what string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: call, Device: d.name, What: what, Errno: syscall.Errno(code)}
}

// Name is the device's name, as "mlx5_0".
func (d *Device) Name() string { return d.name }

// Limits returns what the device said that it can do when it was opened.
func (d *Device) Limits() Limits { return d.limits }

// Port asks for the state of a port; ports count from 1. (ibv_query_port)
func (d *Device) Port(number int) (Port, error) {
	var a C.ubv_port_attr
	if number < 1 || number > d.limits.Ports {
		return Port{}, fmt.Errorf("port %d: %s has ports 1 to %d: %w", number, d.name, d.limits.Ports, fault.ErrArgument)
	}
	code, err := d.use(func() C.int { return C.ubv_port(d.context, C.int(number), &a) })
	if err != nil {
		return Port{}, fmt.Errorf("%s: %w", d.name, err)
	}
	if err := d.check("ibv_query_port", fmt.Sprintf("port %d", number), code); err != nil {
		return Port{}, err
	}
	p := Port{Number: number, State: PortState(a.state), Link: LinkLayer(a.link_layer), MTU: mtuBytes(int(a.active_mtu)),
		MaxMTU: mtuBytes(int(a.max_mtu)), MaxMessage: int(a.max_msg_sz), LID: uint16(a.lid), GIDs: int(a.gid_tbl_len),
		PKeys: int(a.pkey_tbl_len), grh: a.flags&C.UBV_GRH_REQUIRED != 0}
	if p.Link != LinkEthernet {
		p.Link = LinkInfiniBand // drivers older than link layers say 0, unspecified
	}
	p.Gbits = gbits(p.Link, uint8(a.active_width), uint8(a.active_speed))
	return p, nil
}

// GIDs returns the port's table of GIDs, without empty rows. (ibv_query_gid_table)
func (d *Device) GIDs(number int) ([]GIDEntry, error) {
	p, err := d.Port(number)
	if err != nil {
		return nil, err
	}
	most := 0
	for n := 1; n <= d.limits.Ports; n++ { // the call lists the GIDs of all ports
		other, err := d.Port(n)
		if err != nil {
			return nil, err
		}
		most += other.GIDs
	}
	if p.GIDs == 0 || most == 0 {
		return nil, nil
	}
	raw := make([]C.ubv_gid_entry, most)
	var n C.int
	code, err := d.use(func() C.int { return C.ubv_gids(d.context, &raw[0], C.int(most), &n) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	if err := d.check("ibv_query_gid_table", "", code); err != nil {
		return nil, err
	}
	var table []GIDEntry
	for _, r := range raw[:n] {
		if int(r.port) != number {
			continue
		}
		e := GIDEntry{Index: int(r.index), Type: GIDType(r._type), Interface: int(r.ifindex)}
		for i, b := range r.gid {
			e.GID[i] = byte(b)
		}
		table = append(table, e)
	}
	return table, nil
}

// PKey returns an entry of the port's table of partition keys. Its bit 15 says that the port is a full member.
// (ibv_query_pkey)
func (d *Device) PKey(number, index int) (uint16, error) {
	p, err := d.Port(number)
	if err != nil {
		return 0, err
	}
	if index < 0 || index >= p.PKeys {
		return 0, fmt.Errorf("P_Key index %d: port %d of %s has 0 to %d: %w", index, number, d.name, p.PKeys-1, fault.ErrArgument)
	}
	var key C.uint16_t
	code, err := d.use(func() C.int { return C.ubv_pkey(d.context, C.int(number), C.int(index), &key) })
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.name, err)
	}
	return uint16(key), d.check("ibv_query_pkey", fmt.Sprintf("port %d, index %d", number, index), code)
}

// Close closes the device. (ibv_close_device)
func (d *Device) Close() error {
	err := d.end(d.name, "ibv_close_device", d.name, func() C.int { return C.ubv_close(d.context) })
	if err == nil {
		d.async.close()
	}
	return err
}
