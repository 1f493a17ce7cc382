# Manual pages and shell completion: of the tools from their --help (needs Python), of the functions from the headers' comments
# (needs doxygen too). Made by every build where these are there; nothing needs them. Targets `man` and `completion`.
set(DTR_MAN AUTO CACHE STRING "Make manual pages and shell completion: AUTO, ON or OFF")
set_property(CACHE DTR_MAN PROPERTY STRINGS AUTO ON OFF)
set(programs "")
set(tools "")
foreach(tool dtr-info dtr-doctor dtr-top dtr-bench dtr-ddp-bench dtr-recorder-cost)
  if(TARGET ${tool})
    list(APPEND tools ${tool})
    list(APPEND programs $<TARGET_FILE:${tool}>)
  endif()
endforeach()
if(NOT Python3_FOUND OR CMAKE_CROSSCOMPILING OR DTR_SANITIZE OR DTR_COVERAGE OR (NOT DTR_MAN STREQUAL "AUTO" AND NOT DTR_MAN))
  if(NOT DTR_MAN STREQUAL "AUTO" AND DTR_MAN)
    message(FATAL_ERROR "DTR_MAN=${DTR_MAN}: manual pages need Python 3, and tools that run here without instrumentation")
  endif()
  dtr_summary_line("manual pages" "none")
  return()
endif()
set(scripts "${PROJECT_SOURCE_DIR}/scripts/docs")
set(man "${PROJECT_BINARY_DIR}/docs/man")
set(completion "${PROJECT_BINARY_DIR}/docs/completion")

add_custom_command(OUTPUT "${man}/man1.made"
  COMMAND ${CMAKE_COMMAND} -E rm -rf "${man}/man1" "${completion}"
  COMMAND ${Python3_EXECUTABLE} -B "${scripts}/man.py" 1 "${man}/man1" ${PROJECT_VERSION} ${programs}
  COMMAND ${Python3_EXECUTABLE} -B "${scripts}/completion.py" "${completion}" ${programs}
  COMMAND ${CMAKE_COMMAND} -E touch "${man}/man1.made"
  DEPENDS ${tools} "${scripts}/man.py" "${scripts}/completion.py" COMMENT "Making manual pages and completion of the tools")
set(made "${man}/man1.made")
install(DIRECTORY "${man}/man1" DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT tools OPTIONAL)
install(DIRECTORY "${completion}/bash/" DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools OPTIONAL)
install(DIRECTORY "${completion}/zsh/" DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tools OPTIONAL)
if(DTR_REFERENCE_XML)
  add_custom_command(OUTPUT "${man}/man3.made"
    COMMAND ${CMAKE_COMMAND} -E rm -rf "${man}/man3"
    COMMAND ${Python3_EXECUTABLE} -B "${scripts}/man.py" 3 "${PROJECT_BINARY_DIR}/docs/reference/xml" "${man}/man3" ${PROJECT_VERSION}
    COMMAND ${CMAKE_COMMAND} -E touch "${man}/man3.made"
    DEPENDS reference-xml "${DTR_REFERENCE_XML}" "${scripts}/man.py" "${scripts}/reference.py" COMMENT "Making manual pages of the functions")
  list(APPEND made "${man}/man3.made")
  install(DIRECTORY "${man}/man3" DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT dev OPTIONAL)
  dtr_summary_line("manual pages" "of tools and functions, and shell completion")
else()
  dtr_summary_line("manual pages" "of tools, and shell completion; without doxygen none of functions")
endif()
add_custom_target(man ALL DEPENDS ${made})
set(DTR_MAN_PROGRAMS ${programs})
