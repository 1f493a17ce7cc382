# Compile and link flags as two interface targets, nothing global:
#   dtr_flags      how our own sources are compiled
#   dtr_sanitizers instrumentation; whatever links libdtr inside this build tree gets it as well
option(DTR_WERROR "Treat warnings as errors" OFF)
set(DTR_SANITIZE "" CACHE STRING "Sanitizers, a list: address;undefined or thread")
option(DTR_COVERAGE "Count executed lines (gcov)" OFF)

add_library(dtr_sanitizers INTERFACE)
if(DTR_SANITIZE)
  list(JOIN DTR_SANITIZE "," names)
  target_compile_options(dtr_sanitizers INTERFACE -fsanitize=${names} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(dtr_sanitizers INTERFACE -fsanitize=${names})
endif()
if(DTR_COVERAGE)
  target_compile_options(dtr_sanitizers INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(dtr_sanitizers INTERFACE --coverage)
endif()

# No contraction: a * b + c rounds twice on every CPU, so that all ranks of a mixed job hold the same bits.
add_library(dtr_flags INTERFACE)
target_compile_definitions(dtr_flags INTERFACE _GNU_SOURCE)
target_compile_options(dtr_flags INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                                           -Wno-missing-field-initializers -ffp-contract=off)
if(DTR_WERROR)
  target_compile_options(dtr_flags INTERFACE -Werror)
endif()
target_link_libraries(dtr_flags INTERFACE dtr_sanitizers)

# Hardening, with gcc and clang alike. The checked functions of the C library want optimisation, and sanitizers have checks
# of their own. Whoever sets a level in CMAKE_C_FLAGS keeps it.
add_library(dtr_hardened INTERFACE) # how what is installed is linked
if(NOT DTR_SANITIZE AND NOT DTR_COVERAGE)
  target_compile_options(dtr_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fstack-protector-strong>)
  if(NOT CMAKE_C_FLAGS MATCHES "_FORTIFY_SOURCE")
    set(release $<AND:$<COMPILE_LANGUAGE:C>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>)
    target_compile_options(dtr_flags INTERFACE $<${release}:-U_FORTIFY_SOURCE> $<${release}:-D_FORTIFY_SOURCE=2>)
  endif()
  target_link_options(dtr_hardened INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()
