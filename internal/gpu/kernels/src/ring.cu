// The module of the ring of one element type: -DUBC_TYPE=float32.
#include "ring.h"

#define UBC_MODULE(T) UBC_RING_KERNELS(T)
UBC_MODULE(UBC_TYPE)
