# Headers that nearly every source includes, parsed once instead of once a source: this takes about a quarter off a
# build's CPU time. A source still includes what it uses: the debug preset compiles it without these.
#   assay_precompile(TARGET base)  standard library and fmt
#   assay_precompile(TARGET json)  and nlohmann's JSON
#   assay_precompile(TARGET test)  and GoogleTest

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)

set(headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional> <limits>
            <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <string> <string_view> <thread>
            <unordered_map> <utility> <variant> <vector> <fmt/format.h>)

# Targets that use one of these headers have the definitions of fmt and spdlog, or gcc refuses it.
function(assay_precompiled kind)
  file(CONFIGURE OUTPUT precompiled_${kind}.cc CONTENT "")
  add_library(assay_precompiled_${kind} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/precompiled_${kind}.cc)
  target_link_libraries(assay_precompiled_${kind} PRIVATE assay_flags fmt::fmt spdlog::spdlog)
  target_precompile_headers(assay_precompiled_${kind} PRIVATE ${ARGN})
endfunction()

assay_precompiled(base ${headers})
list(APPEND headers <nlohmann/json.hpp>)
assay_precompiled(json ${headers})
if(ASSAY_TESTS)
  list(APPEND headers <gtest/gtest.h>)
  assay_precompiled(test ${headers})
  target_link_libraries(assay_precompiled_test PRIVATE GTest::gtest)
  target_compile_options(assay_precompiled_test PRIVATE ${ASSAY_TEST_FLAGS})
endif()

function(assay_precompile target kind)
  target_precompile_headers(${target} REUSE_FROM assay_precompiled_${kind})
endfunction()
