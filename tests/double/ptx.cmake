# The kernels as nvcc compiles them: their PTX made C, which the stand-in runs in place of their bodies where DTR_FAKE_CUDA_PTX
# says so. libptx.so is from the PTX that libdtr_cuda has, the other from that of which the newest cards' code in it is made.

# Not a target of CMake's: what looks at all C files need not look at this one, and sanitizers have nothing to find in it.
set(DTR_PTX_CC ${CMAKE_C_COMPILER} -std=gnu11 -O1 -w -fPIC -ffp-contract=off -fno-strict-aliasing -frounding-math
  -I${CMAKE_CURRENT_SOURCE_DIR}/ptx)
set(DTR_PTX_TO_C "${CMAKE_CURRENT_SOURCE_DIR}/ptx/ptx_to_c.py")

# dtr_add_ptx(NAME ARCHITECTURE): lib/libNAME.so, of NAME.ptx
function(dtr_add_ptx name arch)
  set(made "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  set(source "${PROJECT_SOURCE_DIR}/collectives/cuda/device_kernels.cu")
  add_custom_command(OUTPUT "${made}.ptx" DEPENDS "${source}" DEPFILE "${made}.d" COMMENT "Compiling PTX of compute_${arch}" VERBATIM
    COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${CMAKE_CUDA_COMPILER} -arch=compute_${arch} -fmad=false
      "-I${PROJECT_SOURCE_DIR}/collectives" -MD -MF "${made}.d" -MT "${made}.ptx" -ptx -o "${made}.ptx" "${source}")
  add_custom_command(OUTPUT "${made}.c" DEPENDS "${made}.ptx" "${DTR_PTX_TO_C}" "${CMAKE_CURRENT_SOURCE_DIR}/ptx/ptx_registers.py" VERBATIM
    COMMAND ${Python3_EXECUTABLE} -B "${DTR_PTX_TO_C}" "${made}.ptx" "${made}.c")
  add_custom_command(OUTPUT "${DTR_DOUBLE_LIB}/lib${name}.so" DEPENDS "${made}.c" "${CMAKE_CURRENT_SOURCE_DIR}/ptx/ptx.h" VERBATIM
    COMMENT "Compiling what ${name}.ptx says" COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${DTR_PTX_CC} -c -o "${made}.o" "${made}.c"
    COMMAND ${CMAKE_C_COMPILER} -shared -o "${DTR_DOUBLE_LIB}/lib${name}.so" "${made}.o")
  add_custom_target(${name} ALL DEPENDS "${DTR_DOUBLE_LIB}/lib${name}.so")
  add_dependencies(${name} fake_cudart) # makes the folder
  add_dependencies(double ${name})
endfunction()

set(newest 90)
foreach(arch ${CMAKE_CUDA_ARCHITECTURES})
  if(arch MATCHES "^([0-9]+[a-z]?)(-real)?(-virtual)?$")
    set(newest ${CMAKE_MATCH_1})
    if(NOT CMAKE_MATCH_2 AND NOT DEFINED kept)
      set(kept ${newest}) # in the library, for cards between these and after them
    endif()
  endif()
endforeach()
if(NOT DEFINED kept)
  set(kept ${newest})
endif()
dtr_add_ptx(ptx ${kept})
# Each kernel's PTX against its body in C.
dtr_add_double_test(double_ptx SOURCES ptx_kernels.c LIBS fake_cudart m ENVIRONMENT DTR_FAKE_CUDA_PTX=1)
target_include_directories(test_double_ptx PRIVATE "${PROJECT_SOURCE_DIR}/collectives")
if(NOT newest STREQUAL kept)
  dtr_add_ptx(ptx${newest} ${newest})
  add_test(NAME double_ptx_newest COMMAND test_double_ptx)
  set_tests_properties(double_ptx_newest PROPERTIES LABELS double TIMEOUT 300
    ENVIRONMENT "${DTR_TEST_ENVIRONMENT};${DTR_DOUBLE_ENVIRONMENT};DTR_FAKE_CUDA_PTX=${newest}")
endif()
add_test(NAME double_ptx_faults COMMAND ${Python3_EXECUTABLE} -B "${CMAKE_CURRENT_SOURCE_DIR}/ptx_faults.py"
  "${CMAKE_CURRENT_BINARY_DIR}/ptx.ptx" "${DTR_PTX_TO_C}" $<TARGET_FILE:test_double_ptx> ${DTR_PTX_CC})
set_tests_properties(double_ptx_faults PROPERTIES LABELS double TIMEOUT 600
  ENVIRONMENT "${DTR_TEST_ENVIRONMENT};${DTR_DOUBLE_ENVIRONMENT}")
