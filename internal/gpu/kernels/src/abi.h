// What the host and the kernels agree on: the layout of a rank's device area, of the parameters of every kernel, and of
// the status words in which a kernel reports to its host. abi.go mirrors this file; a test compares the two.
#ifndef UBC_ABI_H
#define UBC_ABI_H

typedef unsigned int ubc_u32;
typedef unsigned long long ubc_u64;

// There are two sets of kernels. The first takes up to 8 ranks, and its parameters list all device areas. The second
// (-DUBC_WIDE) takes as many ranks as today's largest NVLink domains have. Each set lays out areas for the most ranks
// that it takes.
enum {
	UBC_PARAM_RANKS = 8, // ranks whose areas fit into the parameters
#ifdef UBC_WIDE
	UBC_MANY = 1,
	UBC_MAX_RANKS = 72,
#else
	UBC_MANY = 0,
	UBC_MAX_RANKS = UBC_PARAM_RANKS,
#endif
	UBC_MAX_BLOCKS = 256,
	UBC_MAX_EXTENTS = 1024, // allocations that a rank exports at a time
	UBC_MAX_CHANNELS = 512, // channel ends that a rank has at a time, at most
	UBC_MAX_STEPS = 8,      // of one channel kernel
	UBC_MAX_LANES = 16,     // of one message kernel
	UBC_MAX_MESSAGES = 64,  // of one message kernel
	UBC_MAX_GROUP = 16,     // operations of one group kernel
	UBC_CHANNEL_BLOCKS = 128, // blocks of one channel kernel, at most

	// A rank's device area, which peers map. Offsets are in bytes. "Own use": only kernels of this rank use the word.
	UBC_AREA_EPOCH = 0,       // u32 [MAX_BLOCKS]: the last operation that each block has done; own use
	UBC_AREA_ERROR = 1024,    // u32: the last operation that had an error; own use
	UBC_AREA_BROKEN = 1028,   // u32: the operation that broke the communicator, 0: none; later ones do nothing; own use
	UBC_AREA_FAILED = 1032,   // u32: 1 after a wait for a message has failed; own use
	UBC_AREA_EXTRA = 1036,    // u32: operations that kernels did beyond their first, to number errors; own use
	UBC_AREA_GATE = 1040,     // u64: 0: kernels with params.gated do nothing; see ubc_carry_step_params; own use
	UBC_AREA_DESC = 4096,     // packets [2][MAX_RANKS][4]: by parity of the epoch; rank r writes row r
#ifdef UBC_WIDE
	UBC_AREA_PEERS = 2048,    // u64 [2][MAX_RANKS]: all areas and tables, which params has no room for; own use
	UBC_AREA_COUNTS = 16 << 10,
	UBC_AREA_FLAG = 352 << 10,
	UBC_AREA_MAIL = 496 << 10,
	UBC_AREA_CREDIT = 640 << 10,
	UBC_AREA_PACKETS = 644 << 10,
#else
	UBC_AREA_COUNTS = 8192,   // packets [2][MAX_RANKS][2 * MAX_RANKS]: by parity; row r has the counts that rank r
	                          // sends to each rank, then the counts that it expects from each
	UBC_AREA_FLAG = 16384,    // u64 [MAX_RANKS][MAX_BLOCKS]: epoch << 32 + step; rank r's blocks write row r
	UBC_AREA_MAIL = 32 << 10, // [MAX_RANKS] of MAIL_BYTES: this rank's side of its messages with each rank
	UBC_AREA_CREDIT = 48 << 10, // u64 [MAX_BLOCKS]: epoch << 32 + messages that the next rank's blocks have taken
	UBC_AREA_PACKETS = 64 << 10, // [2 parities][ranks - 1] of params.row: packets from the ranks at distance 1, 2 ...
#endif
	// After these, at offsets that the host chooses by the number of ranks and the communicator's limits: a small
	// staging memory, which is four buffers of params.little bytes; [ranks] of BOX_BYTES, packets of messages from each
	// rank; a small FIFO for each peer; channel ends of CHANNEL_BYTES.

	// This rank's side of its messages with one peer: first for messages that it sends, then for those that it
	// receives. Messages are counted from 1. A field marked [2] has one element for each parity of the message's
	// number.
	UBC_OUT_SENT = 0,       // u64: messages sent; own use
	UBC_OUT_TURN = 8,       // u64: the message that all blocks may start; own use
	UBC_OUT_ARRIVALS = 16,  // u32: blocks that have finished their part of the message; own use
	UBC_OUT_CREDIT = 64,    // u64: messages that the peer has finished; the peer writes it
	UBC_OUT_POSTED = 128,   // packets [2][2]: the destination's word and the message that the peer expects; the peer
	                        // writes them
	UBC_OUT_FIFO_CREDIT = 256, // u64 [FIFO_SLOTS]: the last piece that the peer took out of the slot; the peer writes
	                           // it
	UBC_IN_RECEIVED = 1024, // u64: messages received; own use
	UBC_IN_TURN = 1032,     // u64, and
	UBC_IN_ARRIVALS = 1040, // u32: like OUT_TURN and OUT_ARRIVALS
	UBC_IN_PUSHED = 1088,   // u64: the last message that is complete at its destination; the peer writes it
	UBC_IN_HEAD = 1152,     // packets [2]: heads of messages; the peer writes them
	UBC_IN_FIFO_FILLED = 1280, // u64 [FIFO_SLOTS]: the last piece that the peer put into the slot; the peer writes it
	UBC_MAIL_BYTES = 2048,

	// One end of a channel. The peer adds to CHANNEL_SIGNALS; everything else is for own use. Signals are counted from
	// 0. Each signal is worth SIGNAL_UNITS, and every block that moved data before it adds some of these units. Signal
	// k has arrived when word k mod SIGNAL_SLOTS has SIGNAL_UNITS * (k / SIGNAL_SLOTS + 1) units. A kernel never sends
	// two signals to the same word, so that a fast block's units cannot stand in for a slow block's. All counts may
	// wrap around.
	UBC_CHANNEL_SIGNALS = 0,  // u32 [SIGNAL_SLOTS]: units of the signals that the peer has sent
	UBC_CHANNEL_FAILED = 64,  // u32: 1 after the first error, which ends the channel
	UBC_CHANNEL_COUNTS = 256, // u32 [CHANNEL_BLOCKS][4]: each block's counts: signals sent, steps that put packets,
	                          // signals waited for, steps that got packets
	UBC_CHANNEL_BYTES = 2304,
	UBC_SIGNAL_SLOTS = UBC_MAX_STEPS,
	UBC_SIGNAL_UNITS = UBC_CHANNEL_BLOCKS,

	UBC_STAGING = 3 << 20, // bytes of each of the four staging buffers in separate memory

	UBC_EAGER_BYTES = 64 << 10, // data of the largest message that goes as packets
	UBC_BOX_BYTES = 4 * UBC_EAGER_BYTES, // two messages as packets, by parity

	// Pieces of a large message pass through a FIFO: a small one in the receiver's area, or one in separate memory.
	UBC_FIFO_SLOTS = 32, // of a FIFO in separate memory
	UBC_FIFO_SLOT_BYTES = 64 << 10,

	// A packet is 16 bytes: data (4), flag (4), data (4), flag (4). The flag is the epoch: a packet is complete when
	// both flags have it. A descriptor is the packet [0] signature and, where peers may access buffers, [1] source
	// word, [2] destination word, [3] word of the separate staging memory.
	UBC_PACKET = 16,
};

// A buffer's word: 0 if the buffer is staged, else DIRECT, the extent's number (14 bits from bit 48), and the offset in
// the extent (48 bits). For a staged message, THROUGH instead of DIRECT says that the word names a FIFO in separate
// memory.
#define UBC_DIRECT (1ull << 63)
#define UBC_THROUGH (1ull << 62)
#define UBC_EXTENT(word) ((ubc_u32)((word) >> 48) & 0x3fff)
#define UBC_OFFSET(word) ((word) & ((1ull << 48) - 1))

// Signatures are the engine's: kind 5 bits, type 4, reduction 3, root 12, count 40. Kind 0 is a refusal: the low 32
// bits are its code, and the root is how many operations beyond the first it refuses; ALL_OF_THEM means as many as the
// peers have put into their kernels. A group's signature: kind, type, 4 bits for its operations beyond the first, and
// bits that tell groups apart.
#define UBC_KIND(sig) ((ubc_u32)((sig) >> 59))
#define UBC_TYPE_OF(sig) ((ubc_u32)((sig) >> 55 & 15))
#define UBC_IS_BOOL(sig) (UBC_TYPE_OF(sig) == UBC_BOOL)
#define UBC_IS_SIGNED(sig) (UBC_TYPE_OF(sig) < UBC_UINT64 && UBC_TYPE_OF(sig) % 2 != 0) // for integers only
#define UBC_RED(sig) ((ubc_u32)((sig) >> 52) & 7)
#define UBC_COUNT(sig) ((sig) & ((1ull << 40) - 1))
#define UBC_BEYOND_ONE(sig)                                   \
	(UBC_KIND(sig) == UBC_GROUP ? (ubc_u32)((sig) >> 51) & 15 : \
	 UBC_KIND(sig) == 0         ? (ubc_u32)((sig) >> 40) & 0xfff : 0)

enum { UBC_ALL_OF_THEM = 0xfff };

// Types, numbered as in package dtype. Integers come first; of each width, the signed type is before the unsigned one.
enum { UBC_UINT64 = 8, UBC_BOOL = 13 };

enum { // kinds, as the engine numbers them
	UBC_ALL_REDUCE = 1,
	UBC_BARRIER = 2,
	UBC_REDUCE_SCATTER = 3,
	UBC_REDUCE = 4,
	UBC_ALL_GATHER = 5,
	UBC_BROADCAST = 6,
	UBC_GATHER = 7,
	UBC_SCATTER = 8,
	UBC_ALL_TO_ALL = 9,
	UBC_ALL_GATHER_V = 10,
	UBC_GATHER_V = 11,
	UBC_SCATTER_V = 12,
	UBC_ALL_TO_ALL_V = 13,
	UBC_GROUP = 31,
};

enum { // reductions, as the engine numbers them
	UBC_SUM = 1,
	UBC_PROD = 2,
	UBC_MIN = 3,
	UBC_MAX = 4,
	UBC_AVG = 5,
	UBC_PREMULSUM = 6,
};

// The parameters of every kernel. All ranks launch the same grid: it depends only on the signature and on the number of
// ranks.
typedef struct {
	// By distance: [0] is this rank's, [d] is of rank (rank + d) mod ranks. With more than PARAM_RANKS ranks only [0]
	// is set, and the others are in the area: use ubc_area and ubc_table.
	ubc_u64 area[UBC_PARAM_RANKS];  // device areas, as mapped here
	ubc_u64 table[UBC_PARAM_RANKS]; // u64 [MAX_EXTENTS] in own memory: where each extent of that rank is mapped here,
	                                // 0: not mapped
	ubc_u64 status;               // this rank's ubc_status, in page-locked host memory
	ubc_u64 src, dst;             // own buffers; 0: none
	ubc_u64 src_word, dst_word;   // for the descriptor
	ubc_u64 stage, stage_word;    // own separate staging memory and its word; 0 until peers have mapped it
	ubc_u64 multi;                // where the multicast object is mapped here, 0: none; see nvls.h
	ubc_u64 signature;
	ubc_u64 count;   // elements, as in the signature: of one slice or of the whole, depending on the kind; of a group
	                 // or a refusal the number of operations
	ubc_u64 timeout; // nanoseconds
	double factor;   // PREMULSUM multiplies the source by it first
	ubc_u32 rank, ranks;
	ubc_u32 op;      // reduction
	ubc_u32 root;
	ubc_u32 size;    // bytes of an element
	ubc_u32 push;    // 1: always through the receivers' staging memory; 0: ranks read peers' direct sources in place
	// The same on all ranks, in bytes:
	ubc_u32 row;     // a row of packets: half of it is data
	ubc_u32 little;  // each of the four staging buffers in an area
	ubc_u32 large;   // each of those in separate memory, which is used if all ranks have it
	// For kernels that use lines, the same on all ranks:
	ubc_u32 lines;    // offset of the rows of lines in an area
	ubc_u32 line_row; // bytes of a row
	ubc_u32 turns;    // turns of this grid that a row has room for, at least two
	ubc_u32 steps;    // turns that the operation takes
	ubc_u32 gated;    // 1: a phase of an operation between hosts, which is left out where the hosts have not agreed
} ubc_params;

// The parameters of the operations with parts of different lengths; p.count is 0. Parts are contiguous.
typedef struct {
	ubc_params p;
	struct {
		ubc_u64 send; // elements for each rank; ALL_GATHER_V sends the same ones to all
		ubc_u64 recv; // elements expected from each rank
	} count[UBC_MAX_RANKS];
} ubc_vector_params;

// One operation of a group.
typedef struct {
	ubc_u64 src, dst;
	ubc_u64 signature;
	double factor;  // as in ubc_params
	ubc_u32 begin;  // where its data begins in the group's data, in packets
	ubc_u32 unused;
} ubc_part;

// The parameters of a group kernel: up to MAX_GROUP all-reduces of one type. Together they have no more data than a
// single one may have as packets. p has the group's signature and no buffers; each rank chooses its own grid.
typedef struct {
	ubc_params p;
	ubc_u32 parts;
	ubc_u32 ordered; // 1: some parts use memory that other parts write, so they run in order, with one block
	ubc_part part[UBC_MAX_GROUP];
	ubc_u64 packets; // packets of all parts
} ubc_group_params;

enum { // errors
	UBC_OK = 0,
	UBC_MISMATCH = 1, // peer published another signature (theirs). Later operations still work, unless one of the two
	                  // signatures has more operations. Of a message: detail is 1 if this rank receives it
	UBC_REFUSED = 2,  // peer refused; theirs has the code
	UBC_TIMEOUT = 3,  // waited for peer longer than params.timeout
	UBC_ABORTED = 4,  // the host set abort
	UBC_NO_EXTENT = 5, // peer named an extent that is not mapped here; detail is its word
	UBC_COUNTS = 6,    // peer expects another count than a rank sends; detail is that rank << 48 + expected, theirs is
	                   // the count sent
	UBC_WRONG_PLACE = 7, // peer wants a message at detail, which is not where a copy engine is about to put it
};

// Kernels of one channel may run at the same time if their sides differ.
enum { UBC_SIDE_OUT = 0, UBC_SIDE_IN = 1, UBC_SIDE_BOTH = 2 };

enum { // what a step of a channel's kernel does
	UBC_COPY = 1,           // bytes from src to dst, one of which is the peer's
	UBC_SIGNAL_STEP = 2,    // ordered after all that the earlier steps have written
	UBC_RELAXED_SIGNAL = 3, // ordered only after earlier signals
	UBC_WAIT = 4,           // for a signal
	UBC_PUT_PACKETS = 5,    // bytes from src, as packets to the peer's dst
	UBC_GET_PACKETS = 6,    // bytes to dst, which arrive as packets at src
};

typedef struct {
	ubc_u64 what; // with the size of a packet in bytes from bit 32 on
	ubc_u64 dst, src, bytes;
} ubc_step;

// The parameters of a channel kernel, which does its steps in order. It has up to CHANNEL_BLOCKS blocks.
typedef struct {
	ubc_u64 mine, theirs; // the two ends, in the two areas
	ubc_u64 status;       // ubc_status of this end
	ubc_u64 timeout;      // nanoseconds, for each wait
	ubc_u32 salt_out, salt_in; // added to the packets' flags
	ubc_u32 peer;
	ubc_u32 side;
	ubc_u32 steps;
	ubc_u32 spread; // all blocks do the waits before this step; after it only block 0 does
	ubc_step step[UBC_MAX_STEPS];
} ubc_channel_params;

// The page on which kernels that carry data between the device and the host meet the host. An item is one kernel's run;
// the host counts them, and the next one begins only after the last answer.
enum {
	UBC_CARRY_SERIAL = 0, // u64: of the item whose kernel runs now or next; never 0. The host writes it
	UBC_CARRY_ANSWER = 8, // u64: serial << 32 + the parts whose results are in host memory. The host writes it
	UBC_CARRY_ID = 16,    // u32: params.id of the kernel
	UBC_CARRY_RUNG = 64,  // u64 [CARRY_BLOCKS]: serial << 32 + the parts whose shares a block has copied to the host, and at
	                      // the end one more, if params.tells
	UBC_CARRY_BLOCKS = 16,
};
#define UBC_CARRY_NOTHING 0xffffffffu // parts of an answer: the operation has failed, and nothing more is copied

// The parameters of such a kernel, of up to CARRY_BLOCKS blocks. The source and the destination consist of blocks of one
// size, and a part has the same bytes of each.
typedef struct {
	ubc_u64 status; // ubc_status
	ubc_u64 page;
	ubc_u64 src, dst;
	ubc_u64 in[2], out[2]; // the host's memory for even and for odd parts, of the source and of the destination
	ubc_u64 src_count, dst_count; // bytes of a block
	ubc_u64 most;                 // bytes of a block in a part, or less in the last one
	ubc_u32 src_blocks, dst_blocks;
	ubc_u32 parts; // at least 1
	ubc_u32 id;
	ubc_u32 tells;
	ubc_u32 unused;
} ubc_carry_params;

// The parameters of a kernel that is one step of such an item, between other kernels of the operation, its phases: ranks of a
// host combine their data before they go to the host's memory, and spread them afterwards. Its first step opens the gate, if the
// hosts agree, or shuts it: then the later ones do nothing, as the phases. It has up to CARRY_BLOCKS blocks, in all steps as many.
typedef struct {
	ubc_u64 status; // ubc_status
	ubc_u64 page;
	ubc_u64 gate;   // AREA_GATE: the serial while it is open
	ubc_u64 to[2], from[2], bytes[2]; // what is copied, after the answer if there is one
	ubc_u32 id;
	ubc_u32 rings;  // what the host is told: CARRY_RUNG; 0: nothing
	ubc_u32 awaits; // parts that the host must have answered; 0: none
	ubc_u32 opens;  // 1: the first step
} ubc_carry_step_params;

// The page on which a kernel that copies what the host tells it meets the host. The host counts the runs of the kernels that
// have the page; they run one after the other.
enum {
	UBC_COPIER_SERIAL = 0,  // u64: of the run that begins next. The host writes it, before it tells a run its last copy
	UBC_COPIER_TOLD = 8,    // u64: serial << 32 + how many copies it has told that run
	UBC_COPIER_DONE = 64,   // u64 [COPIER_BLOCKS]: serial << 32 + 1 + how many copies a block has done its share of; COPIER_ENDED
	                        // once it has done the last one: the page is not used any more
	UBC_COPIER_BLOCKS = 16,
	UBC_COPIER_COPIES = 256, // ubc_copy_told [COPIER_RING]
	UBC_COPIER_RING = 120,   // copies that are told and not done, at most
};
#define UBC_COPIER_ENDED 0xffffffffu

typedef struct {
	ubc_u64 to, from, bytes;
	ubc_u64 last; // not 0: the kernel ends with it
} ubc_copy_told;

// The parameters of such a kernel, of up to COPIER_BLOCKS blocks.
typedef struct {
	ubc_u64 status; // ubc_status
	ubc_u64 page;
} ubc_copier_params;

// How a message travels, in the upper 8 bits of its head; then its type, 8 bits, and its elements, 48 bits.
enum {
	UBC_BY_PACKETS = 1, // up to EAGER_BYTES
	UBC_BY_PUSH = 2,    // to the destination, or through the FIFO
	UBC_AWAIT = 3,      // by push, but a copy engine moves the data of some sends. AWAIT is the part before its copy;
	                    // of a receive only the answer. It is the lane's only message.
	UBC_DONE = 4,       // the part after the copy
};
#define UBC_WAY(head) ((ubc_u32)((head) >> 56))
#define UBC_WHAT(head) ((head) & ((1ull << 56) - 1))

typedef struct {
	ubc_u64 at;    // the source or the destination
	ubc_u64 bytes;
	ubc_u64 word;  // the destination's word, for receives and for sends by a copy engine; in a message to oneself it is
	               // the address
	ubc_u64 head;
} ubc_message;

// Messages with one rank in one direction; they go in order.
typedef struct {
	ubc_u64 area;  // the peer's area, as mapped here
	ubc_u64 table; // of the peer's extents; 0: the peer is this rank itself
	ubc_u64 fifo;  // receives: where pieces arrive; sends: the small FIFO at the peer
	ubc_u64 fifo_word; // receives: 0 for the small FIFO, else the word of the separate FIFO, with THROUGH
	ubc_u32 peer;
	ubc_u32 receives;        // 1: receives, 0: sends
	ubc_u32 first, messages; // the range in params.message
	ubc_u32 block, blocks;   // the range of blocks in the grid
} ubc_lane;

// The parameters of a message kernel. Its lanes run at the same time. No two running kernels share a lane.
typedef struct {
	ubc_u64 area; // this rank's
	ubc_u64 status;
	ubc_u64 timeout; // nanoseconds, for each wait
	ubc_u64 boxes;   // their offset in an area
	ubc_u32 slots, slot_bytes; // of the small FIFOs
	ubc_u32 rank;
	ubc_u32 lanes;   // in order of their blocks
	ubc_lane lane[UBC_MAX_LANES];
	ubc_message message[UBC_MAX_MESSAGES];
} ubc_mail_params;

// What a kernel reports to its host. An operation's first error stays until the host has taken it (error = 0).
typedef struct {
	ubc_u32 abort; // set by the host, or by a kernel that broke the communicator: all waits end
	ubc_u32 error; // written last
	ubc_u32 peer;
	ubc_u32 epoch;
	ubc_u64 mine, theirs; // signatures, or heads of messages
	ubc_u64 detail;
	ubc_u32 claim; // message kernels: 1 once one has an error to report, 2 if it ends all messages
	ubc_u32 more;  // message kernels: mismatched messages that were not reported because another one was; only grows
	ubc_u32 narrow; // other kernels: the last operation for which the staging memory in areas was too small
} ubc_status;

#endif
