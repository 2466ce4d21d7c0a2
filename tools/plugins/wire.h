// What the plugin and the switch say to each other. Both run on machines of one byte order.
#ifndef COLLNET_SWITCH_WIRE_H
#define COLLNET_SWITCH_WIRE_H

#include <stdint.h>

enum {
	WIRE_HELLO = 0x75624831,
	WIRE_CALL = 0x75624331,
	WIRE_RESULT = 0x75625231,
};

enum { ALL_REDUCE = 1, ALL_GATHER, REDUCE_SCATTER };

// A member joins a group by this, and gets it back once all members have joined.
struct wire_hello {
	uint32_t magic, ranks, rank, reserved;
	uint64_t group;
};

// A call, followed by `send` bytes of data. A window is a part of the data of all members, each of which has bytes_per_rank.
struct wire_call {
	uint32_t magic, kind, type, op;
	uint64_t number; // of the group's calls, from 1
	uint64_t send, receive;
	uint64_t bytes_per_rank, window, window_bytes;
};

// Its result, followed by `bytes` bytes of data.
struct wire_result {
	uint32_t magic, error; // error: 0, or an ncclResult_t
	uint64_t number, bytes;
};

#endif
