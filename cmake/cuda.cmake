# nvcc, and how CUDA back ends are built. Included at the top, where a language has to be enabled.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "KVSCOUT_CUDA=ON needs nvcc 12.8 or later: put it on PATH or set CMAKE_CUDA_COMPILER")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # each back end names its own targets
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows C++20 for no nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

# The contract counts roundings, and nvcc would fuse multiplications with additions: whatever wants fma says so.
set(KVSCOUT_NVCC_OPTIONS --expt-relaxed-constexpr --fmad=false -Xcompiler=-Wall)

# kvscout_cuda_backend(NAME ARCHITECTURES a b SOURCES ...): a back end with machine code for what is named.
function(kvscout_cuda_backend name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ARCHITECTURES;SOURCES")
  kvscout_backend(${name} ${arg_SOURCES})
  list(JOIN arg_ARCHITECTURES ", " built_for)
  set_target_properties(kvscout_${name} PROPERTIES CUDA_ARCHITECTURES "${arg_ARCHITECTURES}"
                                                   CUDA_SEPARABLE_COMPILATION OFF)
  target_compile_options(kvscout_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${KVSCOUT_NVCC_OPTIONS}>)
  target_link_libraries(kvscout_${name} PRIVATE CUDA::cudart_static)
  target_compile_definitions(kvscout_${name} PRIVATE KVSCOUT_BUILT_FOR="compute capability ${built_for}")
endfunction()
