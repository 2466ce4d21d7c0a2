// The module of the operations with counts.
#include "vector.h"

UBC_VECTOR_KERNELS
