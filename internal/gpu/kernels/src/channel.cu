// The module of channels.
#include "channel.h"

UBC_CHANNEL_KERNELS
