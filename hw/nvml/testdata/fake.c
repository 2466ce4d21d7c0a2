// A fake libnvidia-ml.so.1, since no machine of the project has GPUs of several hosts in one NVLink fabric. What it says of every
// GPU, UBCOLL_TEST_NVML has: "STATE STATUS CLIQUE BYTE", the last of which fills the UUID. UBCOLL_TEST_NVML_FAILS names a call that
// fails. With OLD it has the call of drivers before 535 alone.
#include "../driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *call) {
	const char *s = getenv("UBCOLL_TEST_NVML_FAILS");
	return s && !strcmp(s, call) ? 999 : 0;
}

static ubc_nvml_fabric all(void) {
	ubc_nvml_fabric f = {.state = 0};
	unsigned state = 0, byte = 0;
	const char *s = getenv("UBCOLL_TEST_NVML");
	sscanf(s ? s : "", "%u %d %u %x", &state, &f.status, &f.clique, &byte);
	memset(f.cluster, (int)byte, sizeof f.cluster);
	f.state = (unsigned char)state;
	return f;
}

int nvmlInit_v2(void) { return fails("nvmlInit_v2"); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
	*device = (void *)pci;
	return strlen(pci) == 12 ? fails("nvmlDeviceGetHandleByPciBusId_v2") : 2;
}

#ifdef OLD
int nvmlDeviceGetGpuFabricInfo(void *device, ubc_nvml_fabric *f) {
	*f = all();
	return device ? fails("nvmlDeviceGetGpuFabricInfo") : 2;
}
#else
int nvmlDeviceGetGpuFabricInfoV(void *device, ubc_nvml_fabric2 *f) {
	if (!device || f->version != UBC_NVML_VERSION2)
		return 25; // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	ubc_nvml_fabric a = all();
	memcpy(f->cluster, a.cluster, sizeof a.cluster);
	f->status = a.status, f->clique = a.clique, f->state = a.state, f->health = 0x15;
	return fails("nvmlDeviceGetGpuFabricInfoV");
}
#endif
