// A CUDA driver that does nothing. UBCOLL_TEST_FAKE has "cuInit=100 ...": which call returns which code.
// UBCOLL_TEST_FAKE_LOG names a file that gets the names of the calls. The calls below also return values.
#define _GNU_SOURCE
#include "../driver.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fake(const char *name) {
	const char *file = getenv("UBCOLL_TEST_FAKE_LOG"), *at = getenv("UBCOLL_TEST_FAKE");
	int fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
	if (fd >= 0) {
		dprintf(fd, "%s\n", name);
		close(fd);
	}
	size_t n = strlen(name);
	for (; at && *at; at += strcspn(at, " "), at += *at == ' ')
		if (!strncmp(at, name, n) && at[n] == '=')
			return atoi(at + n + 1);
	return 0;
}

// The value of an attribute, if a variable sets one.
static uint64_t number(const char *name) {
	const char *s = getenv(name);
	return s ? strtoull(s, 0, 0) : 0;
}

int cuGetErrorName(int code, const char **s) {
	*s = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 9999 ? 0 : "CUDA_ERROR_FAKE";
	return 0;
}

int cuGetErrorString(int code, const char **s) {
	*s = code == 2 ? "out of memory" : code == 9999 ? 0 : "a fake error";
	return 0;
}

int cuDeviceGetCount(int *n) {
	*n = number("UBCOLL_TEST_FAKE_DEVICES");
	return fake("cuDeviceGetCount");
}

int cuDriverGetVersion(int *version) {
	*version = 12080;
	return fake("cuDriverGetVersion");
}

int cuDevicePrimaryCtxRetain(uintptr_t *ctx, int device) {
	*ctx = 0x1000;
	return fake("cuDevicePrimaryCtxRetain");
}

int cuStreamGetCtx(uintptr_t stream, uintptr_t *ctx) {
	*ctx = stream == 0xbad ? 0x2000 : 0x1000;
	return fake("cuStreamGetCtx");
}

int cuStreamEndCapture(uintptr_t stream, uintptr_t *graph) {
	*graph = 0x3000;
	return fake("cuStreamEndCapture");
}

int cuStreamGetCaptureInfo_v2(uintptr_t stream, int *status, uint64_t *id, uintptr_t *graph, const uintptr_t **after,
	size_t *count) {
	*status = number("UBCOLL_TEST_FAKE_CAPTURE");
	*id = 77;
	return fake("cuStreamGetCaptureInfo_v2");
}

int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, uintptr_t p) {
	for (unsigned i = 0; i < n; i++)
		switch (attributes[i]) {
		case UBC_PTR_MEMORY_TYPE: *(int *)values[i] = number("UBCOLL_TEST_FAKE_TYPE"); break;
		case UBC_PTR_DEVICE: *(int *)values[i] = p ? 1 : -2; break;
		case UBC_PTR_MANAGED: *(char *)values[i] = number("UBCOLL_TEST_FAKE_MANAGED"); break;
		case UBC_PTR_POOL: *(uint64_t *)values[i] = number("UBCOLL_TEST_FAKE_POOL"); break;
		}
	return fake("cuPointerGetAttributes");
}

int cuLibraryLoadData(uintptr_t *library, const void *code, int *options, void **values, unsigned n, int *library_options,
	void **library_values, unsigned library_n) {
	snprintf(values[0], (size_t)values[1], "ptxas: line 1: %s\n", (const char *)code);
	return fake("cuLibraryLoadData");
}
