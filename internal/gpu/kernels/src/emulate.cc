// All kernels by name, for the emulator (-DUBC_EMULATE).
#include "broadcast.h"
#include "carry.h"
#include "channel.h"
#include "copier.h"
#include "group.h"
#include "messages.h"
#include "move.h"
#include "nvls.h"
#include "reduce.h"
#include "ring.h"
#include "move_v.h"

#define UBC_TYPES(X) \
	X(uint8) X(uint16) X(uint32) X(uint64) X(float16) X(bfloat16) X(float32) X(float64)

UBC_MOVE_KERNELS
UBC_MOVE_LINES_KERNEL
UBC_BROADCAST_KERNELS
UBC_MOVE_V_KERNELS
UBC_CARRY_KERNELS
UBC_COPIER_KERNEL
UBC_CHANNEL_KERNELS
UBC_MESSAGES_KERNELS
#define UBC_RANKS(T) UBC_REDUCE_KERNELS(T, 2) UBC_REDUCE_KERNELS(T, 4) UBC_REDUCE_KERNELS(T, 8)
UBC_TYPES(UBC_RANKS)
UBC_TYPES(UBC_RING_KERNELS)
UBC_TYPES(UBC_GROUP_KERNEL)
#define UBC_NVLS_TYPES(X) X(uint32) X(uint64) X(float16) X(bfloat16) X(float32)
UBC_NVLS_TYPES(UBC_NVLS_KERNEL)
UBC_NVLS_MOVE_KERNEL

#define UBC_ENTRIES_OF(T, R)                       \
	{"ubc_oneshot_" #T "_" #R, ubc_oneshot_##T##_##R}, \
	{"ubc_packets_" #T "_" #R, ubc_packets_##T##_##R}, \
	{"ubc_lines_" #T "_" #R, ubc_lines_##T##_##R},     \
	{"ubc_twoshot_" #T "_" #R, ubc_twoshot_##T##_##R},
#define UBC_ENTRIES(T) UBC_ENTRIES_OF(T, 2) UBC_ENTRIES_OF(T, 4) UBC_ENTRIES_OF(T, 8) {"ubc_ring_" #T, ubc_ring_##T}, \
	{"ubc_group_" #T, (void (*)(const ubc_params *))ubc_group_##T},

#define UBC_NVLS_ENTRY(T) {"ubc_nvls_" #T, ubc_nvls_##T},

struct ubc_entry {
	const char *name;
	void (*f)(const ubc_params *);
};

extern "C" {
extern const ubc_entry ubc_emulated[];
const ubc_entry ubc_emulated[] = {
	{"ubc_move", ubc_move},
	{"ubc_move_packets", ubc_move_packets},
	{"ubc_move_lines", ubc_move_lines},
	{"ubc_barrier", ubc_barrier},
	{"ubc_broadcast", ubc_broadcast},
	{"ubc_move_v", (void (*)(const ubc_params *))ubc_move_v}, // this and the next five have other parameters
	{"ubc_carry", (void (*)(const ubc_params *))ubc_carry},
	{"ubc_carry_step", (void (*)(const ubc_params *))ubc_carry_step},
	{"ubc_copier", (void (*)(const ubc_params *))ubc_copier},
	{"ubc_channel", (void (*)(const ubc_params *))ubc_channel},
	{"ubc_messages", (void (*)(const ubc_params *))ubc_messages},
	{"ubc_nvls_move", ubc_nvls_move},
	UBC_TYPES(UBC_ENTRIES)
	UBC_NVLS_TYPES(UBC_NVLS_ENTRY)
	{nullptr, nullptr},
};
}
