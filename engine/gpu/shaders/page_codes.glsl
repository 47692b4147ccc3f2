// Values of a page: read as they are kept, and decoded later, so that many are on their way at once.
#include "halves.glsl"

// Four values of a page as they are kept, or four codes where they have scales.
uvec4 four_codes(uint64_t plane, uint i) {
    if (TYPE == F32) {
        return floatBitsToUint(FourFloats(plane).v[i]);
    } else if (TYPE == F16) {
        return uvec4(FourHalves(plane).v[i], 0, 0);
    }
    return uvec4(Uints(plane).v[i], 0, 0, 0);
}

// Two values or codes of a page, as `four_codes` has four.
uvec4 two_codes(uint64_t plane, uint i) {
    if (TYPE == F32) {
        return uvec4(FourHalves(plane).v[i], 0, 0);
    } else if (TYPE == F16) {
        return uvec4(Uints(plane).v[i], 0, 0, 0);
    }
    return uvec4(uint(Halves(plane).v[i]), 0, 0, 0);
}

vec4 decoded(uvec4 codes) {
    if (TYPE == F32) {
        return uintBitsToFloat(codes);
    } else if (TYPE == F16) {
        return vec4(halves_to_floats(codes.x), halves_to_floats(codes.y));
    }
    int w = int(codes.x);
    return vec4(bitfieldExtract(w, 0, 8), bitfieldExtract(w, 8, 8), bitfieldExtract(w, 16, 8),
                bitfieldExtract(w, 24, 8));
}

// One of them.
uint one_code(uint64_t plane, uint i) {
    if (TYPE == F32) {
        return Uints(plane).v[i];
    } else if (TYPE == F16) {
        return uint(Halves(plane).v[i]);
    }
    return uint(int(SignedBytes(plane).v[i]));
}

float one_decoded(uint code) {
    if (TYPE == F32) {
        return uintBitsToFloat(code);
    } else if (TYPE == F16) {
        return halves_to_floats(code).x;
    }
    return float(int(code));
}

// The f16 bits of the scale of a block of elements at one position, and at four.
uint scale_bits(uint64_t scales, uint block, uint pos) {
    return uint(Halves(scales).v[block * KV_PAGE + pos]);
}

vec4 four_scales(uint64_t scales, uint block, uint four) {
    uvec2 h = FourHalves(scales).v[block * (KV_PAGE / 4) + four];
    return vec4(halves_to_floats(h.x), halves_to_floats(h.y));
}
