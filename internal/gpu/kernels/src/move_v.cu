// The module of the operations with counts.
#include "move_v.h"

UBC_MOVE_V_KERNELS
