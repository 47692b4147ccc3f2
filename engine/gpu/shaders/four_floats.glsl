// Values of memory, four at once.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer FourFloats { vec4 v[]; };
