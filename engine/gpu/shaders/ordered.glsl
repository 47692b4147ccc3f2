// Bits that are ordered as the numbers are.
uint ordered(float x) {
    uint bits = floatBitsToUint(x);
    return bits >> 31 == 0 ? bits | 0x80000000u : ~bits;
}
