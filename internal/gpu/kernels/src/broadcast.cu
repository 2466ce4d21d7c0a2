// The module of the broadcast in which ranks pass their part on.
#include "broadcast.h"

UBC_BROADCAST_KERNELS
