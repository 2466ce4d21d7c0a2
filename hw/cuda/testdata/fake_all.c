// Every call of the driver, for fake.c: it logs its name, and succeeds unless the environment sets an error.
#include "../multicast.h"

int fake(const char *name);

#define FAKE(name, params) __attribute__((weak)) int name params { return fake(#name); }
UBC_CALLS(FAKE)
UBC_MULTICAST_CALLS(FAKE)
