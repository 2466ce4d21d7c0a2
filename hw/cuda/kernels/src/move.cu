// The module of what does not depend on the type.
#include "broadcast.h"
#include "vector.h"

UBC_MOVE_KERNELS
UBC_BROADCAST_KERNELS
UBC_VECTOR_KERNELS
