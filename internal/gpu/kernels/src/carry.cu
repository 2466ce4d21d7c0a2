// The module of collectives between hosts.
#include "carry.h"

UBC_CARRY_KERNELS
