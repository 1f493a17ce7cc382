# Finds MPI and says which one it is.
#
# Another MPI than the default one is chosen by its wrapper's suffix or by its wrapper, and its launcher where that is not beside it:
#   cmake -DMPI_EXECUTABLE_SUFFIX=.mpich ...                          (Debian)
#   cmake -DMPI_C_COMPILER=/opt/x/bin/mpicc [-DMPIEXEC_EXECUTABLE=/opt/y/bin/mpiexec] ...
# Sets DTR_MPI_NAME ("Open MPI 4.1.4", "MPICH 4.0.2") and DTR_MPIEXEC, the launcher that belongs to it. Programs are
# started under the environment in scripts/mpi.env, which knows what each launcher needs.
if(DEFINED MPIEXEC_EXECUTABLE AND NOT DEFINED DTR_MPIEXEC) # by the user: find_package has not run yet
  set(DTR_MPIEXEC "${MPIEXEC_EXECUTABLE}" CACHE FILEPATH "Launcher of MPI programs")
endif()
find_package(MPI COMPONENTS C)
if(NOT MPI_C_FOUND)
  message(FATAL_ERROR "dtr needs MPI and found none. On Debian: apt-get install libopenmpi-dev openmpi-bin (or "
                      "libmpich-dev mpich). Elsewhere load an MPI module, or name its wrapper with -DMPI_C_COMPILER=")
endif()

# The launcher must belong to the MPI that is compiled against: it is beside the wrapper. Debian has several there, under
# suffixed names.
if(NOT DEFINED DTR_MPIEXEC)
  set(flavour openmpi)
  if("${MPI_C_INCLUDE_DIRS} ${MPI_C_COMPILER}" MATCHES "mpich")
    set(flavour mpich)
  endif()
  get_filename_component(wrapper "${MPI_C_COMPILER}" NAME)
  if(wrapper MATCHES "mpi")
    get_filename_component(beside "${MPI_C_COMPILER}" DIRECTORY)
    find_program(DTR_MPIEXEC NAMES mpiexec.${flavour} mpiexec HINTS "${beside}" NO_DEFAULT_PATH)
  endif()
  find_program(DTR_MPIEXEC NAMES mpiexec.${flavour} ${MPIEXEC_EXECUTABLE} mpiexec)
endif()

if(NOT DEFINED DTR_MPI_NAME)
  set(version "")
  if(DTR_MPIEXEC)
    execute_process(COMMAND ${DTR_MPIEXEC} --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  endif()
  if(version MATCHES "(Open MPI|OpenRTE)\\) ([0-9.]+)")
    set(name "Open MPI ${CMAKE_MATCH_2}")
  elseif(version MATCHES "HYDRA.*Version: +([0-9.]+)")
    set(name "MPICH ${CMAKE_MATCH_1}")
  elseif(version MATCHES "Intel\\(R\\) MPI Library.*Version ([0-9.]+)")
    set(name "Intel MPI ${CMAKE_MATCH_1}")
  else()
    set(name "unknown (${MPI_C_COMPILER})")
  endif()
  set(DTR_MPI_NAME "${name}" CACHE INTERNAL "Name and version of the MPI library")
endif()
