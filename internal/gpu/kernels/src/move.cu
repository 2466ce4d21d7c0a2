// The module of what does not depend on the type.
#include "move.h"

UBC_MOVE_KERNELS
#ifndef UBC_WIDE // whose areas have no lines
UBC_MOVE_LINES_KERNEL
#endif
