# Flags that hold for every target, and the two functions the folders use.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # What ccache wants to be told where headers are precompiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()

# Tests are compiled once and run once: -O1 takes the least time in all.
set(ASSAY_TEST_FLAGS $<$<CONFIG:Release>:-O1>)

add_library(assay_flags INTERFACE)
target_include_directories(assay_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: a row's rounding is what its source says, on every machine.
target_compile_options(assay_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror=return-type;-ffp-contract=off>)
if(ASSAY_SANITIZE)
  target_compile_options(assay_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(assay_flags INTERFACE -fsanitize=address,undefined)
endif()
if(ASSAY_CUDA)
  include(AssayCuda)
endif()

find_package(Threads REQUIRED)
include(AssayPrecompiled)

# Instruction sets: a kernel file `*_kernels_<set>.cc` is compiled with its own flags and includes nothing but intrinsics
# and its interface, so that no inline function of the program is emitted with them. (gcc 12 takes the deliberately
# undefined values inside its own AVX-512 headers for mistakes.)
function(assay_isa_flags)
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni
             -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
  # In the fake stack by which the address sanitizer sees uses after return, gcc 12 and 13 lay 64-byte locals at 32 modulo
  # 64 (GCC PR 110027), and AVX-512 code, which takes them for aligned, faults.
  if(ASSAY_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512 --param=asan-use-after-return=0)
  endif()
  foreach(source ${ARGN})
    if(source MATCHES "_kernels_avx512_bf16\\.cc$")
      set(options ${avx512} -mavx512bf16)
    elseif(source MATCHES "_kernels_avx512\\.cc$")
      set(options ${avx512})
    elseif(source MATCHES "_kernels_avx2\\.cc$")
      set(options ${avx2})
    else()
      continue()
    endif()
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()

# assay_library(NAME [DEPS ...]): static library assay_NAME of this folder's *.cc (one level of subfolders too; with
# ASSAY_CUDA also *_cuda.cc, *_cublaslt.cc and *.cu), and the test program NAME_test of its *_test.cc.
function(assay_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc */*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(cuda|cublaslt)\\.cc$")
  assay_isa_flags(${sources})
  if(ASSAY_CUDA)
    set(row_lists ${sources})
    list(FILTER row_lists INCLUDE REGEX "_impls\\.cc$")
    assay_cuda_sources(cuda_sources)
    if(row_lists OR cuda_sources)
      assay_cuda_definitions(${row_lists} ${cuda_sources})
    endif()
    list(APPEND sources ${cuda_sources})
  endif()
  if(sources)
    add_library(assay_${name} STATIC ${sources})
    target_link_libraries(assay_${name} PUBLIC assay_flags ${ARG_DEPS} Threads::Threads)
    if(nlohmann_json::nlohmann_json IN_LIST ARG_DEPS)
      assay_precompile(assay_${name} json)
    else()
      assay_precompile(assay_${name} base)
    endif()
  else()
    add_library(assay_${name} INTERFACE)
    target_link_libraries(assay_${name} INTERFACE assay_flags ${ARG_DEPS} Threads::Threads)
  endif()
  if(tests AND ASSAY_TESTS)
    assay_test(${name}_test SOURCES ${tests} DEPS assay_${name} ${ARG_TEST_DEPS})
  endif()
endfunction()

# assay_test(NAME SOURCES ... DEPS ...): a GoogleTest program that ctest runs from the repository root.
function(assay_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${ASSAY_TEST_FLAGS})
  assay_precompile(${name} test)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
