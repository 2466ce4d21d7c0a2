// The part of NVML that is used, from NVIDIA's documentation of nvmlDeviceGetGpuFabricInfo and nvmlDeviceGetGpuFabricInfoV.
#ifndef UBC_NVML_H
#define UBC_NVML_H
#include <stddef.h>

enum { UBC_NVML_COMPLETED = 3 }; // NVML_GPU_FABRIC_STATE_COMPLETED

// nvmlGpuFabricInfo_t, of drivers before 535.
typedef struct {
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
} ubc_nvml_fabric;

// nvmlGpuFabricInfo_v2_t, with which nvmlGpuFabricInfo_v3_t begins.
typedef struct {
	unsigned version;
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
} ubc_nvml_fabric2;

#define UBC_NVML_VERSION2 (sizeof(ubc_nvml_fabric2) | 2U << 24)

_Static_assert(sizeof(ubc_nvml_fabric) == 28 && offsetof(ubc_nvml_fabric, status) == 16 && offsetof(ubc_nvml_fabric, clique) == 20 &&
	offsetof(ubc_nvml_fabric, state) == 24, "nvmlGpuFabricInfo_t");
_Static_assert(sizeof(ubc_nvml_fabric2) == 36 && offsetof(ubc_nvml_fabric2, cluster) == 4 && offsetof(ubc_nvml_fabric2, status) == 20 &&
	offsetof(ubc_nvml_fabric2, clique) == 24 && offsetof(ubc_nvml_fabric2, state) == 28 && offsetof(ubc_nvml_fabric2, health) == 32,
	"nvmlGpuFabricInfo_v2_t");

typedef struct ubc_nvml ubc_nvml;

// Returns the started library, or null.
ubc_nvml *ubc_nvml_load(const char *path);

// Returns 1 and sets f if the GPU has joined a fabric, else 0.
int ubc_nvml_fabric_of(const ubc_nvml *n, const char *pci, ubc_nvml_fabric *f);

#endif
