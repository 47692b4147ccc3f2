// The codes of packed weights. A panel has sixteen rows, one to a lane; it is a series of records (one for each unit of
// the source's format), and a record is a head with scales and then, for each block of 32 columns, planes of bits. The
// engine says how they lie (`format/mod.rs`, `format/planes.rs`). Everything is addressed in words of four bytes.

#extension GL_EXT_integer_dot_product : require

// Constants 0 to 8 are the format: see `ops/products/format.rs`, which has the same numbers.
layout(constant_id = 0) const uint CODES = 0;
layout(constant_id = 1) const uint LEVELS = 0;
layout(constant_id = 2) const uint SCALES = 0;
// Blocks of a record, words of its head, words of the planes of a block.
layout(constant_id = 3) const uint BLOCKS = 1;
layout(constant_id = 4) const uint HEAD = 8;
layout(constant_id = 5) const uint PLANES = 64;
// Whether each half of a block has its own scale, and whether there are minima.
layout(constant_id = 6) const bool HALVES = false;
layout(constant_id = 7) const bool MINS = false;
// What is to be subtracted from a code.
layout(constant_id = 8) const int OFFSET = 0;

const uint RECORD = HEAD + BLOCKS * PLANES;

// Values of CODES: which bits of a code lie in which plane.
const uint BYTES_PLANE = 0;
const uint NIBBLES = 1;
const uint NIBBLES_AND_BITS = 2;
const uint NIBBLES_AND_PAIRS = 3;
const uint PAIRS = 4;
const uint PAIRS_AND_BITS = 5;
const uint BITS = 6;
const uint PAIRS_AND_DIRECTIONS = 7;

// Values of LEVELS: which numbers codes stand for.
const uint PLAIN = 0;
const uint SIGNED = 1;
const uint E2M1 = 2;
const uint IQ4 = 3;
const uint IQ2 = 4;
const uint IQ3_XXS = 5;
const uint IQ3_S = 6;
const uint IQ1 = 7;

// Word `i` of four columns of a lane.
struct Codes {
    uint v[8];
};

uint in_each_byte(uint bits) {
    return bits * 0x01010101u;
}

// What memory has of the codes of a block and lane; how many words there are depends on CODES.
struct Planes {
    uint v[8];
};

// Reads them. Nothing is made of them here, so that who has other work in between need not wait.
Planes read_planes(Uints panel, uint block, uint lane) {
    uint start = block / BLOCKS * RECORD + HEAD + block % BLOCKS * PLANES;
    const uint words = CODES == BYTES_PLANE ? 8
        : CODES == NIBBLES ? 4
        : CODES == NIBBLES_AND_BITS ? 5
        : CODES == NIBBLES_AND_PAIRS ? 6
        : CODES == PAIRS || CODES == PAIRS_AND_DIRECTIONS ? 2
        : CODES == PAIRS_AND_BITS ? 3 : 1;
    Planes planes;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        planes.v[i] = 0;
        if (i < words) {
            planes.v[i] = panel.v[start + 16 * i + lane];
        }
    }
    if (CODES == PAIRS_AND_DIRECTIONS) {
        planes.v[2] = panel.v[start + 32 + lane / 4];
    }
    return planes;
}

// The codes of the planes.
Codes codes_in(Planes planes) {
    Codes codes;
    if (CODES == BYTES_PLANE) {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] = planes.v[v];
        }
    } else if (CODES == NIBBLES || CODES == NIBBLES_AND_BITS || CODES == NIBBLES_AND_PAIRS) {
        [[unroll]] for (uint p = 0; p < 4; p++) {
            codes.v[p] = planes.v[p] & 0x0f0f0f0fu;
            codes.v[p + 4] = (planes.v[p] >> 4) & 0x0f0f0f0fu;
        }
    } else if (CODES == BITS) {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] = ((planes.v[0] >> v) & 0x01010101u) << 1;
        }
    } else {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] = (planes.v[v / 4] >> (2 * (v % 4))) & 0x03030303u;
        }
    }
    if (CODES == NIBBLES_AND_BITS) {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] |= ((planes.v[4] >> v) & 0x01010101u) << 4;
        }
    } else if (CODES == NIBBLES_AND_PAIRS) {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] |= ((planes.v[4 + v / 4] >> (2 * (v % 4))) & 0x03030303u) << 4;
        }
    } else if (CODES == PAIRS_AND_BITS) {
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] |= ((planes.v[2] >> v) & 0x01010101u) << 2;
        }
    }
    return codes;
}

// A number of IQ4_NL and IQ4_XS: eight bits of `code`, which is below sixteen.
uint iq4_level(uint code) {
    uint low = (code & 4) == 0 ? 0xbfad9881u : 0xf6eaddcfu;
    uint high = (code & 4) == 0 ? 0x26190d01u : 0x71594535u;
    uint word = (code & 8) == 0 ? low : high;
    return (word >> (8 * (code & 3))) & 0xffu;
}

// Magnitudes with the sign that bit 3 of each code has, all raised by `most`, which no magnitude exceeds.
uint with_signs(uint magnitudes, uint codes, uint most) {
    uint negative = ((codes >> 3) & 0x01010101u) * 0xffu;
    return in_each_byte(most) + magnitudes - 2 * (magnitudes & negative);
}

// What four codes stand for, plus OFFSET: bytes that are at most 127, or signed ones without offset.
uint levels(uint codes) {
    uint three = codes & 0x07070707u;
    if (LEVELS == SIGNED) {
        return codes ^ 0x80808080u;
    } else if (LEVELS == E2M1) {
        // 0 1 2 3 4 6 8 12: from 4 on the two low bits count again, and 7 has 2 more.
        uint again = codes & ((codes >> 2) & 0x01010101u) * 3;
        uint seven = again & (again >> 1) & 0x01010101u;
        return with_signs(three + again + 2 * seven, codes, 16);
    } else if (LEVELS == IQ4) {
        uint word = 0;
        [[unroll]] for (uint j = 0; j < 32; j += 8) {
            word |= iq4_level((codes >> j) & 15u) << j;
        }
        return word;
    } else if (LEVELS == IQ2) {
        // 8 25 43, negative with bit 2. There is no fourth.
        uint two = codes & 0x03030303u;
        return with_signs(17 * two + 0x08080808u + ((two >> 1) & 0x01010101u), codes << 1, 64);
    } else if (LEVELS == IQ3_XXS) {
        // 4 12 20 28 36 44 52 62, negative with bit 3.
        uint seven = three & (three >> 1) & (three >> 2) & 0x01010101u;
        return with_signs(8 * three + 0x04040404u + 2 * seven, codes, 64);
    } else if (LEVELS == IQ3_S) {
        // Odd numbers up to 15, negative with bit 3.
        return with_signs(2 * three + 0x01010101u, codes, 16);
    } else if (LEVELS == IQ1) {
        // -7 1 9, and with bit 2 -9 -1 7.
        uint down = (codes >> 2) & 0x01010101u;
        return 8 * (codes & 0x03030303u) + 2 * (0x01010101u - down);
    }
    return codes;
}

// The numbers of a block of a lane, plus OFFSET.
Codes codes_of(Planes planes, uint lane) {
    Codes codes = codes_in(planes);
    if (CODES == PAIRS_AND_DIRECTIONS) {
        // A bit for each eight columns.
        uint directions = planes.v[2] >> (8 * (lane % 4));
        [[unroll]] for (uint v = 0; v < 8; v++) {
            codes.v[v] |= in_each_byte(((directions >> (v / 2)) & 1u) << 2);
        }
    }
    [[unroll]] for (uint v = 0; v < 8; v++) {
        codes.v[v] = levels(codes.v[v]);
    }
    return codes;
}

// Those of block `block`.
Codes block_codes(Uints panel, uint block, uint lane) {
    return codes_of(read_planes(panel, block, lane), lane);
}

// `sum` plus the product of four numbers with four.
int dot4(int sum, uint a, uint b) {
    return sum + dotPacked4x8EXT(int(a), int(b));
}

// `sum` plus the product of half a block with its activations.
int dot_half(int sum, uvec4 codes, uvec4 q) {
    sum = dot4(sum, codes.x, q.x);
    sum = dot4(sum, codes.y, q.y);
    sum = dot4(sum, codes.z, q.z);
    return dot4(sum, codes.w, q.w);
}
