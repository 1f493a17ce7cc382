# Optional libraries, found through pkg-config.
#
#   dtr_optional_package(HWLOC hwloc "binding of the progress thread")
# declares DTR_HWLOC=AUTO|ON|OFF and, where the library is used, the target PkgConfig::HWLOC for the LIBS of a layer.
# Installed static libraries and dtr.pc name what was used.
find_package(PkgConfig)
set_property(GLOBAL PROPERTY DTR_PC_PACKAGES "")
set_property(GLOBAL PROPERTY DTR_PC_LIBS "")
set_property(GLOBAL PROPERTY DTR_SUMMARY "")

# dtr_find_optional: the same for what the library does not link, an example's need.
function(dtr_summary_line label text) # a line of the printed summary, which dtr-info shows too
  string(SUBSTRING "${label}                 " 0 16 label)
  set_property(GLOBAL APPEND PROPERTY DTR_SUMMARY "${label} ${text}")
endfunction()

macro(dtr_find_optional name pc purpose)
  set(DTR_${name} AUTO CACHE STRING "Use ${pc} for ${purpose}: AUTO, ON or OFF")
  set_property(CACHE DTR_${name} PROPERTY STRINGS AUTO ON OFF)
  set(dtr_line "off: no ${purpose}")
  if(DTR_${name} STREQUAL "AUTO" OR DTR_${name})
    if(PkgConfig_FOUND)
      pkg_check_modules(${name} IMPORTED_TARGET GLOBAL ${pc})
    endif()
    if(TARGET PkgConfig::${name})
      set(dtr_line "${${name}_VERSION}")
    elseif(NOT DTR_${name} STREQUAL "AUTO")
      message(FATAL_ERROR "DTR_${name}=${DTR_${name}}: ${pc} was not found by pkg-config (used for ${purpose})")
    else()
      set(dtr_line "not found: no ${purpose}")
    endif()
  endif()
  dtr_summary_line(${pc} "${dtr_line}")
endmacro()

macro(dtr_optional_package name pc purpose)
  dtr_find_optional(${name} ${pc} "${purpose}")
  if(TARGET PkgConfig::${name})
    set_property(GLOBAL APPEND PROPERTY DTR_PC_PACKAGES ${pc})
    set_property(GLOBAL APPEND PROPERTY DTR_PC_LIBS ${${name}_LDFLAGS})
  endif()
endmacro()
