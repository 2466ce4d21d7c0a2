// Compares driver.h with NVIDIA's header, of CUDA 12.2 or later.
#include "../driver.h"
#include <nvml.h>

#ifdef nvmlGpuFabricInfo_v2
#define SAME(ours, theirs, a, b) \
	_Static_assert(offsetof(ours, a) == offsetof(theirs, b) && sizeof((ours){0}.a) == sizeof((theirs){0}.b), #theirs "." #b)
#define ALL(ours, theirs) \
	SAME(ours, theirs, cluster, clusterUuid); \
	SAME(ours, theirs, status, status); \
	SAME(ours, theirs, clique, cliqueId); \
	SAME(ours, theirs, state, state)

ALL(ubc_nvml_fabric, nvmlGpuFabricInfo_t);
ALL(ubc_nvml_fabric2, nvmlGpuFabricInfo_v2_t);
_Static_assert(sizeof(ubc_nvml_fabric) == sizeof(nvmlGpuFabricInfo_t) && sizeof(ubc_nvml_fabric2) == sizeof(nvmlGpuFabricInfo_v2_t) &&
	UBC_NVML_VERSION2 == nvmlGpuFabricInfo_v2 && UBC_NVML_COMPLETED == NVML_GPU_FABRIC_STATE_COMPLETED, "sizes and values");
#endif
