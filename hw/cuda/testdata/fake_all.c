// Every call of the driver, for fake.c: it notes its name and succeeds, unless the environment says otherwise.
#include "../driver.h"

int fake(const char *name);

#define FAKE(name, params) __attribute__((weak)) int name params { return fake(#name); }
UBC_CALLS(FAKE)
