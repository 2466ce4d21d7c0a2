// The module of the operations that do not depend on the type.
#include "move.h"

UBC_MOVE_KERNELS
#ifndef UBC_WIDE // wide areas have no lines
UBC_MOVE_LINES_KERNEL
#endif
