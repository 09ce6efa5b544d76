# SPDX-License-Identifier: Apache-2.0
# Sets of large headers that many files include. Each set is parsed once, because parsing takes most of the compile time
# of such a file. A target that uses a set is compiled with the set's options: the same optimization, and -fPIC.
#
#   ag_precompile(target headers)        the files of `target` begin with the headers of the set `headers`
#   ag_TORCH_headers, ag_mlir_headers, ag_test_headers   the sets: one for each torch, one for MLIR, one for GoogleTest

function(ag_precompile target headers)
  target_compile_options(${target} PRIVATE -fPIC -fpch-preprocess)  # ccache needs the second option
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

function(_ag_headers name)
  cmake_parse_arguments(PARSE_ARGV 1 AG "" "" "HEADERS;DEPS;OPTIONS")
  file(CONFIGURE OUTPUT ${name}.cpp CONTENT "")
  add_library(${name} STATIC "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  target_link_libraries(${name} PRIVATE ${AG_DEPS})
  target_compile_options(${name} PRIVATE ${AG_OPTIONS} -fPIC -fpch-preprocess)
  target_precompile_headers(${name} PRIVATE ${AG_HEADERS})
endfunction()

if(AG_WITH_COMPILER)
  _ag_headers(ag_mlir_headers
    DEPS ag_mlir
    HEADERS
      <mlir/Dialect/Arith/IR/Arith.h>
      <mlir/Dialect/Func/IR/FuncOps.h>
      <mlir/Dialect/LLVMIR/LLVMDialect.h>
      <mlir/Dialect/Math/IR/Math.h>
      <mlir/Dialect/SCF/IR/SCF.h>
      <mlir/Dialect/Vector/IR/VectorOps.h>
      <mlir/IR/BuiltinOps.h>
      <mlir/Pass/Pass.h>
      <mlir/Transforms/DialectConversion.h>)
endif()
foreach(torch IN LISTS AG_TORCHES)
  _ag_headers(ag_${torch}_headers
    DEPS ag_${torch}
    HEADERS <ATen/ATen.h> <torch/csrc/autograd/variable.h> <torch/csrc/distributed/c10d/Backend.hpp>)
endforeach()
if(AG_BUILD_TESTS)
  _ag_headers(ag_test_headers
    DEPS GTest::gtest GTest::gmock
    OPTIONS ${AG_TEST_OPTIMIZATION}
    HEADERS <gmock/gmock.h> <gtest/gtest.h> <chrono> <filesystem> <fmt/format.h> <fstream> <functional> <random> <thread>)
endif()
