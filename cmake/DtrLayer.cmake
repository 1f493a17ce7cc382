# Layers and their rooms. A room sees public headers of its layer and of those that the layer depends on, its own headers, and the
# interface headers of rooms below it: an upward include does not compile.
#
#   dtr_add_layer(NAME [DEPENDS lower ...] [LIBS target ...])   LIBS are further libraries that this layer needs
#   dtr_add_room(LAYER ROOM [INTERFACE a.h ...] [SOURCES a.c ...])
#                             a folder of the layer: an object library of its own, above the rooms that were added before it
# Public headers are in NAME/include, a room's in NAME/ROOM: interface headers are included as "ROOM/a.h" by rooms above, all
# others as "a.h" by their own room alone. What all rooms of a layer need is set on dtr_NAME; tests of internals, which see every
# header, take the folders of dtr_NAME_internals.

set_property(GLOBAL PROPERTY DTR_LAYERS "")
set_property(GLOBAL PROPERTY DTR_LAYER_LIBS "")
set_property(GLOBAL PROPERTY DTR_ROOMS "")

function(dtr_add_layer name)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBS" ${ARGN})
  add_library(dtr_${name} INTERFACE)
  add_library(dtr_${name}_internals INTERFACE)
  target_include_directories(dtr_${name} INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
  target_include_directories(dtr_${name}_internals INTERFACE
    $<TARGET_PROPERTY:dtr_${name},INTERFACE_INCLUDE_DIRECTORIES> "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(dtr_${name} INTERFACE dtr_flags MPI::MPI_C Threads::Threads ${arg_LIBS})
  # Calls that the library makes itself note no call site: they were called where the program called.
  target_compile_definitions(dtr_${name} INTERFACE DTR_NO_CALL_SITE=)
  foreach(lower IN LISTS arg_DEPENDS)
    # Headers only: the objects are put together once, in dtr_add_library.
    foreach(kind "" _internals)
      target_include_directories(dtr_${name}${kind} INTERFACE
        $<TARGET_PROPERTY:dtr_${lower}${kind},INTERFACE_INCLUDE_DIRECTORIES>)
    endforeach()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY DTR_LAYERS ${name})
  set_property(GLOBAL APPEND PROPERTY DTR_LAYER_LIBS ${arg_LIBS})
endfunction()

# A folder with nothing but the room's interface headers, by the names that others include them by.
function(dtr_room_interface target source room)
  set(folder "${PROJECT_BINARY_DIR}/rooms/${target}")
  file(REMOVE_RECURSE "${folder}")
  file(MAKE_DIRECTORY "${folder}/${room}")
  foreach(header IN LISTS ARGN)
    if(NOT EXISTS "${source}/${room}/${header}")
      message(FATAL_ERROR "the room ${room} has no header ${header}")
    endif()
    file(CREATE_LINK "${source}/${room}/${header}" "${folder}/${room}/${header}" SYMBOLIC)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY DTR_ROOM_INTERFACES "${folder}")
endfunction()

function(dtr_add_room layer room)
  cmake_parse_arguments(arg "" "" "INTERFACE;SOURCES" ${ARGN})
  string(REPLACE "/" "_" target "dtr_${layer}_${room}")
  dtr_room_interface(${target} "${CMAKE_CURRENT_SOURCE_DIR}" ${room} ${arg_INTERFACE})
  if(NOT arg_SOURCES)
    return() # headers alone
  endif()
  list(TRANSFORM arg_SOURCES PREPEND "${room}/")
  add_library(${target} OBJECT ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  get_property(interfaces GLOBAL PROPERTY DTR_ROOM_INTERFACES)
  target_include_directories(${target} PRIVATE ${interfaces})
  target_link_libraries(${target} PRIVATE dtr_${layer})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Werror=vla>) # no stack that grows with the ranks
  set_property(GLOBAL APPEND PROPERTY DTR_ROOMS ${target})
endfunction()

# libdtr (shared, only dtr_* exported) and dtr_static with the same objects; tests of internals link dtr_static.
function(dtr_add_library)
  get_property(layers GLOBAL PROPERTY DTR_LAYERS)
  get_property(libs GLOBAL PROPERTY DTR_LAYER_LIBS)
  get_property(rooms GLOBAL PROPERTY DTR_ROOMS)
  set(objects "")
  set(includes "")
  foreach(room IN LISTS rooms)
    list(APPEND objects $<TARGET_OBJECTS:${room}>)
  endforeach()
  foreach(layer IN LISTS layers)
    list(APPEND includes "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${layer}/include>")
  endforeach()
  list(APPEND includes "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/bindings/cpp/include>")
  add_library(dtr SHARED ${objects})
  add_library(dtr_static STATIC ${objects})
  set(private MPI::MPI_C Threads::Threads m ${CMAKE_DL_LIBS} ${libs})
  foreach(target dtr dtr_static)
    target_include_directories(${target} PUBLIC ${includes} "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")
    target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:dtr_sanitizers>)
  endforeach()
  list(TRANSFORM private REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  target_link_libraries(dtr PRIVATE ${private})
  # Installed, the static library takes the same from a target that dtr-config.cmake makes.
  target_link_libraries(dtr_static INTERFACE ${private} $<INSTALL_INTERFACE:dtr::private>)
  set(map "${PROJECT_BINARY_DIR}/libdtr.map")
  configure_file(cmake/libdtr.map.in "${map}" @ONLY)
  set_target_properties(dtr PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${DTR_SOVERSION} LINK_DEPENDS "${map}")
  target_link_libraries(dtr PRIVATE $<BUILD_INTERFACE:dtr_hardened>)
  target_link_options(dtr PRIVATE "LINKER:--version-script=${map}")
  if(NOT DTR_SANITIZE)
    target_link_options(dtr PRIVATE "LINKER:-z,defs") # sanitizer run-times are resolved in the program
  endif()
  set_target_properties(dtr_static PROPERTIES OUTPUT_NAME dtr)
  add_library(dtr::dtr ALIAS dtr)
  add_library(dtr::dtr_static ALIAS dtr_static)
endfunction()
