// The module of copies that the host tells a kernel.
#include "copier.h"

UBC_COPIER_KERNEL
