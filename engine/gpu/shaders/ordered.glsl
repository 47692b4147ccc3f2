// Bits that are ordered as the numbers are.
uint ordered(float x) {
    uint bits = floatBitsToUint(x);
    return bits >> 31 == 0 ? bits | 0x80000000u : ~bits;
}

// The number of such bits.
float from_ordered(uint bits) {
    return uintBitsToFloat(bits >> 31 == 0 ? ~bits : bits & 0x7fffffffu);
}
