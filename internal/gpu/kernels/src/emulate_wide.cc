// The kernels for many ranks by name, for the emulator (-DUBC_EMULATE).
#ifndef UBC_WIDE
#define UBC_WIDE
#endif
#include "broadcast.h"
#include "messages.h"
#include "move.h"
#include "move_v.h"
#include "ring.h"
#include "wide.h"

#define UBC_TYPES(X) \
	X(uint8) X(uint16) X(uint32) X(uint64) X(float16) X(bfloat16) X(float32) X(float64)

UBC_MOVE_KERNELS
UBC_BROADCAST_KERNELS
UBC_MOVE_V_KERNELS
UBC_MESSAGES_KERNELS
UBC_TYPES(UBC_WIDE_KERNELS)
UBC_TYPES(UBC_RING_KERNELS)

#define UBC_ENTRIES(T)                             \
	{"ubc_wide_oneshot_" #T, ubc_wide_oneshot_##T},  \
	{"ubc_wide_twoshot_" #T, ubc_wide_twoshot_##T},  \
	{"ubc_wide_ring_" #T, ubc_wide_ring_##T},

struct ubc_wide_entry {
	const char *name;
	void (*f)(const ubc_params *);
};

extern "C" {
extern const ubc_wide_entry ubc_wide_emulated[];
const ubc_wide_entry ubc_wide_emulated[] = {
	{"ubc_wide_move", ubc_wide_move},
	{"ubc_wide_move_packets", ubc_wide_move_packets},
	{"ubc_wide_barrier", ubc_wide_barrier},
	{"ubc_wide_broadcast", ubc_wide_broadcast},
	{"ubc_wide_move_v", (void (*)(const ubc_params *))ubc_wide_move_v}, // this and the next one have other parameters
	{"ubc_wide_messages", (void (*)(const ubc_params *))ubc_wide_messages},
	UBC_TYPES(UBC_ENTRIES)
	{nullptr, nullptr},
};
}
