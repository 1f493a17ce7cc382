# Installation: libraries, headers, CMake package and pkg-config file, all relocatable. Components are the packages of
# packaging/deb: `runtime`, `cuda`, `tools` and `module`; a rule that names none belongs to `development`.
include(CMakePackageConfigHelpers)

install(TARGETS dtr dtr_static EXPORT dtr-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
get_property(layers GLOBAL PROPERTY DTR_LAYERS)
foreach(layer IN LISTS layers)
  install(DIRECTORY ${layer}/include/dtr DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES bindings/cpp/include/dtr/dtr.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dtr)
install(FILES "${PROJECT_BINARY_DIR}/include/dtr/version.h" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dtr)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(tool dtr-info dtr-doctor dtr-top dtr-bench dtr-ddp-bench dtr-recorder-cost)
  if(TARGET ${tool})
    target_link_libraries(${tool} PRIVATE dtr_hardened)
    set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  endif()
endforeach()

# For people: all pages, which link each other, the examples as a project of their own, and the scripts that need no build folder.
file(GLOB_RECURSE pages RELATIVE "${PROJECT_SOURCE_DIR}" docs/*.md docs/*.svg docs/*.json tests/*.md packaging/*.md)
foreach(layer IN LISTS layers)
  file(GLOB_RECURSE of_layer RELATIVE "${PROJECT_SOURCE_DIR}" ${layer}/*.md)
  list(APPEND pages ${of_layer})
endforeach()
foreach(page IN ITEMS README.md CHANGELOG.md CONTRIBUTING.md LISTS pages)
  get_filename_component(folder "${page}" DIRECTORY)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
set(share ${CMAKE_INSTALL_DATADIR}/dtr)
install(DIRECTORY bindings/python DESTINATION ${share} PATTERN __pycache__ EXCLUDE PATTERN build EXCLUDE PATTERN *.egg-info EXCLUDE)
install(DIRECTORY examples DESTINATION ${share} PATTERN CMakeLists.txt EXCLUDE)
install(FILES cmake/examples.cmake DESTINATION ${share}/examples RENAME CMakeLists.txt)
install(PROGRAMS scripts/bench/sweep scripts/bench/plot scripts/bench/loggp DESTINATION ${share}/scripts/bench COMPONENT tools)
install(FILES scripts/bench/benchlib.py scripts/bench/allocation.py scripts/bench/report.py DESTINATION ${share}/scripts/bench COMPONENT tools)
install(DIRECTORY scripts/bench/launch DESTINATION ${share}/scripts/bench COMPONENT tools USE_SOURCE_PERMISSIONS)
install(FILES packaging/monitoring/dtr.rules.yml packaging/monitoring/dtr-dashboard.json DESTINATION ${share}/monitoring COMPONENT tools)

# What the static library needs. In dtr.pc MPI goes by its own pkg-config name where it has one, because dtr/mpi.h needs
# its headers too; optional packages are plain flags there, since --static would ask for their static libraries.
get_property(DTR_PRIVATE_PACKAGES GLOBAL PROPERTY DTR_PC_PACKAGES)
set(DTR_PRIVATE_PLAIN m ${CMAKE_DL_LIBS})
set(DTR_PRIVATE_NAMES ${MPI_C_LIB_NAMES} ${DTR_PRIVATE_PACKAGES} ${DTR_PRIVATE_PLAIN} pthread)

# CMake package. Before 1.0 a minor version may change the interface, so only the same minor version fits.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dtr)
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()
configure_package_config_file(cmake/dtr-config.cmake.in "${PROJECT_BINARY_DIR}/dtr-config.cmake"
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dtr-config-version.cmake" COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/dtr-config.cmake" "${PROJECT_BINARY_DIR}/dtr-config-version.cmake"
  DESTINATION ${package_dir})
if(TARGET dtr_fortran)
  # The module where no other compiler looks for it, and its source, from which any can make its own.
  install(TARGETS dtr_fortran EXPORT dtr-fortran-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES "${PROJECT_BINARY_DIR}/fortran/include/dtr.mod" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${DTR_FORTRAN_MODULES})
  install(EXPORT dtr-fortran-targets NAMESPACE dtr:: DESTINATION ${package_dir})
  install(FILES "${PROJECT_BINARY_DIR}/fortran/dtr.f90" DESTINATION ${share}/fortran)
  install(DIRECTORY bindings/fortran/ DESTINATION ${share}/fortran FILES_MATCHING PATTERN "*.[ch]" PATTERN "README.md")
endif()
install(EXPORT dtr-targets NAMESPACE dtr:: DESTINATION ${package_dir})

# pkg-config. The prefix is found from the place of the file itself.
file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" DTR_PC_PREFIX "\${pcfiledir}/${pc_to_prefix}")
set(pc_name ompi-c)
if(DTR_MPI_NAME MATCHES "MPICH")
  set(pc_name mpich)
endif()
set(DTR_PC_REQUIRES "")
set(pc_libs ${DTR_PRIVATE_PLAIN} pthread)
get_property(pc_flags GLOBAL PROPERTY DTR_PC_LIBS)
if(PkgConfig_FOUND)
  pkg_check_modules(DTR_MPI_PC QUIET ${pc_name})
endif()
if(DTR_MPI_PC_FOUND AND "${DTR_MPI_NAME}" MATCHES " ${DTR_MPI_PC_VERSION}$") # and not another one of that name
  set(DTR_PC_REQUIRES ${pc_name})
else()
  list(PREPEND pc_libs ${MPI_C_LIB_NAMES})
endif()
list(TRANSFORM pc_libs PREPEND "-l")
list(JOIN pc_flags " " pc_flags)
list(JOIN pc_libs " " DTR_PC_LIBS)
string(PREPEND DTR_PC_LIBS "${pc_flags} ")
configure_file(cmake/dtr.pc.in "${PROJECT_BINARY_DIR}/dtr.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/dtr.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Module file for Lmod, which finds the prefix in the same way.
set(DTR_MODULE_FOLDER ${CMAKE_INSTALL_DATADIR}/modulefiles)
configure_file(packaging/lmod/dtr.lua.in "${PROJECT_BINARY_DIR}/packaging/dtr.lua" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/packaging/dtr.lua" DESTINATION ${DTR_MODULE_FOLDER}/dtr RENAME ${PROJECT_VERSION}.lua COMPONENT module)
include("${PROJECT_SOURCE_DIR}/packaging/debian/cpack.cmake")
if(TARGET dtr_fortran)
  configure_file(cmake/dtr-fortran.pc.in "${PROJECT_BINARY_DIR}/dtr-fortran.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/dtr-fortran.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
