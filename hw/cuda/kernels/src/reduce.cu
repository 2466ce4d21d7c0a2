// The module of the reductions of one element type, -DUBC_TYPE=float32.
#include "reduce.h"

#define UBC_MODULE(T) UBC_REDUCE_KERNELS(T)
UBC_MODULE(UBC_TYPE)
