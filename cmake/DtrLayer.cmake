# One target per layer. A layer sees its own headers and those of the layers it depends on, nothing above: an upward
# include does not compile.
#
#   dtr_add_layer(NAME SOURCES a.c ... [DEPENDS lower ...] [LIBS target ...])
# Public headers are in NAME/include, private ones in NAME/. LIBS are further libraries that this layer needs.

set_property(GLOBAL PROPERTY DTR_LAYERS "")
set_property(GLOBAL PROPERTY DTR_LAYER_LIBS "")

function(dtr_add_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBS" ${ARGN})
  add_library(dtr_${name} OBJECT ${arg_SOURCES})
  set_target_properties(dtr_${name} PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_include_directories(dtr_${name} PUBLIC
    "${CMAKE_CURRENT_SOURCE_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include")
  target_link_libraries(dtr_${name} PUBLIC dtr_flags MPI::MPI_C Threads::Threads ${arg_LIBS})
  foreach(lower IN LISTS arg_DEPENDS)
    # Headers only: the objects are put together once, in dtr_add_library.
    target_include_directories(dtr_${name} PUBLIC
      $<TARGET_PROPERTY:dtr_${lower},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY DTR_LAYERS ${name})
  set_property(GLOBAL APPEND PROPERTY DTR_LAYER_LIBS ${arg_LIBS})
endfunction()

# libdtr (shared, only dtr_* exported) and dtr_static with the same objects; tests of internals link dtr_static.
function(dtr_add_library)
  get_property(layers GLOBAL PROPERTY DTR_LAYERS)
  get_property(libs GLOBAL PROPERTY DTR_LAYER_LIBS)
  set(objects "")
  set(includes "")
  foreach(layer IN LISTS layers)
    list(APPEND objects $<TARGET_OBJECTS:dtr_${layer}>)
    list(APPEND includes "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${layer}/include>")
  endforeach()
  add_library(dtr SHARED ${objects})
  add_library(dtr_static STATIC ${objects})
  set(private MPI::MPI_C Threads::Threads m ${CMAKE_DL_LIBS} ${libs})
  foreach(target dtr dtr_static)
    target_include_directories(${target} PUBLIC ${includes} "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")
    target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:dtr_sanitizers>)
  endforeach()
  target_link_libraries(dtr PRIVATE $<BUILD_INTERFACE:${private}>)
  # Installed, the static library takes the same from a target that dtr-config.cmake makes.
  target_link_libraries(dtr_static INTERFACE "$<BUILD_INTERFACE:${private}>" $<INSTALL_INTERFACE:dtr::private>)
  set_target_properties(dtr PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/libdtr.map")
  target_link_options(dtr PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libdtr.map")
  if(NOT DTR_SANITIZE)
    target_link_options(dtr PRIVATE "LINKER:-z,defs") # sanitizer run-times are resolved in the program
  endif()
  set_target_properties(dtr_static PROPERTIES OUTPUT_NAME dtr)
  add_library(dtr::dtr ALIAS dtr)
  add_library(dtr::dtr_static ALIAS dtr_static)
endfunction()
