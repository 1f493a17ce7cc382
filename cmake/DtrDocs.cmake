# Target `docs`: the API reference in HTML from the comments of the public headers, into build/.../docs/html. Present
# where doxygen is; never part of `all`. DTR_REFERENCE_XML is what manual pages and the site are made from, empty without doxygen.
set(DTR_REFERENCE_XML "")
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  dtr_summary_line(doxygen "not found: no target docs (API reference)")
  return()
endif()
dtr_summary_line(doxygen "${DOXYGEN_VERSION}")
set(DOXYGEN_PROJECT_NAME "dtr")
set(DOXYGEN_PROJECT_BRIEF "${PROJECT_DESCRIPTION}")
set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
set(DOXYGEN_ALIASES
  "collective=@par Collective^^"
  "blocking=@par Blocking^^"
  "gpu=@par GPU^^"
  "errors=@par Errors^^")
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_OPTIMIZE_OUTPUT_FOR_C YES)
set(DOXYGEN_EXTRACT_ALL YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_GENERATE_LATEX NO)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED "DTR_API=" "DTR_BEGIN_DECLS=" "DTR_END_DECLS=" "DTR_BEGIN_SITED=" "DTR_END_SITED=" "DTR_PRINTF(x,y)=" "DTR_NO_CALL_SITE=1")
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "${PROJECT_SOURCE_DIR}/docs/user-guide.md")
set(headers "${PROJECT_BINARY_DIR}/include/dtr/version.h")
get_property(layers GLOBAL PROPERTY DTR_LAYERS)
foreach(layer IN LISTS layers)
  list(APPEND headers "${PROJECT_SOURCE_DIR}/${layer}/include/dtr")
endforeach()
set(pages abi user-guide measurements scaling support internals security)
list(TRANSFORM pages REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/docs/\\1.md")
file(GLOB internals "${PROJECT_SOURCE_DIR}/docs/internals/*.md" "${PROJECT_SOURCE_DIR}/docs/notebook/*.md")
foreach(layer IN LISTS layers) # what the page on internals links to
  file(GLOB_RECURSE readmes "${PROJECT_SOURCE_DIR}/${layer}/README.md")
  list(APPEND internals ${readmes})
endforeach()
doxygen_add_docs(docs ${headers} ${pages} ${internals} "${PROJECT_SOURCE_DIR}/CHANGELOG.md" COMMENT "Writing docs/html/index.html")

# The same headers as XML, again only where one has changed. doxygen_add_docs leaves its settings in a file.
set(DOXYGEN_GENERATE_HTML NO)
set(DOXYGEN_GENERATE_XML YES)
set(DOXYGEN_XML_PROGRAMLISTING NO)
set(DOXYGEN_WARN_AS_ERROR NO) # the target docs looks at these
set(DOXYGEN_WARNINGS NO)
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "")
set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs/reference")
doxygen_add_docs(docs-xml ${headers})
set(files "${PROJECT_BINARY_DIR}/include/dtr/version.h")
foreach(layer IN LISTS layers)
  file(GLOB of_layer CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${layer}/include/dtr/*.h")
  list(APPEND files ${of_layer})
endforeach()
set(DTR_REFERENCE_XML "${PROJECT_BINARY_DIR}/docs/reference/xml/index.xml")
add_custom_command(OUTPUT "${DTR_REFERENCE_XML}"
  COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/docs/reference"
  COMMAND Doxygen::doxygen "${CMAKE_CURRENT_BINARY_DIR}/Doxyfile.docs-xml"
  DEPENDS ${files} "${CMAKE_CURRENT_BINARY_DIR}/Doxyfile.docs-xml" COMMENT "Reading the comments of the public headers")
add_custom_target(reference-xml DEPENDS "${DTR_REFERENCE_XML}")
