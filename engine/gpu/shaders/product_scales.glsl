// Scales and minima of packed weights: heads of records, each with the values of sixteen rows. An element is
// `scale * (code - OFFSET) + min`.

// Values of SCALES: what a head has.
const uint HALF = 0;
const uint HALF_AND_MIN = 1;
const uint K_MINS = 2;
const uint Q2_K = 3;
const uint Q3_K = 4;
const uint Q6_K = 5;
const uint IQ4_XS = 6;
const uint E8M0 = 7;
const uint E4M3 = 8;
const uint EIGHTHS = 9;
const uint ODD_2 = 10;
const uint ODD_3_XXS = 11;
const uint ODD_3_S = 12;
const uint ODD_1 = 13;

// Those of a block: of its halves, or in the first place of the whole.
struct Scales {
    vec2 scale;
    vec2 min;
};

// Value `i` of f16 at the words `at`.
float half_at(Uints panel, uint at, uint i) {
    return f16_to_f32((panel.v[at + i / 2] >> (16 * (i % 2))) & 0xffffu);
}

// Byte `i` at the words `at`.
uint byte_at(Uints panel, uint at, uint i) {
    return (panel.v[at + i / 4] >> (8 * (i % 4))) & 0xffu;
}

// `mask` of a word from bit `from` on.
uint bits_at(uint word, uint from, uint mask) {
    return (word >> from) & mask;
}

// Scale and minimum of Q4_K and Q5_K: six bits each of three words.
vec2 k_mins(Uints panel, uint head, uint block, uint lane, float d) {
    float neg_dmin = 0.0 - half_at(panel, head + 8, lane);
    uint a = panel.v[head + 16 + lane], b = panel.v[head + 32 + lane];
    uint at = 8 * (block % 4);
    uint scale = bits_at(a, at, 63), low = bits_at(b, at, 63);
    if (block >= 4) {
        uint c = panel.v[head + 48 + lane];
        scale = bits_at(c, at, 15) | bits_at(a, at + 6, 3) << 4;
        low = bits_at(c, at + 4, 15) | bits_at(b, at + 6, 3) << 4;
    }
    return vec2(d * float(scale), neg_dmin * float(low));
}

// Scale `i` of Q3_K: four bits of one word, two of another.
float q3_k(Uints panel, uint head, uint i, uint lane, float d) {
    uint low = panel.v[head + 8 + i % 8 / 4 * 16 + lane];
    uint high = panel.v[head + 40 + lane];
    uint both = bits_at(low, 8 * (i % 4) + 4 * (i / 8), 15)
        | bits_at(high, 8 * (i % 4) + 2 * (i / 4), 3) << 4;
    return d * float(int(both) - 32);
}

// Scale of block `block` of IQ4_XS.
float iq4_xs(Uints panel, uint head, uint block, uint lane, float d) {
    uint high = bits_at(panel.v[head + 8 + lane / 2], 16 * (lane % 2) + 2 * block, 3);
    uint low = bits_at(panel.v[head + 16 + lane], 4 * block, 15);
    return d * float(int(low | high << 4) - 32);
}

// `2^(e - 128)`; of the least exponents it is a subnormal number.
float e8m0(uint e) {
    return uintBitsToFloat(e < 2 ? 0x200000u << e : e < 255 ? (e - 1) << 23 : 0x7f800000u);
}

// Half of a number with four bits of exponent and three of mantissa.
float e4m3(uint bits) {
    return bits < 8 ? float(bits) * 0.0009765625 : uintBitsToFloat((bits << 20) + (119u << 23));
}

// Scale `i` of the formats whose scales are odd numbers times a power of two, of a nibble each.
float odd(Uints panel, uint head, uint i, uint lane, float d) {
    uint nibble = bits_at(panel.v[head + 8 + i / 8 * 16 + lane], 4 * (i % 8), SCALES == ODD_1 ? 7 : 15);
    float unit = SCALES == ODD_3_S ? 1.0 : SCALES == ODD_3_XXS ? 0.25 : 0.125;
    return d * float(2 * nibble + 1) * unit;
}

// Scale `i` of a record, where it has nothing but scales.
float scale_of(Uints panel, uint head, uint i, uint lane) {
    if (SCALES == E8M0) {
        return e8m0(byte_at(panel, head, lane));
    } else if (SCALES == E4M3) {
        return e4m3(byte_at(panel, head + 4 * i, lane));
    }
    float d = half_at(panel, head, lane);
    switch (SCALES) {
    case Q3_K: return q3_k(panel, head, i, lane, d);
    case Q6_K: return d * float(int(byte_at(panel, head + 8 + 4 * i, lane) << 24) >> 24);
    case IQ4_XS: return iq4_xs(panel, head, i, lane, d);
    case ODD_1:
    case ODD_2:
    case ODD_3_XXS:
    case ODD_3_S: return odd(panel, head, i, lane, d);
    }
    return d;
}

// Scales and minima of a block of a record.
Scales record_scales(Uints panel, uint head, uint block, uint lane) {
    Scales s = Scales(vec2(0.0), vec2(0.0));
    if (!MINS) {
        s.scale.x = scale_of(panel, head, HALVES ? 2 * block : block, lane);
        if (HALVES) {
            s.scale.y = scale_of(panel, head, 2 * block + 1, lane);
        }
        return s;
    }
    float d = half_at(panel, head, lane);
    if (SCALES == HALF_AND_MIN) {
        s.scale.x = d;
        s.min.x = half_at(panel, head + 8, lane);
    } else if (SCALES == K_MINS) {
        vec2 both = k_mins(panel, head, block, lane, d);
        s.scale.x = both.x;
        s.min.x = both.y;
    } else if (SCALES == EIGHTHS) {
        // A nibble: three bits of an odd number, and the direction of an eighth of it.
        uint nibble = panel.v[head + 8 + lane] >> (4 * block);
        s.scale.x = d * float((nibble & 7) * 2 + 1);
        s.min.x = s.scale.x * uintBitsToFloat((nibble << 28) & 0x80000000u | 0x3e000000u);
    } else {
        float neg_dmin = 0.0 - half_at(panel, head + 8, lane);
        uint low = byte_at(panel, head + 16 + 8 * block, lane);
        uint high = byte_at(panel, head + 20 + 8 * block, lane);
        s.scale = d * vec2(float(low & 15u), float(high & 15u));
        s.min = neg_dmin * vec2(float(low >> 4), float(high >> 4));
    }
    return s;
}

// Scales and minima of block `block` of a lane.
Scales block_scales(Uints panel, uint block, uint lane) {
    return record_scales(panel, block / BLOCKS * RECORD, block % BLOCKS, lane);
}
