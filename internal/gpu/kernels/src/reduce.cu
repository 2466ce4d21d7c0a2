// The module of the reductions of one element type, for up to UBC_RANKS ranks: -DUBC_TYPE=float32 -DUBC_RANKS=2.
#include "reduce.h"

#define UBC_MODULE(T, R) UBC_REDUCE_KERNELS(T, R)
UBC_MODULE(UBC_TYPE, UBC_RANKS)
