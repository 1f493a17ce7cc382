# The .deb packages, for `cmake --build DIR --target package`; packaging/deb configures a build for them. A package is a
# component of the installation. dtr_deb.py does what Debian wants and CPack does not, before and after packing.
if(NOT PROJECT_IS_TOP_LEVEL OR DTR_SANITIZE OR DTR_COVERAGE OR NOT Python3_FOUND)
  return()
endif()

# A version that the changelog has no date for yet comes before the one that it will.
file(STRINGS CHANGELOG.md released REGEX "^## ${PROJECT_VERSION} - [0-9]")
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
if(NOT released)
  string(APPEND CPACK_DEBIAN_PACKAGE_VERSION "~dev")
endif()
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(full_version "${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(DTR_DEB_MAINTAINER "The dtr developers <dtr@packages.invalid>" CACHE STRING "Maintainer of the .deb packages")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_BINARY_DIR}/packaging/stage.cmake")
set(CPACK_POST_BUILD_SCRIPTS "${PROJECT_BINARY_DIR}/packaging/finish.cmake")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip) # they are packed again, with xz
set(CPACK_DEBIAN_PACKAGE_SOURCE dtr)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${DTR_DEB_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENTS_ALL "")
set(packages "") # component=package
set(library libdtr${DTR_SOVERSION})

# dtr_deb(COMPONENT PACKAGE SECTION "Description" FIELD "value" ...): a package; the description's first line is its summary.
macro(dtr_deb component package section description)
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  list(APPEND packages ${component}=${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${description}")
  cmake_parse_arguments(deb "" "DEPENDS;RECOMMENDS;SUGGESTS;CONFLICTS;PROVIDES" "" ${ARGN})
  foreach(field DEPENDS RECOMMENDS SUGGESTS CONFLICTS PROVIDES)
    if(deb_${field})
      set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${deb_${field}}")
    endif()
  endforeach()
endmacro()

set(mpi_dev libopenmpi-dev)
set(mpi_bin openmpi-bin)
if(DTR_MPI_NAME MATCHES "MPICH")
  set(mpi_dev libmpich-dev)
  set(mpi_bin mpich)
endif()
set(about "dtr gives C programs under mpirun process groups, typed asynchronous
collectives, a small tensor, and gradient averaging beside the backward pass,
without taking over their MPI.")

dtr_deb(runtime ${library} libs "Distributed Tensor Runtime - shared library
${about}
.
This package has the library that programs are started with."
  RECOMMENDS ${mpi_bin}
  SUGGESTS libdtr-cuda${DTR_SOVERSION})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
dtr_deb(development libdtr-dev libdevel "Distributed Tensor Runtime - files for building programs
${about}
.
This package has the headers for C and C++, the static library, files for CMake
and pkg-config, the user guide and all other pages, and the examples."
  DEPENDS "${library} (= ${full_version}), ${mpi_dev}"
  RECOMMENDS "dtr-tools (= ${full_version})"
  SUGGESTS "libhwloc-dev, libjansson-dev, nettle-dev") # for the static library
dtr_deb(tools dtr-tools science "Distributed Tensor Runtime - programs
${about}
.
This package has dtr-info, which shows build and machine, dtr-doctor, which
says why a job hangs, dtr-top, which shows a running job, the measuring
programs dtr-bench, dtr-ddp-bench and dtr-recorder-cost, and scripts that run
them over many sizes, also under schedulers."
  DEPENDS "${library} (= ${full_version}), python3"
  RECOMMENDS ${mpi_bin}
  SUGGESTS "libdtr-dev, python3-matplotlib")
if(TARGET dtr_cuda)
  # NVIDIA's own repository has the runtime of a toolkit under the first name.
  dtr_deb(cuda libdtr-cuda${DTR_SOVERSION} contrib/libs "Distributed Tensor Runtime - buffers in memory of NVIDIA GPUs
${about}
.
This package has the part that the library loads when a CUDA device is first
used. It needs the runtime of CUDA and, for collectives between GPUs, NCCL."
    DEPENDS "${library} (= ${full_version}), cuda-cudart-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR} | libcudart${CUDAToolkit_VERSION_MAJOR}"
    SUGGESTS "libnccl2 (>= 2.18)"
    PROVIDES libdtr-cuda
    CONFLICTS libdtr-cuda) # the file's name is the same in all versions
endif()

set(arguments "stage \"\${CPACK_TEMPORARY_DIRECTORY}\" \"${full_version}\" \"${DTR_DEB_MAINTAINER}\" ${packages}")
configure_file(packaging/debian/step.cmake.in "${PROJECT_BINARY_DIR}/packaging/stage.cmake" @ONLY)
set(arguments "finish \${CPACK_PACKAGE_FILES}")
configure_file(packaging/debian/step.cmake.in "${PROJECT_BINARY_DIR}/packaging/finish.cmake" @ONLY)
include(CPack)
