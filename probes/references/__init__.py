"""Plain references that the kernels are compared with. Written from the maths, not from kernels."""
