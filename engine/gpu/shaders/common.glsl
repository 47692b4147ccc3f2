// What every kernel starts with: extensions, how memory is seen, and which work is whose.
//
// Memory is addressed, not bound: push constants hold addresses of these types. An index into one stays below 2^31, since
// some drivers read it as signed; further values are reached by moving the address.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Uints { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer SignedBytes { int8_t v[]; };

// The lanes of a vector on the CPU: rows of running sums here.
const uint LANES = 16;

// Number of this workgroup among those of `lines(n)`, which may be more than `n`.
uint line() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}

// Number of this invocation among all.
#define item() (line() * gl_WorkGroupSize.x + gl_LocalInvocationID.x)

// `a` moved by so many values.
Floats at(Floats a, uint64_t values) {
    return Floats(uint64_t(a) + values * 4);
}
