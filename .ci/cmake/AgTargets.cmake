# SPDX-License-Identifier: Apache-2.0
# One function call defines one target, so every folder's CMakeLists reads as a list of its parts.
#
#   ag_library(name SRCS ... DEPS ...)   static library agspeed::name
#   ag_mlir_library(name SRCS ... DEPS ...)  the same, with MLIR/LLVM headers
#   ag_torch_library(name SRCS ... DEPS ...) one library for each torch of AG_TORCHES, with its headers and libraries:
#                                        ag_<name>_<torch>; agspeed::name is the one for the default torch
#   ag_test(name SRCS ... DEPS ... [LABELS ...])  GoogleTest binary registered with CTest
#   ag_torch_test(name ...)              the same, with the headers and libraries of the default torch
#   ag_compile_alone(FILE ...)           keeps files out of unity builds

set(AG_TEST_OPTIMIZATION -O1)  # tests are compiled more often than run

# With CMAKE_UNITY_BUILD, several files of a target are compiled as one, because most of the time goes to headers that
# they share. The files named here are compiled alone. For example, a name in their anonymous namespace is also in that
# of another file.
function(ag_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(_ag_parse)
  cmake_parse_arguments(PARSE_ARGV 1 AG "" "" "SRCS;DEPS;LABELS")
  set(AG_SRCS ${AG_SRCS} PARENT_SCOPE)
  set(AG_DEPS ${AG_DEPS} PARENT_SCOPE)
  set(AG_LABELS ${AG_LABELS} PARENT_SCOPE)
endfunction()

function(ag_library name)
  _ag_parse(${ARGV})
  add_library(ag_${name} STATIC ${AG_SRCS})
  add_library(agspeed::${name} ALIAS ag_${name})
  target_include_directories(ag_${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_compile_options(ag_${name} PRIVATE ${AG_WARNINGS})
  target_link_libraries(ag_${name} PUBLIC ${AG_DEPS})
endfunction()

function(ag_mlir_library name)
  ag_library(${ARGV})
  target_link_libraries(ag_${name} PUBLIC ag_mlir)
  ag_precompile(ag_${name} ag_mlir_headers)
endfunction()

function(ag_torch_library name)
  _ag_parse(${ARGV})
  foreach(torch IN LISTS AG_TORCHES)
    ag_for_torch(deps ${torch} ${AG_DEPS})
    ag_library(${name}_${torch} SRCS ${AG_SRCS} DEPS ${deps} ag_${torch})
    ag_precompile(ag_${name}_${torch} ag_${torch}_headers)
  endforeach()
  add_library(agspeed::${name} ALIAS ag_${name}_${AG_DEFAULT_TORCH})
endfunction()

# Returns the libraries; a library that exists once for each torch is replaced by the one for `torch`.
function(ag_for_torch result torch)
  set(found)
  foreach(library IN LISTS ARGN)
    if(TARGET ${library}_${torch})
      set(library ${library}_${torch})
    endif()
    list(APPEND found ${library})
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Makes a test target load the default torch. The torch package's CUDA libraries name symbols of libraries that only its
# Python package loads.
function(ag_loads_torch target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "${AG_${AG_DEFAULT_TORCH}_DIR}/lib")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_link_options(${target} PRIVATE -Wl,--allow-shlib-undefined)
  endif()
endfunction()

function(_ag_test name headers)
  _ag_parse(${name} ${ARGN})
  add_executable(${name} ${AG_SRCS})
  target_compile_options(${name} PRIVATE ${AG_WARNINGS})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${AG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  ag_precompile(${name} ${headers})
  add_test(NAME ${name} COMMAND ${name})
  # The limit ends a test that hangs. On a busy machine, tests take several times as long as usual.
  set_tests_properties(${name} PROPERTIES LABELS "${AG_LABELS}" TIMEOUT 2400)
endfunction()

function(ag_test name)
  _ag_test(${name} ag_test_headers ${ARGN})
  target_compile_options(${name} PRIVATE ${AG_TEST_OPTIMIZATION})
endfunction()

function(ag_torch_test name)
  _ag_test(${name} ag_${AG_DEFAULT_TORCH}_headers ${ARGN})
  ag_loads_torch(${name})
endfunction()
