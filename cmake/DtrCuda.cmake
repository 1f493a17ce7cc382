# DTR_CUDA: whether libdtr_cuda is built, the library that libdtr loads when a CUDA device is asked for.
#   AUTO  where nvcc and the toolkit are found     ON  an error where they are not     OFF  nothing is looked for
# libdtr itself never links CUDA.
set(DTR_CUDA AUTO CACHE STRING "CUDA support: AUTO, ON or OFF")
set_property(CACHE DTR_CUDA PROPERTY STRINGS AUTO ON OFF)
string(TOUPPER "${DTR_CUDA}" choice)
set(DTR_CUDA_ENABLED FALSE)
set(DTR_CUDA_SUMMARY "off: no buffers in device memory")
if(choice MATCHES "^(AUTO|ON|YES|TRUE|1)$")
  include(CheckLanguage)
  find_package(CUDAToolkit QUIET) # looks in /usr/local/cuda too, which CMake does not for the compiler
  # Code of a generation runs on its later members. What is named without "-real" is also kept in a form that others, between
  # these generations and after them, compile for themselves.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real 120-real)
    endif()
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  check_language(CUDA)
  if(CUDAToolkit_FOUND AND CMAKE_CUDA_COMPILER)
    set(DTR_CUDA_ENABLED TRUE)
    set(DTR_CUDA_TOOLKIT "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}")
    set(DTR_CUDA_SUMMARY "toolkit ${CUDAToolkit_VERSION}")
  elseif(NOT choice STREQUAL "AUTO")
    message(FATAL_ERROR "DTR_CUDA=${DTR_CUDA}: no CUDA toolkit with a working nvcc was found. Put nvcc in PATH or set "
                        "CUDACXX, or configure with DTR_CUDA=OFF for the CPU library.")
  else()
    set(DTR_CUDA_SUMMARY "no toolkit with a working nvcc was found: no buffers in device memory")
  endif()
elseif(NOT choice MATCHES "^(OFF|NO|FALSE|0)$")
  message(FATAL_ERROR "DTR_CUDA=${DTR_CUDA}: expected AUTO, ON or OFF")
endif()

# NCCL's header is all that is needed of it: the library is opened when it is asked for.
set(DTR_NCCL_INCLUDE "")
if(DTR_CUDA_ENABLED)
  find_path(DTR_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(DTR_NCCL_INCLUDE_DIR)
    set(DTR_NCCL_INCLUDE "${DTR_NCCL_INCLUDE_DIR}")
  else()
    string(APPEND DTR_CUDA_SUMMARY ", no nccl.h: device memory goes through the host, not through NCCL")
  endif()
  if(CUDAToolkit_VERSION_MAJOR LESS 13)
    string(APPEND DTR_CUDA_SUMMARY ", no tests of it: their stand-ins need toolkit 13")
  endif()
endif()

dtr_summary_line(CUDA "${DTR_CUDA_SUMMARY}")

if(DTR_CUDA_ENABLED)
  enable_language(CUDA)
  list(APPEND CMAKE_BUILD_RPATH "${PROJECT_BINARY_DIR}") # where programs with the static library find it
endif()

# libdtr_cuda: what the layers have of CUDA, behind the tables of functions in their private headers.
function(dtr_add_cuda_library)
  if(NOT DTR_CUDA_ENABLED)
    return()
  endif()
  # The kernels keep to C: no contraction, as on the CPU, and nothing of the C++ library.
  add_library(dtr_cuda_kernels OBJECT collectives/cuda/device_kernels.cu)
  target_include_directories(dtr_cuda_kernels PRIVATE collectives)
  target_compile_options(dtr_cuda_kernels PRIVATE -fmad=false
    -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics,-fvisibility=hidden)
  if(DTR_WERROR)
    target_compile_options(dtr_cuda_kernels PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  set_target_properties(dtr_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY Shared)
  add_library(dtr_cuda MODULE runtime/memory/cuda/cuda_context.c runtime/memory/cuda/cuda_ops.c
    $<TARGET_OBJECTS:dtr_cuda_kernels>)
  target_include_directories(dtr_cuda PRIVATE $<TARGET_PROPERTY:dtr_runtime_internals,INTERFACE_INCLUDE_DIRECTORIES>)
  target_include_directories(dtr_cuda PRIVATE runtime collectives)
  string(REPLACE ";" " " code "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(dtr_cuda PRIVATE "DTR_CUDA_CODE=\"${code}\"")
  target_link_libraries(dtr_cuda PRIVATE dtr_flags dtr_hardened CUDA::cudart ${CMAKE_DL_LIBS})
  if(DTR_NCCL_INCLUDE)
    target_sources(dtr_cuda PRIVATE collectives/backends/nccl/nccl_library.c)
    target_include_directories(dtr_cuda SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})
    target_include_directories(dtr_cuda PRIVATE $<TARGET_PROPERTY:dtr_collectives_internals,INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
  # A path in LD_LIBRARY_PATH goes before the one of the toolkit, which is kept for an installation on this machine.
  target_link_options(dtr_cuda PRIVATE LINKER:--enable-new-dtags)
  if(NOT DTR_SANITIZE)
    target_link_options(dtr_cuda PRIVATE LINKER:-z,defs)
  endif()
  set_target_properties(dtr_cuda PROPERTIES LINKER_LANGUAGE C C_VISIBILITY_PRESET hidden INSTALL_RPATH_USE_LINK_PATH TRUE
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  install(TARGETS dtr_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
endfunction()
