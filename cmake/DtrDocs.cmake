# Target `docs`: the API reference in HTML from the comments of the public headers, into build/.../docs/html. Present
# where doxygen is; never part of `all`.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  return()
endif()
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
set(DOXYGEN_PREDEFINED "DTR_API=" "DTR_BEGIN_DECLS=" "DTR_END_DECLS=" "DTR_PRINTF(x,y)=" "DTR_NO_CALL_SITE=1")
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "${PROJECT_SOURCE_DIR}/docs/user-guide.md")
set(headers "${PROJECT_BINARY_DIR}/include/dtr/version.h")
get_property(layers GLOBAL PROPERTY DTR_LAYERS)
foreach(layer IN LISTS layers)
  list(APPEND headers "${PROJECT_SOURCE_DIR}/${layer}/include/dtr")
endforeach()
set(pages user-guide measurements support internals)
list(TRANSFORM pages REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/docs/\\1.md")
doxygen_add_docs(docs ${headers} ${pages} COMMENT "Writing docs/html/index.html")
