// What ops over the slots of sequences have in common: their parts, the rule by which states get rid of subnormal
// numbers.
//
// Columns of a state are independent of each other. Those whose outputs are sums down a column in one order are cut into
// segments, each with an invocation that holds its values in registers over all rows of a part. A sum goes from segment to
// segment: in a turn, the first segment has a row, the second the row before it, and so on.

// Columns of a workgroup, and segments of a column.
const uint COLUMNS = 32;
const uint SEGMENTS = 4;
// Rows that are in shared memory: those that the segments are at, and the next.
const uint RING = SEGMENTS + 1;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Parts { uvec4 v[]; };

// Rows of one sequence.
struct Part {
    // Where the state behind them goes, and where the state before them is.
    uint slot;
    uint from;
    // Modulo a number of which FLUSH_EVERY is a divisor.
    uint first_pos;
    uint first_row;
    uint n_rows;
};

Part part_of(Parts parts, uint index) {
    uvec4 words = parts.v[index];
    return Part(words.x, words.y >> 16, words.y & 0xffffu, words.z, words.w);
}

// After a row at a position that is the last of so many, subnormal numbers of a state become 0.
const uint FLUSH_EVERY = 64;

bool flushes(Part part, uint row) {
    return (part.first_pos + row) % FLUSH_EVERY == FLUSH_EVERY - 1;
}

float without_subnormals(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) == 0 ? 0.0 : x;
}

// Values of states before a slot's.
uint64_t slot_start(uint slot, uint per_slot) {
    return uint64_t(slot) * per_slot;
}
