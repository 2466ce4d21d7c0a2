// The module of the broadcast that is passed on.
#include "broadcast.h"

UBC_BROADCAST_KERNELS
