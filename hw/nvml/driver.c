//go:build linux && cgo && (amd64 || arm64)

#include "driver.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct ubc_nvml {
	int (*init)(void); // it attaches no GPU yet
	int (*device)(const char *pci, void **device);
	int (*fabric2)(void *device, ubc_nvml_fabric2 *f);
	int (*fabric)(void *device, ubc_nvml_fabric *f);
};

ubc_nvml *ubc_nvml_load(const char *path) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL); // never unloaded
	ubc_nvml *n = lib ? calloc(1, sizeof *n) : 0;
	if (!n)
		return 0;
	*(void **)&n->init = dlsym(lib, "nvmlInit_v2");
	*(void **)&n->device = dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
	*(void **)&n->fabric2 = dlsym(lib, "nvmlDeviceGetGpuFabricInfoV");
	*(void **)&n->fabric = dlsym(lib, "nvmlDeviceGetGpuFabricInfo");
	if (!n->init || !n->device || (!n->fabric && !n->fabric2) || n->init()) {
		free(n);
		return 0;
	}
	return n;
}

int ubc_nvml_fabric_of(const ubc_nvml *n, const char *pci, ubc_nvml_fabric *f) {
	static const unsigned char none[sizeof f->cluster];
	void *device = 0;
	if (n->device(pci, &device))
		return 0;
	memset(f, 0, sizeof *f);
	ubc_nvml_fabric2 v = {.version = UBC_NVML_VERSION2};
	if (n->fabric2 && !n->fabric2(device, &v)) {
		memcpy(f->cluster, v.cluster, sizeof f->cluster);
		f->status = v.status, f->clique = v.clique, f->state = v.state;
	} else if (!n->fabric || n->fabric(device, f)) {
		return 0;
	}
	return f->state == UBC_NVML_COMPLETED && !f->status && memcmp(f->cluster, none, sizeof none);
}
