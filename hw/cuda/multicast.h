// The part of the driver API about multicast objects, section Multicast Object Management. multicast.c alone calls it,
// which is built with tag nvls only: on a host that several use, a multicast object can take all GPUs down.
#ifndef UBC_CUDA_MULTICAST_H
#define UBC_CUDA_MULTICAST_H
#include "driver.h"

typedef struct {
	unsigned devices;
	size_t size;
	uint64_t handle_types, flags;
} ubc_multicast_prop;

// As UBC_SIZES and so on of driver.h.
#define UBC_MULTICAST_SIZES(X) X(ubc_multicast_prop, 32, CUmulticastObjectProp)
#define UBC_MULTICAST_FIELDS(X) \
	X(ubc_multicast_prop, devices, 0, CUmulticastObjectProp, numDevices) \
	X(ubc_multicast_prop, size, 8, CUmulticastObjectProp, size) \
	X(ubc_multicast_prop, handle_types, 16, CUmulticastObjectProp, handleTypes) \
	X(ubc_multicast_prop, flags, 24, CUmulticastObjectProp, flags)
UBC_MULTICAST_SIZES(UBC_SIZE)
UBC_MULTICAST_FIELDS(UBC_FIELD)

#define UBC_MULTICAST_VALUES(X) \
	X(UBC_MULTICAST_MINIMUM, 0, CU_MULTICAST_GRANULARITY_MINIMUM) \
	X(UBC_MULTICAST_RECOMMENDED, 1, CU_MULTICAST_GRANULARITY_RECOMMENDED)
enum {
#define UBC_VALUE(ours, value, theirs) ours = value,
	UBC_MULTICAST_VALUES(UBC_VALUE)
#undef UBC_VALUE
};

// Drivers have them from CUDA 12.1 on.
#define UBC_MULTICAST_CALLS(X) \
	X(cuMulticastGetGranularity, (size_t *n, const ubc_multicast_prop *prop, int option)) \
	X(cuMulticastCreate, (uint64_t *h, const ubc_multicast_prop *prop)) \
	X(cuMulticastAddDevice, (uint64_t h, int device)) \
	X(cuMulticastBindMem, (uint64_t h, size_t at, uint64_t memory, size_t from, size_t n, uint64_t flags)) \
	X(cuMulticastBindAddr, (uint64_t h, size_t at, uintptr_t p, size_t n, uint64_t flags)) \
	X(cuMulticastUnbind, (uint64_t h, int device, size_t at, size_t n))

// What the emulated driver exports, and no other driver.
#define UBC_EMULATED_DRIVER "ubc_emulated_driver"

#endif
