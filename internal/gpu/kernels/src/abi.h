// What the host and the kernels agree on: the layout of a rank's device area, of the parameters of every kernel, and of
// the status words that a kernel leaves for the host. abi.go mirrors it, and a test compares the two.
#ifndef UBC_ABI_H
#define UBC_ABI_H

typedef unsigned int ubc_u32;
typedef unsigned long long ubc_u64;

// There are two sets of kernels: for up to 8 ranks, whose parameters name all areas, and, with -DUBC_WIDE, for up to as
// many as there are in the largest domains of links today. Areas are laid out for as many ranks as the set takes.
enum {
	UBC_PARAM_RANKS = 8, // whose areas parameters have room for
#ifdef UBC_WIDE
	UBC_MANY = 1,
	UBC_MAX_RANKS = 72,
#else
	UBC_MANY = 0,
	UBC_MAX_RANKS = UBC_PARAM_RANKS,
#endif
	UBC_MAX_BLOCKS = 256,
	UBC_MAX_EXTENTS = 1024, // exported allocations of a rank at a time
	UBC_MAX_CHANNELS = 512, // ends of channels of a rank at a time, at most
	UBC_MAX_STEPS = 8,      // of a channel's kernel
	UBC_MAX_LANES = 16,     // of a kernel of messages
	UBC_MAX_MESSAGES = 64,  // of a kernel of messages
	UBC_MAX_GROUP = 16,     // operations of a group's kernel
	UBC_CHANNEL_BLOCKS = 128, // of the grid of a channel's kernel, at most

	// A rank's device area, which peers map. Offsets in bytes.
	UBC_AREA_EPOCH = 0,       // u32 [MAX_BLOCKS]: the last operation that each block has done; own use
	UBC_AREA_ERROR = 1024,    // u32: the last operation that had an error; own use
	UBC_AREA_BROKEN = 1028,   // u32: the operation that broke the communicator, 0: none; those behind it do nothing; own use
	UBC_AREA_FAILED = 1032,   // u32: 1 after a wait for a message ended without it; own use
	UBC_AREA_EXTRA = 1036,    // u32: operations beyond one of each kernel, for their numbers; own use
	UBC_AREA_DESC = 4096,     // packets [2][MAX_RANKS][4]: by parity, row r written by rank r
#ifdef UBC_WIDE
	UBC_AREA_PEERS = 2048,    // u64 [2][MAX_RANKS]: what params.area and params.table have in the other set; own use
	UBC_AREA_COUNTS = 16 << 10,
	UBC_AREA_FLAG = 352 << 10,
	UBC_AREA_MAIL = 496 << 10,
	UBC_AREA_CREDIT = 640 << 10,
	UBC_AREA_PACKETS = 644 << 10,
#else
	UBC_AREA_COUNTS = 8192,   // packets [2][MAX_RANKS][2 * MAX_RANKS]: likewise; counts that r sends to each rank, then
	                          // those that it expects from each
	UBC_AREA_FLAG = 16384,    // u64 [MAX_RANKS][MAX_BLOCKS]: epoch << 32 + step; row r written by rank r's blocks
	UBC_AREA_MAIL = 32 << 10, // [MAX_RANKS] of MAIL_BYTES: this rank's side of its messages with each rank
	UBC_AREA_CREDIT = 48 << 10, // u64 [MAX_BLOCKS]: epoch << 32 + messages that the right neighbour's blocks have taken
	UBC_AREA_PACKETS = 64 << 10, // [2 parities][ranks - 1] of params.row: what the rank at distance 1, 2 ... has sent
#endif
	// Behind it, as the host lays it out by the number of ranks and by what the communicator is to take: a little staging
	// memory, four buffers of params.little; [ranks] of BOX_BYTES, packets of messages from each rank; for each peer a
	// small FIFO; ends of channels, of CHANNEL_BYTES.

	// This rank's side of its messages with a peer: of those that it sends, then of those that it receives. Messages are
	// counted from 1. What has parity is [2], by the number of the message mod 2.
	UBC_OUT_SENT = 0,       // u64: messages sent; own use
	UBC_OUT_TURN = 8,       // u64: the message that all blocks may begin with; own use
	UBC_OUT_ARRIVALS = 16,  // u32: blocks that are done with their message; own use
	UBC_OUT_CREDIT = 64,    // u64: messages that the peer has done with; the peer writes it
	UBC_OUT_POSTED = 128,   // packets [2][2]: the destination's word and what it is for, posted by the peer
	UBC_OUT_FIFO_CREDIT = 256, // u64 [FIFO_SLOTS]: the last piece that was taken out of the slot; the peer writes it
	UBC_IN_RECEIVED = 1024, // u64: messages received; own use
	UBC_IN_TURN = 1032,     // u64, and
	UBC_IN_ARRIVALS = 1040, // u32: as above
	UBC_IN_PUSHED = 1088,   // u64: the last message that has been written to its destination; the peer writes it
	UBC_IN_HEAD = 1152,     // packets [2]: what the message is; the peer writes them
	UBC_IN_FIFO_FILLED = 1280, // u64 [FIFO_SLOTS]: the last piece that was put into the slot; the peer writes it
	UBC_MAIL_BYTES = 2048,

	// An end of a channel. The peer adds to the first words; all else is for own use. Signals are counted from 0, and
	// each is worth SIGNAL_UNITS, of which every block that moved what comes before it adds some: number k is there when
	// word k mod SIGNAL_SLOTS has SIGNAL_UNITS * (k / SIGNAL_SLOTS + 1) of them. A kernel sends no two signals into one
	// word, so that a block that is ahead never makes up for one that is behind. All counts may wrap around.
	UBC_CHANNEL_SIGNALS = 0,  // u32 [SIGNAL_SLOTS]: units of the signals that the peer has sent
	UBC_CHANNEL_FAILED = 64,  // u32: 1 after the first error, which ends the channel
	UBC_CHANNEL_COUNTS = 256, // u32 [CHANNEL_BLOCKS][4]: signals sent, steps that put packets, signals waited for, steps
	                          // that got packets, as each block counts them
	UBC_CHANNEL_BYTES = 2304,
	UBC_SIGNAL_SLOTS = UBC_MAX_STEPS,
	UBC_SIGNAL_UNITS = UBC_CHANNEL_BLOCKS,

	UBC_STAGING = 3 << 20, // bytes of each of the four staging buffers in memory of their own

	UBC_EAGER_BYTES = 64 << 10, // data of the largest message that travels as packets
	UBC_BOX_BYTES = 4 * UBC_EAGER_BYTES, // twice the packets of a message, by parity

	// Pieces of a large message pass through a FIFO: a small one in the receiver's area, or one in memory of its own.
	UBC_FIFO_SLOTS = 32, // of one in memory of its own
	UBC_FIFO_SLOT_BYTES = 64 << 10,

	// A packet is 16 bytes: data (4), flag (4), data (4), flag (4). The flag is the epoch, so that a packet is complete
	// when both flags have it. Of a descriptor: [0] signature; where buffers are of use to peers also [1] source word,
	// [2] destination word, [3] word of the staging memory of its own.
	UBC_PACKET = 16,
};

// A buffer's word: 0 if it is staged, else DIRECT, the number of the extent (14 bits from bit 48), and the offset in it
// (48 bits). Where a message is staged, THROUGH instead of DIRECT says that the place is a FIFO of its own.
#define UBC_DIRECT (1ull << 63)
#define UBC_THROUGH (1ull << 62)
#define UBC_EXTENT(word) ((ubc_u32)((word) >> 48) & 0x3fff)
#define UBC_OFFSET(word) ((word) & ((1ull << 48) - 1))

// Signatures are the engine's: kind 5 bits, type 4, reduction 3, root 12, count 40. Kind 0 is a refusal, whose
// low 32 bits are its code, and whose root how many operations beyond one it refuses; ALL_OF_THEM: as many as the peers
// have put into their kernels. A group's: kind, type, then 4 bits for its operations beyond one, then what tells groups
// apart.
#define UBC_KIND(sig) ((ubc_u32)((sig) >> 59))
#define UBC_TYPE_OF(sig) ((ubc_u32)((sig) >> 55 & 15))
#define UBC_IS_BOOL(sig) (UBC_TYPE_OF(sig) == UBC_BOOL)
#define UBC_IS_SIGNED(sig) (UBC_TYPE_OF(sig) < UBC_UINT64 && UBC_TYPE_OF(sig) % 2 != 0) // of integers
#define UBC_RED(sig) ((ubc_u32)((sig) >> 52) & 7)
#define UBC_COUNT(sig) ((sig) & ((1ull << 40) - 1))
#define UBC_BEYOND_ONE(sig)                                   \
	(UBC_KIND(sig) == UBC_GROUP ? (ubc_u32)((sig) >> 51) & 15 : \
	 UBC_KIND(sig) == 0         ? (ubc_u32)((sig) >> 40) & 0xfff : 0)

enum { UBC_ALL_OF_THEM = 0xfff };

// Types, as package dtype numbers them: first the integers, of each width the signed one before the unsigned one.
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

// The parameters of every kernel. A kernel's grid is the same on all ranks, a function of what the signature says and
// of the number of ranks.
typedef struct {
	// In order of distance: [0] is this rank's, [d] that of rank (rank + d) mod ranks. Where there are more ranks than
	// that, there is [0] alone, and the others stand in the area: ubc_area and ubc_table find them.
	ubc_u64 area[UBC_PARAM_RANKS];  // device areas, as mapped here
	ubc_u64 table[UBC_PARAM_RANKS]; // u64 [MAX_EXTENTS] in own memory: where each extent of that rank is mapped here, 0: not
	ubc_u64 status;               // ubc_status in page-locked host memory, this rank's
	ubc_u64 src, dst;             // own buffers; 0 if there is none
	ubc_u64 src_word, dst_word;   // for the descriptor
	ubc_u64 stage, stage_word;    // own staging memory beside the area, and its word: 0 until peers have it mapped
	ubc_u64 signature;
	ubc_u64 count;   // as in the signature: elements of one slice, or of the whole, as the kind has it; of a group or a
	                 // refusal the operations
	ubc_u64 timeout; // nanoseconds
	double factor;   // PREMULSUM: what the source is multiplied by first
	ubc_u32 rank, ranks;
	ubc_u32 op;      // reduction
	ubc_u32 root;
	ubc_u32 size;    // bytes of an element
	ubc_u32 push;    // 1: always by way of the receivers' staging memory; 0: peers' direct sources are read where they are
	// The same on all ranks, in bytes:
	ubc_u32 row;     // of a row of packets: half of it is data
	ubc_u32 little;  // of each of the four staging buffers in an area, and
	ubc_u32 large;   // of those in memory of their own, which are used if all ranks have them
	// Of kernels that go by lines, the same on all ranks:
	ubc_u32 lines;    // where the rows of lines are in an area,
	ubc_u32 line_row; // how long a row is,
	ubc_u32 turns;    // how many turns of this grid it has, two at least,
	ubc_u32 steps;    // and how many turns the operation takes
} ubc_params;

// The parameters of the operations whose parts have lengths that differ, of count 0. Parts lie one after the other.
typedef struct {
	ubc_params p;
	struct {
		ubc_u64 send; // elements for each rank; of ALL_GATHER_V the same ones for all
		ubc_u64 recv; // elements expected from each rank
	} count[UBC_MAX_RANKS];
} ubc_vector_params;

// One of a group's operations.
typedef struct {
	ubc_u64 src, dst;
	ubc_u64 signature;
	double factor;  // as in ubc_params
	ubc_u32 begin;  // where its data begins among that of the group, in packets
	ubc_u32 unused;
} ubc_part;

// The parameters of a group's kernel: up to MAX_GROUP all-reduces of one type, whose data is no more than one of them may
// have as packets. p has the group's signature, and no buffers; its grid is this rank's choice.
typedef struct {
	ubc_params p;
	ubc_u32 parts;
	ubc_u32 ordered; // 1: parts touch what others write, and go in order; then there is one block
	ubc_part part[UBC_MAX_GROUP];
	ubc_u64 packets; // of all
} ubc_group_params;

enum { // errors
	UBC_OK = 0,
	UBC_MISMATCH = 1, // peer published another signature (theirs); no loss: what follows works, unless one of the two is
	                  // of more operations than the other. Of a message, detail is 1 if this rank receives it
	UBC_REFUSED = 2,  // peer refused: the code is in theirs
	UBC_TIMEOUT = 3,  // waited for peer longer than params.timeout
	UBC_ABORTED = 4,  // the host set abort
	UBC_NO_EXTENT = 5, // peer named an extent that is not mapped here: detail is its word
	UBC_COUNTS = 6,    // peer expects another count than a rank sends: detail is that rank << 48 + expected, theirs sent
	UBC_ASTRAY = 7,    // peer wants a message elsewhere (detail) than where a copy engine is about to put it
};

// Kernels of one channel may run at the same time if they are of different sides.
enum { UBC_SIDE_OUT = 0, UBC_SIDE_IN = 1, UBC_SIDE_BOTH = 2 };

enum { // what a step of a channel's kernel does
	UBC_COPY = 1,           // bytes from src to dst, of which one is the peer's
	UBC_SIGNAL_STEP = 2,    // after all that the steps before have written
	UBC_RELAXED_SIGNAL = 3, // after nothing but earlier signals
	UBC_WAIT = 4,           // for a signal
	UBC_PUT_PACKETS = 5,    // bytes from src, as packets to the peer's dst
	UBC_GET_PACKETS = 6,    // bytes to dst, that come as packets to src
};

typedef struct {
	ubc_u64 what; // from bit 32 on: the bytes of a packet
	ubc_u64 dst, src, bytes;
} ubc_step;

// The parameters of a channel's kernel, which does its steps in order. It has up to CHANNEL_BLOCKS blocks.
typedef struct {
	ubc_u64 mine, theirs; // the two ends, in the areas
	ubc_u64 status;       // ubc_status of this end
	ubc_u64 timeout;      // nanoseconds, of each wait
	ubc_u32 salt_out, salt_in; // of the packets' flags
	ubc_u32 peer;
	ubc_u32 side;
	ubc_u32 steps;
	ubc_u32 spread; // steps before this one need all blocks, those after it block 0 and signals
	ubc_step step[UBC_MAX_STEPS];
} ubc_channel_params;

// The way of a message, in the upper 8 bits of its head; then its type, 8 bits, and its elements, 48 bits.
enum {
	UBC_BY_PACKETS = 1, // up to EAGER_BYTES
	UBC_BY_PUSH = 2,    // to the destination, or through the FIFO
	UBC_AWAIT = 3,      // by push, of which a copy engine does some sends: what comes before its copy, of a receive
	                    // the answer alone; it is the lane's only message,
	UBC_DONE = 4,       // and what comes after it
};
#define UBC_WAY(head) ((ubc_u32)((head) >> 56))
#define UBC_WHAT(head) ((head) & ((1ull << 56) - 1))

typedef struct {
	ubc_u64 at;    // the source or the destination
	ubc_u64 bytes;
	ubc_u64 word;  // the destination's: of a receive, and of what a copy engine does; a rank's own is the address itself
	ubc_u64 head;
} ubc_message;

// Messages with one rank, one way, which go in order.
typedef struct {
	ubc_u64 area;  // the peer's, as mapped here
	ubc_u64 table; // of the peer's extents; 0 for this rank itself
	ubc_u64 fifo;  // of receives: where pieces come, of sends: the small FIFO at the peer
	ubc_u64 fifo_word; // of receives: 0: that is the small one, else its word, with THROUGH
	ubc_u32 peer;
	ubc_u32 receives;        // 1, or 0: sends
	ubc_u32 first, messages; // of params.message
	ubc_u32 block, blocks;   // of the grid: the first one, and how many
} ubc_lane;

// The parameters of a kernel of messages. Its lanes run at the same time, and no other kernel's that has one of them.
typedef struct {
	ubc_u64 area; // this rank's
	ubc_u64 status;
	ubc_u64 timeout; // nanoseconds, of each wait
	ubc_u64 boxes;   // where they are in an area
	ubc_u32 slots, slot_bytes; // of the small FIFOs
	ubc_u32 rank;
	ubc_u32 lanes;   // in order of their blocks
	ubc_lane lane[UBC_MAX_LANES];
	ubc_message message[UBC_MAX_MESSAGES];
} ubc_mail_params;

// What a kernel tells its host. The first error of an operation stays until the host has taken it (error = 0).
typedef struct {
	ubc_u32 abort; // set by the host, or by a kernel that broke the communicator: all waits end
	ubc_u32 error; // written last
	ubc_u32 peer;
	ubc_u32 epoch;
	ubc_u64 mine, theirs; // signatures, or heads of messages
	ubc_u64 detail;
	ubc_u32 claim; // of kernels of messages: 1 once one has an error to tell, 2 if messages end with it
	ubc_u32 more;  // of those: how many messages did not match without being told, since another one was; only grows
	ubc_u32 narrow; // of the others: the last operation that staging memory in areas was little for
} ubc_status;

#endif
