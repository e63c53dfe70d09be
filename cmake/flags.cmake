# Flags that every target of the project shares, as an interface library.
add_library(kvscout_flags INTERFACE)
target_compile_options(kvscout_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-unknown-pragmas>
  # The contract counts roundings: no multiplication and addition may be fused unless the code says fma.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Highway chooses SSE4 to AVX-512 at run time; at the oldest baseline it keeps only its scalar target.
  target_compile_options(kvscout_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2>)
endif()
if(KVSCOUT_SANITIZE)
  target_compile_definitions(kvscout_flags INTERFACE KVSCOUT_SANITIZED)
  target_compile_options(kvscout_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KVSCOUT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer>)
  target_link_options(kvscout_flags INTERFACE -fsanitize=${KVSCOUT_SANITIZE})
endif()
if(KVSCOUT_FUZZ)  # the fuzzers see which branches of the library an input takes
  target_compile_options(kvscout_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
