# The CUDA backend: one SASS image for each architecture of ASSAY_CUDA_ARCHS, no PTX, the runtime linked statically (it
# loads the driver when it is first called, so the program starts on machines without one).

include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # -gencode below: CMake 3.25 does not know family architectures such as 120f
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "ASSAY_CUDA=ON needs nvcc 13.0 or later: put it on PATH or set CUDACXX, or configure without "
                      "-DASSAY_CUDA=ON")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# CMake 3.25 knows neither this compiler's dialects its system folders: -isystem /usr/include breaks #include_next.
list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES} /usr/include)
foreach(kind STANDARD EXTENSION)
  set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
endforeach()
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "ASSAY_CUDA=ON needs nvcc 13.0 or later, found ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
find_package(CUDAToolkit REQUIRED)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Known to the files that list rows or devices and to the CUDA sources; all others compile as they do without CUDA.
list(JOIN ASSAY_CUDA_ARCHS ", " arch_text)
set(ASSAY_CUDA_DEFINITIONS ASSAY_WITH_CUDA=1 "ASSAY_CUDA_ARCHS=\"${arch_text}\"")
# FMT_*: nvcc hands g++ 12 code in which consteval format strings of fmt 9 do not compile; they are checked when
# the same headers are compiled as C++.
# --fmad=false: a row's rounding is what its source says; kernels fuse where they call fmaf().
# --warn-on-spills with -Werror: a kernel that spills does not build.
target_compile_options(assay_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-DFMT_CONSTEVAL=;-DFMT_USE_CONSTEXPR=1;--expt-relaxed-constexpr;--fmad=false;-Xptxas=--warn-on-spills>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra>")
target_link_libraries(assay_flags INTERFACE $<LINK_ONLY:CUDA::cudart_static>)

function(assay_cuda_gencode result)
  set(options "")
  foreach(arch ${ARGN})
    list(APPEND options "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  set(${result} ${options} PARENT_SCOPE)
endfunction()

# The calling folder's CUDA sources. A file named *_sm90.cu holds instructions of sm_90a alone.
function(assay_cuda_sources result)
  file(GLOB sources CONFIGURE_DEPENDS *_cuda.cc */*_cuda.cc */*_cublaslt.cc *.cu */*.cu)
  assay_cuda_gencode(gencode ${ASSAY_CUDA_ARCHS})
  assay_cuda_gencode(gencode_sm90 90a)
  set(kept "")
  foreach(source ${sources})
    if(source MATCHES "_sm90\\.cu$")
      if(NOT "90a" IN_LIST ASSAY_CUDA_ARCHS)
        continue()
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${gencode_sm90}")
    elseif(source MATCHES "\\.cu$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${gencode}")
    else()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
    endif()
    list(APPEND kept ${source})
  endforeach()
  set(${result} ${kept} PARENT_SCOPE)
endfunction()

function(assay_cuda_definitions)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS "${ASSAY_CUDA_DEFINITIONS}")
endfunction()
