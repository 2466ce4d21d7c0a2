// The module of messages.
#include "messages.h"

UBC_MESSAGES_KERNELS
