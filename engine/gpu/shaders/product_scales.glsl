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

// What memory has of the scales of a block and lane; how many words there are, and of what, depends on SCALES. The first has d.
struct Heads {
    uint v[5];
};

// Whether scales are d times odd numbers that are a nibble each.
const bool ODD = SCALES == ODD_1 || SCALES == ODD_2 || SCALES == ODD_3_XXS || SCALES == ODD_3_S;

// Reads them. Nothing is made of them here, so that who has other work in between need not wait.
Heads read_heads(Uints panel, uint block, uint lane) {
    uint head = block / BLOCKS * RECORD, i = block % BLOCKS;
    // Numbers of the scales of the block, or of its halves.
    uint first = HALVES ? 2 * i : i, second = first + 1;
    Heads heads = Heads(uint[5](0, 0, 0, 0, 0));
    if (SCALES == E8M0) {
        heads.v[0] = panel.v[head + lane / 4];
        return heads;
    } else if (SCALES == E4M3) {
        heads.v[0] = panel.v[head + 4 * first + lane / 4];
        heads.v[1] = panel.v[head + 4 * second + lane / 4];
        return heads;
    }
    heads.v[0] = panel.v[head + lane / 2];
    if (SCALES == HALF_AND_MIN || SCALES == K_MINS || SCALES == Q2_K) {
        heads.v[1] = panel.v[head + 8 + lane / 2];
    }
    if (SCALES == K_MINS) {
        heads.v[2] = panel.v[head + 16 + lane];
        heads.v[3] = panel.v[head + 32 + lane];
        heads.v[4] = panel.v[head + 48 + lane];
    } else if (SCALES == Q2_K) {
        heads.v[2] = panel.v[head + 16 + 8 * i + lane / 4];
        heads.v[3] = panel.v[head + 20 + 8 * i + lane / 4];
    } else if (SCALES == Q3_K) {
        heads.v[1] = panel.v[head + 8 + first % 8 / 4 * 16 + lane];
        heads.v[2] = panel.v[head + 8 + second % 8 / 4 * 16 + lane];
        heads.v[3] = panel.v[head + 40 + lane];
    } else if (SCALES == Q6_K) {
        heads.v[1] = panel.v[head + 8 + 4 * first + lane / 4];
        heads.v[2] = panel.v[head + 8 + 4 * second + lane / 4];
    } else if (SCALES == IQ4_XS) {
        heads.v[1] = panel.v[head + 8 + lane / 2];
        heads.v[2] = panel.v[head + 16 + lane];
    } else if (SCALES == EIGHTHS) {
        heads.v[1] = panel.v[head + 8 + lane];
    } else if (ODD) {
        heads.v[1] = panel.v[head + 8 + first / 8 * 16 + lane];
        heads.v[2] = HALVES ? panel.v[head + 8 + second / 8 * 16 + lane] : 0;
    }
    return heads;
}

// The value of f16 that a word has for a lane.
float half_of(uint word, uint lane) {
    return f16_to_f32((word >> (16 * (lane % 2))) & 0xffffu);
}

// The byte that a word has for a lane.
uint byte_of(uint word, uint lane) {
    return (word >> (8 * (lane % 4))) & 0xffu;
}

// `mask` of a word from bit `from` on.
uint bits_at(uint word, uint from, uint mask) {
    return (word >> from) & mask;
}

// Scale and minimum of Q4_K and Q5_K: six bits each of three words.
vec2 k_mins(Heads heads, uint block, uint lane, float d) {
    float neg_dmin = 0.0 - half_of(heads.v[1], lane);
    uint a = heads.v[2], b = heads.v[3], c = heads.v[4];
    uint at = 8 * (block % 4);
    uint scale = bits_at(a, at, 63), low = bits_at(b, at, 63);
    if (block >= 4) {
        scale = bits_at(c, at, 15) | bits_at(a, at + 6, 3) << 4;
        low = bits_at(c, at + 4, 15) | bits_at(b, at + 6, 3) << 4;
    }
    return vec2(d * float(scale), neg_dmin * float(low));
}

// Scale `i` of Q3_K: four bits of one word, two of another.
float q3_k(uint low, uint high, uint i, float d) {
    uint both = bits_at(low, 8 * (i % 4) + 4 * (i / 8), 15)
        | bits_at(high, 8 * (i % 4) + 2 * (i / 4), 3) << 4;
    return d * float(int(both) - 32);
}

// Scale of block `block` of IQ4_XS.
float iq4_xs(Heads heads, uint block, uint lane, float d) {
    uint high = bits_at(heads.v[1], 16 * (lane % 2) + 2 * block, 3);
    uint low = bits_at(heads.v[2], 4 * block, 15);
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
float odd(uint word, uint i, float d) {
    uint nibble = bits_at(word, 4 * (i % 8), SCALES == ODD_1 ? 7 : 15);
    float unit = SCALES == ODD_3_S ? 1.0 : SCALES == ODD_3_XXS ? 0.25 : 0.125;
    return d * float(2 * nibble + 1) * unit;
}

// Scale `i` of a record, the first or second (`half`) of its block, where it has nothing but scales.
float scale_in(Heads heads, uint block, uint i, uint half_number, uint lane) {
    uint word = heads.v[1 + half_number];
    if (SCALES == E8M0) {
        return e8m0(byte_of(heads.v[0], lane));
    } else if (SCALES == E4M3) {
        return e4m3(byte_of(heads.v[half_number], lane));
    }
    float d = half_of(heads.v[0], lane);
    if (SCALES == Q3_K) {
        return q3_k(word, heads.v[3], i, d);
    } else if (SCALES == Q6_K) {
        return d * float(int(byte_of(word, lane) << 24) >> 24);
    } else if (SCALES == IQ4_XS) {
        return iq4_xs(heads, block, lane, d);
    } else if (ODD) {
        return odd(word, i, d);
    }
    return d;
}

// Scales and minima of block `block` of a panel, for a lane.
Scales scales_of(Heads heads, uint block, uint lane) {
    block = block % BLOCKS;
    Scales s = Scales(vec2(0.0), vec2(0.0));
    if (!MINS) {
        s.scale.x = scale_in(heads, block, HALVES ? 2 * block : block, 0, lane);
        if (HALVES) {
            s.scale.y = scale_in(heads, block, 2 * block + 1, 1, lane);
        }
        return s;
    }
    float d = half_of(heads.v[0], lane);
    if (SCALES == HALF_AND_MIN) {
        s.scale.x = d;
        s.min.x = half_of(heads.v[1], lane);
    } else if (SCALES == K_MINS) {
        vec2 both = k_mins(heads, block, lane, d);
        s.scale.x = both.x;
        s.min.x = both.y;
    } else if (SCALES == EIGHTHS) {
        // A nibble: three bits of an odd number, and the direction of an eighth of it.
        uint nibble = heads.v[1] >> (4 * block);
        s.scale.x = d * float((nibble & 7) * 2 + 1);
        s.min.x = s.scale.x * uintBitsToFloat((nibble << 28) & 0x80000000u | 0x3e000000u);
    } else {
        float neg_dmin = 0.0 - half_of(heads.v[1], lane);
        uint low = byte_of(heads.v[2], lane), high = byte_of(heads.v[3], lane);
        s.scale = d * vec2(float(low & 15u), float(high & 15u));
        s.min = neg_dmin * vec2(float(low >> 4), float(high >> 4));
    }
    return s;
}

// Scales and minima of block `block` of a lane.
Scales block_scales(Uints panel, uint block, uint lane) {
    return scales_of(read_heads(panel, block, lane), block, lane);
}
