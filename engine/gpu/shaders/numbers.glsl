// Arithmetic whose bits are those of the CPU's kernels without fused steps.
//
// Sums, differences and products of floats are rounded to nearest even by every device: the compiler of these shaders marks each
// as not to be contracted. Everything else that rounds stands here. A NaN has no payload.
//
// Where a device flushes subnormal numbers, sums and products that would be subnormal are 0. Functions here never make a
// subnormal number on their way to one that is none: those of all devices are the same.

const float LOG2_E = 1.44269504088896340736;
const float NOT_A_NUMBER = uintBitsToFloat(0x7fc00000u);
const float LEAST_NORMAL = uintBitsToFloat(0x00800000u);
const float INFINITE = uintBitsToFloat(0x7f800000u);

// The 24 bits of a finite number that is not 0, and its exponent: `m * 2^(e - 150)`, `m` in 2^23..2^24.
void significand(uint bits, out uint m, out int e) {
    m = bits & 0x7fffffu;
    e = int((bits >> 23) & 0xffu);
    if (e == 0) {
        int missing = 23 - findMSB(m);
        m <<= missing;
        e = 1 - missing;
    } else {
        m |= 0x800000u;
    }
}

// `a / b` of finite numbers that are not 0, but for the sign. The quotient of the significands is estimated by the device, and made
// exact by its remainder; it has 25 bits, the last of which decides, with the remainder, how it is rounded.
uint quotient(uint a, uint b) {
    uint ma, mb;
    int ea, eb;
    significand(a, ma, ea);
    significand(b, mb, eb);
    int k = ma >= mb ? 24 : 25;
    float inverse = 1.0 / float(mb);
    uint q = uint(float(ma) * inverse * float(1 << k));
    int r = int((ma << k) - q * mb);
    int more = int(floor(float(r) * inverse));
    q += uint(more);
    r -= more * int(mb);
    if (r < 0) {
        r += int(mb);
        q -= 1;
    }
    if (r >= int(mb)) {
        r -= int(mb);
        q += 1;
    }
    int e = ea - eb - k + 151;
    if (e >= 255) {
        return 0x7f800000u;
    }
    // How many bits go: more than one where the quotient is subnormal.
    int drop = e >= 1 ? 1 : min(2 - e, 31);
    uint m = q >> drop;
    uint rest = q & ((1u << drop) - 1);
    uint half_way = 1u << (drop - 1);
    if (rest > half_way || (rest == half_way && (r != 0 || (m & 1) != 0))) {
        m += 1;
    }
    return e >= 1 ? m + (uint(e - 1) << 23) : m;
}

// `a / b`, rounded to nearest even.
float div_exact(float a, float b) {
    uint bits_a = floatBitsToUint(a), bits_b = floatBitsToUint(b);
    uint sign = (bits_a ^ bits_b) & 0x80000000u;
    bits_a &= 0x7fffffffu;
    bits_b &= 0x7fffffffu;
    uint y;
    if (bits_a > 0x7f800000u || bits_b > 0x7f800000u) {
        return NOT_A_NUMBER;
    } else if (bits_a == 0x7f800000u || bits_b == 0) {
        if (bits_b == 0x7f800000u || bits_a == 0) {
            return NOT_A_NUMBER;
        }
        y = 0x7f800000u;
    } else if (bits_b == 0x7f800000u || bits_a == 0) {
        y = 0;
    } else {
        y = quotient(bits_a, bits_b);
    }
    return uintBitsToFloat(y | sign);
}

// `sqrt(x)`, rounded to nearest even; a subnormal x may be taken for 0, whose root is x. The root of 25 bits is estimated by the device, and made exact by its remainder.
float sqrt_exact(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) == 0 || bits == 0x7f800000u) {
        return x;
    }
    if (bits > 0x7f800000u) {
        return NOT_A_NUMBER;
    }
    uint m;
    int e;
    significand(bits, m, e);
    // The root of `m << shift`, where `e - shift` is even.
    int shift = (e & 1) != 0 ? 25 : 26;
    uint root = uint(sqrt(float(m << (shift - 24))) * 4096.0);
    int r = int((m << shift) - root * root);
    [[unroll]] for (int turn = 0; turn < 2; turn++) {
        int more = int(floor(float(r) / float(2 * root)));
        r -= more * int(2 * root) + more * more;
        root += uint(more);
    }
    if (r < 0) {
        root -= 1;
        r += int(2 * root + 1);
    }
    if (r > int(2 * root)) {
        root += 1;
    }
    int exponent = (e - shift) / 2 + 75;
    return uintBitsToFloat((uint(exponent) << 23) + (root >> 1) + (root & 1));
}

// To the nearest integer, ties to even. Beyond i32's range, anything.
int round_i32(float x) {
    return int(roundEven(clamp(x, -2147483648.0, 2147483520.0)));
}

// The greater of both; `b` where either is NaN.
float max_(float a, float b) {
    return a > b ? a : b;
}

// e^x. See `cpu/exp.rs` of the engine: the same steps.
float exp_(float x) {
    int n = round_i32(clamp(x * LOG2_E, -1000.0, 1000.0));
    float n_float = float(n);
    float r = n_float * -0.6933594 + x;
    r = n_float * 2.1219444e-4 + r;
    float sum = 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    float y = sum * uintBitsToFloat(uint(n + 127) << 23);
    y = x > 88.37 ? INFINITE : y;
    return x < -87.33 ? 0.0 : y;
}

// x of 0 or above, or 0 in the place of a subnormal number.
float normal_or_0(float x) {
    return x < LEAST_NORMAL ? 0.0 : x;
}

// x / (1 + e^-x)
float silu_(float x) {
    return div_exact(x, 1.0 + exp_(0.0 - x));
}

// 1 / (1 + e^-x), or 0 where that is subnormal
float sigmoid_(float x) {
    return normal_or_0(div_exact(1.0, 1.0 + exp_(0.0 - x)));
}

float tanh_(float x) {
    float square = x * x;
    if (square > 0.625 * 0.625) {
        return 1.0 - div_exact(2.0, 1.0 + exp_(x + x));
    }
    float over = (square + 105.0) * square + 945.0;
    float under = (square * 15.0 + 420.0) * square + 945.0;
    return div_exact(x * over, under);
}

// ln(1 + e^x), or 0 where half of it is subnormal
float softplus_(float x) {
    float u = exp_(x > 0.0 ? 0.0 - x : x);
    float t = normal_or_0(div_exact(u, u + 2.0));
    float square = t * t;
    float sum = 2.0 / 17.0;
    sum = sum * square + 2.0 / 15.0;
    sum = sum * square + 2.0 / 13.0;
    sum = sum * square + 2.0 / 11.0;
    sum = sum * square + 2.0 / 9.0;
    sum = sum * square + 2.0 / 7.0;
    sum = sum * square + 2.0 / 5.0;
    sum = sum * square + 2.0 / 3.0;
    sum = sum * square + 2.0;
    return sum * t + max_(x, 0.0);
}

// The value of an f16, exactly.
float f16_to_f32(uint h) {
    uint sign = (h & 0x8000u) << 16;
    uint e = (h >> 10) & 0x1fu;
    uint m = h & 0x3ffu;
    if (e == 0) {
        return uintBitsToFloat(floatBitsToUint(float(m) * 5.9604644775390625e-8) | sign);
    }
    uint quiet = e == 31 && m != 0 ? 0x400000u : 0;
    uint wide = e == 31 ? 0x7f800000u : (e + 112) << 23;
    return uintBitsToFloat(sign | wide | quiet | (m << 13));
}

// The f16 nearest to x, ties to even.
uint f32_to_f16(float x) {
    uint bits = floatBitsToUint(x);
    uint sign = (bits >> 16) & 0x8000u;
    uint a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return sign | 0x7e00u | ((a & 0x7fffffu) >> 13);
    }
    if (a >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    uint drop = 13;
    uint whole = a - 0x38000000u;
    if (a < 0x38800000u) {
        // Subnormal as f16: units of 2^-24.
        drop = min(126 - (a >> 23), 31u);
        whole = (a & 0x7fffffu) | 0x800000u;
    }
    uint h = whole >> drop;
    uint rest = whole & ((1u << drop) - 1);
    uint half_way = 1u << (drop - 1);
    if (rest > half_way || (rest == half_way && (h & 1) != 0)) {
        h += 1;
    }
    return sign | h;
}

// The value of a bfloat16.
float bf16_to_f32(uint b) {
    return uintBitsToFloat(b << 16);
}
