// The stand-ins for the kernels that use a multicast object, by name, for the emulator (-DUBC_EMULATE). See multimem.h.
#ifndef UBC_STAND_IN
#define UBC_STAND_IN
#endif
#include "nvls.h"

#define UBC_NVLS_TYPES(X) X(uint32) X(uint64) X(float16) X(bfloat16) X(float32)
UBC_NVLS_TYPES(UBC_NVLS_KERNEL)
UBC_NVLS_MOVE_KERNEL

#define UBC_NVLS_ENTRY(T) {"ubc_stand_in_" #T, ubc_stand_in_##T},

struct ubc_stand_in_entry {
	const char *name;
	void (*f)(const ubc_params *);
};

extern "C" {
extern const ubc_stand_in_entry ubc_stand_in_emulated[];
const ubc_stand_in_entry ubc_stand_in_emulated[] = {
	{"ubc_stand_in_move", ubc_stand_in_move},
	UBC_NVLS_TYPES(UBC_NVLS_ENTRY)
	{nullptr, nullptr},
};
}
