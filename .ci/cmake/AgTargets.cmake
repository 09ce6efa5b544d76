# SPDX-License-Identifier: Apache-2.0
# One call per target, so that every folder's CMakeLists reads as a list of its parts.
#
#   ag_library(name SRCS ... DEPS ...)   static library agspeed::name
#   ag_mlir_library(name SRCS ... DEPS ...)  the same, with MLIR/LLVM headers
#   ag_torch_library(name SRCS ... DEPS ...) one library for each torch of AG_TORCHES, with its headers and libraries:
#                                        ag_<name>_<torch>; agspeed::name is the one for the default torch
#   ag_test(name SRCS ... DEPS ... [LABELS ...])  GoogleTest binary registered with CTest

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
  target_include_directories(ag_${name} SYSTEM PUBLIC ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
  target_link_libraries(ag_${name} PUBLIC ag_mlir)
endfunction()

function(ag_torch_library name)
  _ag_parse(${ARGV})
  foreach(torch IN LISTS AG_TORCHES)
    ag_for_torch(deps ${torch} ${AG_DEPS})
    ag_library(${name}_${torch} SRCS ${AG_SRCS} DEPS ${deps} ag_${torch})
    ag_precompile_torch(ag_${name}_${torch} ${torch})
  endforeach()
  add_library(agspeed::${name} ALIAS ag_${name}_${AG_DEFAULT_TORCH})
endfunction()

# Of each library the one for `torch`, where there is one for each.
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

# Torch's largest headers are parsed once for each torch, not once for each file of `target`. Parsing them takes most of
# the time that such a file takes to compile.
function(ag_precompile_torch target torch)
  set(headers ag_${torch}_headers)
  if(NOT TARGET ${headers})
    file(CONFIGURE OUTPUT ${headers}.cpp CONTENT "")
    add_library(${headers} STATIC "${CMAKE_CURRENT_BINARY_DIR}/${headers}.cpp")
    target_link_libraries(${headers} PRIVATE ag_${torch})
    target_compile_options(${headers} PRIVATE -fpch-preprocess)
    target_precompile_headers(${headers} PRIVATE
      <ATen/ATen.h> <torch/csrc/autograd/variable.h> <torch/csrc/distributed/c10d/Backend.hpp>)
  endif()
  target_compile_options(${target} PRIVATE -fpch-preprocess)  # ccache needs it
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

# A test binary that loads the default torch. Its CUDA libraries name symbols of libraries that only its Python package
# loads.
function(ag_loads_torch target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "${AG_${AG_DEFAULT_TORCH}_DIR}/lib")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    ag_precompile_torch(${target} ${AG_DEFAULT_TORCH})
    target_compile_options(${target} PRIVATE -fPIC)  # as those headers were compiled
    target_link_options(${target} PRIVATE -Wl,--allow-shlib-undefined)
  endif()
endfunction()

function(ag_test name)
  _ag_parse(${ARGV})
  add_executable(${name} ${AG_SRCS})
  target_compile_options(${name} PRIVATE ${AG_WARNINGS} -O1)  # compiled more often than run
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${AG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${AG_LABELS}" TIMEOUT 600)
endfunction()
