//go:build !nvls && linux && cgo && (amd64 || arm64)

// Builds without tag nvls: ubc_multicast_load says so, and nobody calls the rest.
#include "driver.h"

int ubc_multicast_load(const char **missing, int *emulated) {
	(void)missing, (void)emulated;
	return -1;
}

#define WITHOUT(name, params) \
	ubc_result name params { \
		ubc_result r = {UBC_CLOSED, #name, 0, 0}; \
		return r; \
	}
UBC_MULTICAST_SHIMS(WITHOUT)
