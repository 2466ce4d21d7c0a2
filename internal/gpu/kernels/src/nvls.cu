// The module of the reductions of one element type through a multicast object: -DUBC_TYPE=float32.
#include "nvls.h"

#define UBC_MODULE(T) UBC_NVLS_KERNEL(T)
UBC_MODULE(UBC_TYPE)
