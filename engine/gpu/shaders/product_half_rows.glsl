// Rows of activations as products of f16 read them: a power of two, and then the values divided by it, in f16. A row has
// whole blocks of 32 columns; behind its last value are zeros.

// What values are multiplied with beside: so the greatest of a row is in 2^14..2^15, far from what f16 does not hold.
const int LIFT = 14;

// Eight values.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Eights { uvec4 v[]; };

// Bytes before a row's values: its power of two in f32, or NaN where a value is none or infinite.
const uint ROW_HEAD_BYTES = 16;

// Bytes of a row of so many blocks.
uint half_row_bytes(uint blocks) {
    return ROW_HEAD_BYTES + blocks * 64;
}

// The exponent of a magnitude's bits: -127 where it is subnormal or 0, 128 of infinities and NaN.
int exponent(uint bits) {
    return int((bits >> 23) & 0xffu) - 127;
}

// `2^e` for e up to 127, or `2^-126` where that is too little.
float power(int e) {
    return uintBitsToFloat(uint(max(e, -126) + 127) << 23);
}

// `x * 2^e` for e up to 254, in two steps: neither is infinite where the result is finite.
float times_power(float x, int e) {
    int first = e / 2;
    return x * power(first) * power(e - first);
}
