# Element kernels. The same loops are compiled once per instruction set; the set is chosen at run time. Contraction to
# fused multiply-add is off everywhere, and what CMAKE_C_FLAGS says of -ffast-math undone: every set gives the same bits.
set(kernel_flags -fno-fast-math -ffp-contract=off -fno-trapping-math -fno-math-errno $<$<NOT:$<CONFIG:Debug>>:-O3>
  $<$<C_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>) # a loop that stays scalar is no fault
set(kernel_sources exact.c kernels.c kernels_convert.c kernels_pairs.c kernels_scalar.c user_ops.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND kernel_sources kernels_avx2.c kernels_avx512.c)
  set_property(SOURCE kernels/kernels_avx2.c APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mf16c)
  set_property(SOURCE kernels/kernels_avx512.c APPEND PROPERTY COMPILE_OPTIONS
    -mavx2 -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND kernel_sources kernels_neon.c)
endif()
list(TRANSFORM kernel_sources PREPEND kernels/ OUTPUT_VARIABLE kernel_paths)
set_property(SOURCE ${kernel_paths} APPEND PROPERTY COMPILE_OPTIONS ${kernel_flags})
