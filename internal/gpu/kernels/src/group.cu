// The module of groups of one element type: -DUBC_TYPE=float32.
#include "group.h"

#define UBC_MODULE(T) UBC_GROUP_KERNEL(T)
UBC_MODULE(UBC_TYPE)
