// The module of the reductions of one element type, for many ranks: -DUBC_WIDE -DUBC_TYPE=float32.
#include "ring.h"
#include "wide.h"

#define UBC_MODULE(T) UBC_WIDE_KERNELS(T) UBC_RING_KERNELS(T)
UBC_MODULE(UBC_TYPE)
