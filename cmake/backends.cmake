# kvscout_backend(NAME sources...): an object library `kvscout_NAME` that defines
# `const kvscout::Backend NAME_backend`, and its place in the order of the registry (order of calls).
set_property(GLOBAL PROPERTY KVSCOUT_BACKENDS "")

function(kvscout_backend name)
  add_library(kvscout_${name} OBJECT ${ARGN})
  target_include_directories(kvscout_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(kvscout_${name} PRIVATE kvscout_flags)
  set_property(GLOBAL APPEND PROPERTY KVSCOUT_BACKENDS ${name})
endfunction()

# Writes backends.inc, the list that registry.cpp includes.
function(kvscout_write_backend_list directory)
  get_property(names GLOBAL PROPERTY KVSCOUT_BACKENDS)
  set(text "")
  foreach(name IN LISTS names)
    string(APPEND text "KVSCOUT_BACKEND(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${directory}/backends.inc CONTENT "${text}" @ONLY)
endfunction()
