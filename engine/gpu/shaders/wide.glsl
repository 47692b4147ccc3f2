// Quotients, roots and roundings of f64 to nearest even, digit by digit: what devices compute for these is their own affair.
// Sums, differences and products are rounded so anyway.
#extension GL_EXT_shader_explicit_arithmetic_types_float64 : require

const uint WIDE_BIAS = 1023;

// The significand of a finite x above 0, with its leading one at bit 52, and its exponent. No x here is subnormal.
uint64_t wide_significand(double x, out int e) {
    uvec2 words = unpackDouble2x32(x);
    e = int(words.y >> 20 & 0x7ffu) - int(WIDE_BIAS);
    return uint64_t(words.y & 0xfffffu | 0x100000u) << 32 | words.x;
}

// Of 54 bits, rounded to 53: the number of that exponent. `rest` says whether there is more behind them.
double wide_of(uint64_t bits, bool rest, int e) {
    uint64_t m = bits >> 1;
    if ((bits & 1) != 0 && (rest || (m & 1) != 0)) {
        m += 1;
    }
    m += uint64_t(e + int(WIDE_BIAS) - 1) << 52;
    return packDouble2x32(uvec2(uint(m), uint(m >> 32)));
}

bool is_wide_number(double x) {
    return (unpackDouble2x32(x).y >> 20 & 0x7ffu) != 0x7ffu;
}

// a / b for b above 0 that is a number.
double wide_div(double a, double b) {
    if (a == 0.0 || !is_wide_number(a)) {
        return a;
    }
    int e_a, e_b;
    uint64_t rest = wide_significand(abs(a), e_a), m = wide_significand(b, e_b);
    if (rest < m) {
        rest <<= 1;
        e_a -= 1;
    }
    uint64_t bits = 0;
    for (int i = 0; i < 54; i++) {
        bits <<= 1;
        if (rest >= m) {
            rest -= m;
            bits |= 1;
        }
        rest <<= 1;
    }
    double quotient = wide_of(bits, rest != 0, e_a - e_b);
    return a < 0.0 ? -quotient : quotient;
}

// The root of x, which is not below 0.
double wide_sqrt(double x) {
    if (x == 0.0 || !is_wide_number(x)) {
        return x;
    }
    int e;
    uint64_t m = wide_significand(x, e);
    if ((e & 1) != 0) {
        m <<= 1;
        e -= 1;
    }
    uint64_t bits = 0, rest = 0;
    for (int i = 0; i < 54; i++) {
        // Two digits of the radicand give one of the root.
        rest = rest << 2 | (i < 27 ? m >> (52 - 2 * i) & 3 : 0);
        uint64_t trial = bits << 2 | 1;
        bits <<= 1;
        if (rest >= trial) {
            rest -= trial;
            bits |= 1;
        }
    }
    return wide_of(bits, rest != 0, e / 2);
}

// The f32 nearest to x, ties to even.
float wide_to_f32(double x) {
    uvec2 words = unpackDouble2x32(x);
    uint sign = words.y & 0x80000000u;
    int e = int(words.y >> 20 & 0x7ffu) - int(WIDE_BIAS) + 127;
    if (!is_wide_number(x)) {
        return x == x ? uintBitsToFloat(sign | 0x7f800000u) : NOT_A_NUMBER;
    }
    if (e >= 255) {
        return uintBitsToFloat(sign | 0x7f800000u);
    }
    if (e < -23) {
        return uintBitsToFloat(sign);
    }
    uint64_t m = uint64_t(words.y & 0xfffffu | 0x100000u) << 32 | words.x;
    int drop = e >= 1 ? 29 : 30 - e;
    uint64_t rest = m & ((uint64_t(1) << drop) - 1), half_way = uint64_t(1) << (drop - 1);
    uint whole = uint(m >> drop);
    if (rest > half_way || (rest == half_way && (whole & 1) != 0)) {
        whole += 1;
    }
    uint bits = e >= 1 ? whole + (uint(e - 1) << 23) : whole;
    return uintBitsToFloat(sign | bits);
}
