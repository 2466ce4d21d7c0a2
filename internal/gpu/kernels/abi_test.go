package kernels

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestABI compares the Go side with abi.h.
func TestABI(t *testing.T) {
	var p Params
	var s Status
	var c ChannelParams
	var carry CarryParams
	var step CarryStepParams
	var page CarryPage
	var copier CopierParams
	var copies CopierPage
	var told CopyTold
	var x Step
	var v VectorParams
	var m MailParams
	var l Lane
	var y Message
	var g GroupParams
	var part Part
	values := map[string]uintptr{
		"UBC_BOOL": uintptr(dtype.Bool), "UBC_IS_BOOL(13ull << 55)": 1, "UBC_IS_BOOL(5ull << 59 | 2ull << 55)": 0,
		"UBC_UINT64":         uintptr(dtype.Uint64),
		"sizeof(ubc_params)": unsafe.Sizeof(p), "sizeof(ubc_status)": unsafe.Sizeof(s),
		"offsetof(ubc_params, area)": unsafe.Offsetof(p.Area), "offsetof(ubc_params, table)": unsafe.Offsetof(p.Table),
		"offsetof(ubc_params, status)": unsafe.Offsetof(p.Status), "offsetof(ubc_params, src)": unsafe.Offsetof(p.Src),
		"offsetof(ubc_params, dst)": unsafe.Offsetof(p.Dst), "offsetof(ubc_params, src_word)": unsafe.Offsetof(p.SrcWord),
		"offsetof(ubc_params, dst_word)":  unsafe.Offsetof(p.DstWord),
		"offsetof(ubc_params, signature)": unsafe.Offsetof(p.Signature),
		"offsetof(ubc_params, count)":     unsafe.Offsetof(p.Count),
		"offsetof(ubc_params, timeout)":   unsafe.Offsetof(p.Timeout),
		"offsetof(ubc_params, factor)":    unsafe.Offsetof(p.Factor), "offsetof(ubc_params, rank)": unsafe.Offsetof(p.Rank),
		"offsetof(ubc_params, ranks)": unsafe.Offsetof(p.Ranks), "offsetof(ubc_params, op)": unsafe.Offsetof(p.Op),
		"offsetof(ubc_params, root)": unsafe.Offsetof(p.Root), "offsetof(ubc_params, size)": unsafe.Offsetof(p.Size),
		"offsetof(ubc_params, push)": unsafe.Offsetof(p.Push), "offsetof(ubc_params, stage)": unsafe.Offsetof(p.Stage),
		"offsetof(ubc_params, multi)":      unsafe.Offsetof(p.Multi),
		"offsetof(ubc_params, stage_word)": unsafe.Offsetof(p.StageWord), "offsetof(ubc_params, row)": unsafe.Offsetof(p.Row),
		"offsetof(ubc_params, little)": unsafe.Offsetof(p.Little), "offsetof(ubc_params, large)": unsafe.Offsetof(p.Large),
		"offsetof(ubc_status, narrow)": unsafe.Offsetof(s.Narrow), "UBC_FIFO_SLOTS": fifoSlots, "UBC_FIFO_SLOT_BYTES": fifoBytes,
		"UBC_THROUGH | 3ull << 48 | 5": uintptr(Through(3, 5)), "UBC_EXTENT(UBC_DIRECT | UBC_THROUGH | 1023ull << 48 | 5)": 1023,
		"UBC_OFFSET(UBC_DIRECT | UBC_THROUGH | 1023ull << 48 | 5)": 5, "UBC_MAX_EXTENTS <= UBC_EXTENT(-1ull)": 1,
		"offsetof(ubc_params, lines)":    unsafe.Offsetof(p.Lines),
		"offsetof(ubc_params, line_row)": unsafe.Offsetof(p.LineRow), "offsetof(ubc_params, turns)": unsafe.Offsetof(p.Turns),
		"offsetof(ubc_params, steps)": unsafe.Offsetof(p.Steps), "offsetof(ubc_params, gated)": unsafe.Offsetof(p.Gated),
		"offsetof(ubc_status, abort)": unsafe.Offsetof(s.Abort),
		"offsetof(ubc_status, error)": unsafe.Offsetof(s.Error), "offsetof(ubc_status, peer)": unsafe.Offsetof(s.Peer),
		"offsetof(ubc_status, epoch)": unsafe.Offsetof(s.Epoch), "offsetof(ubc_status, mine)": unsafe.Offsetof(s.Mine),
		"offsetof(ubc_status, theirs)": unsafe.Offsetof(s.Theirs), "offsetof(ubc_status, detail)": unsafe.Offsetof(s.Detail),
		"UBC_PARAM_RANKS": Narrow, "UBC_MAX_BLOCKS": MaxBlocks, "UBC_MAX_EXTENTS": MaxExtents,
		"UBC_STAGING": large,
		"UBC_DIRECT":  uintptr(Word(0, 0)), "UBC_DIRECT | 3ull << 48 | 5": uintptr(Word(3, 5)),
		"UBC_MISMATCH": Mismatch, "UBC_REFUSED": Refused, "UBC_TIMEOUT": Timeout, "UBC_ABORTED": Aborted,
		"UBC_NO_EXTENT": NoExtent, "UBC_OK": OK, "UBC_COUNTS": Counts,
		"offsetof(ubc_vector_params, count)": unsafe.Offsetof(v.Counts),
		"sizeof(ubc_carry_params)":           unsafe.Sizeof(carry), "UBC_CARRY_BLOCKS": CarryBlocks, "UBC_CARRY_NOTHING": CarryNothing,
		"offsetof(ubc_carry_params, status)":     unsafe.Offsetof(carry.Status),
		"offsetof(ubc_carry_params, page)":       unsafe.Offsetof(carry.Page),
		"offsetof(ubc_carry_params, src)":        unsafe.Offsetof(carry.Src),
		"offsetof(ubc_carry_params, dst)":        unsafe.Offsetof(carry.Dst),
		"offsetof(ubc_carry_params, in)":         unsafe.Offsetof(carry.In),
		"offsetof(ubc_carry_params, out)":        unsafe.Offsetof(carry.Out),
		"offsetof(ubc_carry_params, src_count)":  unsafe.Offsetof(carry.SrcCount),
		"offsetof(ubc_carry_params, dst_count)":  unsafe.Offsetof(carry.DstCount),
		"offsetof(ubc_carry_params, most)":       unsafe.Offsetof(carry.Most),
		"offsetof(ubc_carry_params, src_blocks)": unsafe.Offsetof(carry.SrcBlocks),
		"offsetof(ubc_carry_params, dst_blocks)": unsafe.Offsetof(carry.DstBlocks),
		"offsetof(ubc_carry_params, parts)":      unsafe.Offsetof(carry.Parts),
		"offsetof(ubc_carry_params, id)":         unsafe.Offsetof(carry.ID),
		"offsetof(ubc_carry_params, tells)":      unsafe.Offsetof(carry.Tells),
		"sizeof(ubc_copier_params)":              unsafe.Sizeof(copier),
		"sizeof(ubc_copy_told)":                  unsafe.Sizeof(told),
		"offsetof(ubc_copier_params, page)":      unsafe.Offsetof(copier.Page),
		"offsetof(ubc_copy_told, from)":          unsafe.Offsetof(told.From),
		"offsetof(ubc_copy_told, bytes)":         unsafe.Offsetof(told.Bytes),
		"offsetof(ubc_copy_told, last)":          unsafe.Offsetof(told.Last),
		"UBC_COPIER_SERIAL":                      unsafe.Offsetof(copies.Serial),
		"UBC_COPIER_TOLD":                        unsafe.Offsetof(copies.Told),
		"UBC_COPIER_DONE":                        unsafe.Offsetof(copies.Done),
		"UBC_COPIER_COPIES":                      unsafe.Offsetof(copies.Copies),
		"UBC_COPIER_BLOCKS":                      CopierBlocks,
		"UBC_COPIER_RING":                        CopierRing,
		"UBC_COPIER_ENDED":                       CopierEnded,
		"sizeof(ubc_carry_step_params)":          unsafe.Sizeof(step), "UBC_AREA_GATE": AreaGate,
		"offsetof(ubc_carry_step_params, status)": unsafe.Offsetof(step.Status),
		"offsetof(ubc_carry_step_params, page)":   unsafe.Offsetof(step.Page),
		"offsetof(ubc_carry_step_params, gate)":   unsafe.Offsetof(step.Gate),
		"offsetof(ubc_carry_step_params, to)":     unsafe.Offsetof(step.To),
		"offsetof(ubc_carry_step_params, from)":   unsafe.Offsetof(step.From),
		"offsetof(ubc_carry_step_params, bytes)":  unsafe.Offsetof(step.Bytes),
		"offsetof(ubc_carry_step_params, id)":     unsafe.Offsetof(step.ID),
		"offsetof(ubc_carry_step_params, rings)":  unsafe.Offsetof(step.Rings),
		"offsetof(ubc_carry_step_params, awaits)": unsafe.Offsetof(step.Awaits),
		"offsetof(ubc_carry_step_params, opens)":  unsafe.Offsetof(step.Opens),
		"UBC_CARRY_SERIAL":                        unsafe.Offsetof(page.Serial),
		"UBC_CARRY_ANSWER":                        unsafe.Offsetof(page.Answer),
		"UBC_CARRY_ID":                            unsafe.Offsetof(page.ID),
		"UBC_CARRY_RUNG":                          unsafe.Offsetof(page.Rung),
		"sizeof(ubc_channel_params)":              unsafe.Sizeof(c), "sizeof(ubc_step)": unsafe.Sizeof(x),
		"offsetof(ubc_channel_params, mine)":     unsafe.Offsetof(c.Mine),
		"offsetof(ubc_channel_params, theirs)":   unsafe.Offsetof(c.Theirs),
		"offsetof(ubc_channel_params, status)":   unsafe.Offsetof(c.Status),
		"offsetof(ubc_channel_params, timeout)":  unsafe.Offsetof(c.Timeout),
		"offsetof(ubc_channel_params, salt_out)": unsafe.Offsetof(c.SaltOut),
		"offsetof(ubc_channel_params, salt_in)":  unsafe.Offsetof(c.SaltIn),
		"offsetof(ubc_channel_params, peer)":     unsafe.Offsetof(c.Peer),
		"offsetof(ubc_channel_params, side)":     unsafe.Offsetof(c.Side),
		"offsetof(ubc_channel_params, steps)":    unsafe.Offsetof(c.Steps),
		"offsetof(ubc_channel_params, spread)":   unsafe.Offsetof(c.Spread),
		"offsetof(ubc_channel_params, step)":     unsafe.Offsetof(c.Step),
		"offsetof(ubc_step, what)":               unsafe.Offsetof(x.What), "offsetof(ubc_step, dst)": unsafe.Offsetof(x.Dst),
		"offsetof(ubc_step, src)": unsafe.Offsetof(x.Src), "offsetof(ubc_step, bytes)": unsafe.Offsetof(x.Bytes),
		"UBC_MAX_CHANNELS": MaxChannels, "UBC_MAX_STEPS": MaxSteps, "UBC_CHANNEL_BYTES": ChannelBytes,
		"UBC_SIDE_OUT": SideOut, "UBC_SIDE_IN": SideIn,
		"UBC_SIDE_BOTH": SideBoth, "UBC_COPY": StepCopy, "UBC_SIGNAL_STEP": StepSignal,
		"UBC_RELAXED_SIGNAL": StepRelaxedSignal, "UBC_WAIT": StepWait, "UBC_PUT_PACKETS": StepPutPackets,
		"UBC_GET_PACKETS":    StepGetPackets,
		"UBC_CHANNEL_BLOCKS": ChannelGrid, "UBC_MAX_STEPS <= UBC_SIGNAL_SLOTS": 1, // one signal of a kernel in a slot
		"UBC_CHANNEL_BLOCKS <= UBC_SIGNAL_UNITS":                                            1, // all blocks add units
		"(UBC_SIGNAL_SLOTS & UBC_SIGNAL_SLOTS - 1) == 0":                                    1,
		"UBC_SIGNAL_UNITS % UBC_SIGNAL_SLOTS":                                               0, // 2^32 signals add 0
		"UBC_CHANNEL_SIGNALS + 4 * UBC_SIGNAL_SLOTS <= UBC_CHANNEL_FAILED":                  1,
		"UBC_CHANNEL_COUNTS % 16 == 0 && UBC_CHANNEL_BYTES % 16 == 0":                       1,
		"UBC_CHANNEL_COUNTS + 16 * UBC_CHANNEL_BLOCKS <= UBC_CHANNEL_BYTES":                 1,
		"UBC_AREA_DESC + 8 * UBC_MAX_RANKS * UBC_PACKET <= UBC_AREA_COUNTS":                 1,
		"UBC_AREA_COUNTS + 4 * UBC_MAX_RANKS * UBC_MAX_RANKS * UBC_PACKET <= UBC_AREA_FLAG": 1,
		"UBC_AREA_CREDIT + 8 * UBC_MAX_BLOCKS <= UBC_AREA_PACKETS":                          1,
		"UBC_AREA_FLAG + 8 * UBC_MAX_RANKS * UBC_MAX_BLOCKS <= UBC_AREA_MAIL":               1,
		"UBC_AREA_MAIL + UBC_MAX_RANKS * UBC_MAIL_BYTES <= UBC_AREA_CREDIT":                 1,
		"UBC_OUT_FIFO_CREDIT + 8 * UBC_FIFO_SLOTS <= UBC_IN_RECEIVED":                       1,
		"UBC_IN_FIFO_FILLED + 8 * UBC_FIFO_SLOTS <= UBC_MAIL_BYTES":                         1,
		"offsetof(ubc_status, claim)":                                                       unsafe.Offsetof(s.Claim), "UBC_WRONG_PLACE": WrongPlace,
		"UBC_BOX_BYTES": boxBytes, "UBC_EAGER_BYTES": EagerBytes,
		"UBC_MAX_MESSAGES": MaxMessages, "UBC_BY_PACKETS": ByPackets, "UBC_BY_PUSH": ByPush, "UBC_AWAIT": Await,
		"UBC_DONE": Done, "UBC_WHAT(UBC_DIRECT | 5)": 5, "UBC_WAY(7ull << 56 | 5)": 7,
		"sizeof(ubc_mail_params)": unsafe.Sizeof(m), "UBC_MAX_LANES": MaxLanes, "sizeof(ubc_lane)": unsafe.Sizeof(l),
		"sizeof(ubc_message)": unsafe.Sizeof(y), "offsetof(ubc_mail_params, area)": unsafe.Offsetof(m.Area),
		"offsetof(ubc_mail_params, status)":     unsafe.Offsetof(m.Status),
		"offsetof(ubc_mail_params, timeout)":    unsafe.Offsetof(m.Timeout),
		"offsetof(ubc_mail_params, boxes)":      unsafe.Offsetof(m.Boxes),
		"offsetof(ubc_mail_params, rank)":       unsafe.Offsetof(m.Rank),
		"offsetof(ubc_mail_params, lanes)":      unsafe.Offsetof(m.Lanes),
		"offsetof(ubc_mail_params, lane)":       unsafe.Offsetof(m.Lane),
		"offsetof(ubc_mail_params, message)":    unsafe.Offsetof(m.Message),
		"offsetof(ubc_mail_params, slots)":      unsafe.Offsetof(m.Slots),
		"offsetof(ubc_mail_params, slot_bytes)": unsafe.Offsetof(m.Slot),
		"offsetof(ubc_lane, fifo)":              unsafe.Offsetof(l.FIFO), "offsetof(ubc_lane, fifo_word)": unsafe.Offsetof(l.FIFOWord),
		"offsetof(ubc_lane, area)": unsafe.Offsetof(l.Area), "offsetof(ubc_lane, table)": unsafe.Offsetof(l.Table),
		"offsetof(ubc_lane, peer)": unsafe.Offsetof(l.Peer), "offsetof(ubc_lane, receives)": unsafe.Offsetof(l.Receives),
		"offsetof(ubc_lane, first)": unsafe.Offsetof(l.First), "offsetof(ubc_lane, messages)": unsafe.Offsetof(l.Messages),
		"offsetof(ubc_lane, block)": unsafe.Offsetof(l.Block), "offsetof(ubc_lane, blocks)": unsafe.Offsetof(l.Blocks),
		"offsetof(ubc_message, at)": unsafe.Offsetof(y.At), "offsetof(ubc_message, bytes)": unsafe.Offsetof(y.Bytes),
		"offsetof(ubc_message, word)": unsafe.Offsetof(y.Word), "offsetof(ubc_message, head)": unsafe.Offsetof(y.Head),
		"sizeof(ubc_group_params)": unsafe.Sizeof(g), "sizeof(ubc_part)": unsafe.Sizeof(part), "UBC_MAX_GROUP": MaxGroup,
		"offsetof(ubc_group_params, parts)":   unsafe.Offsetof(g.Parts),
		"offsetof(ubc_group_params, ordered)": unsafe.Offsetof(g.Ordered),
		"offsetof(ubc_group_params, part)":    unsafe.Offsetof(g.Part),
		"offsetof(ubc_group_params, packets)": unsafe.Offsetof(g.Packets),
		"offsetof(ubc_part, src)":             unsafe.Offsetof(part.Src), "offsetof(ubc_part, dst)": unsafe.Offsetof(part.Dst),
		"offsetof(ubc_part, signature)": unsafe.Offsetof(part.Signature),
		"offsetof(ubc_part, factor)":    unsafe.Offsetof(part.Factor),
		"offsetof(ubc_part, begin)":     unsafe.Offsetof(part.Begin),
	}
	for _, t := range dtype.All() {
		name := t.String()
		signed := map[bool]uintptr{true: 1}[strings.HasPrefix(name, "int")]
		if signed == 1 || strings.HasPrefix(name, "uint") { // the kernels ask only for integers
			values[fmt.Sprintf("UBC_IS_SIGNED(3ull << 59 | %dull << 55 | 1ull << 52)", t)] = signed
		}
	}
	// The emulator has a smaller value, so that small tests have longer parts; a C compiler does not see it.
	port, err := os.ReadFile("src/port.h")
	require.NoError(t, err)
	require.True(t, strings.Contains(string(port), fmt.Sprintf("\tUBC_SMALL = %d << 10,\n", SmallPart>>10)), "UBC_SMALL")
	require.Len(t, Bytes(&p), int(unsafe.Sizeof(p)))
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	for _, set := range []struct {
		name                 string
		ranks                int // the most ranks that it is for
		packets, peers, many uintptr
	}{{"narrow", Narrow, areaPackets, 0, 0}, {"wide", MaxRanks, widePackets, widePeers, 1}} {
		own := maps.Clone(values)
		own["UBC_MAX_RANKS"], own["UBC_MANY"] = uintptr(set.ranks), set.many
		own["UBC_AREA_PACKETS"] = set.packets
		own["sizeof(ubc_vector_params)"] = uintptr(len(v.Bytes(set.ranks)))
		program := "#include <stddef.h>\n#include \"abi.h\"\n"
		if set.peers != 0 {
			program = "#define UBC_WIDE\n" + program
			own["UBC_AREA_PEERS"] = set.peers
			own["UBC_AREA_PEERS + 16 * UBC_MAX_RANKS <= UBC_AREA_DESC"] = 1
		}
		for expr, v := range own {
			program += fmt.Sprintf("_Static_assert((%s) == %dull, %q);\n", expr, v, expr)
		}
		file := filepath.Join(t.TempDir(), "abi.c")
		require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
		out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-I", "src", file).CombinedOutput()
		require.NoError(t, err, "%s: %s", set.name, out)
	}
}
