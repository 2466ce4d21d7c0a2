// The module of the operations through a multicast object that only move bytes.
#include "nvls.h"

UBC_NVLS_MOVE_KERNEL
