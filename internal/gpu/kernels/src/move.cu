// The module of what does not depend on the type.
#include "move.h"

UBC_MOVE_KERNELS
