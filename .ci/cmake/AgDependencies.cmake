# SPDX-License-Identifier: Apache-2.0
# Finds the packages that the build uses: MLIR/LLVM 22 (AG_WITH_COMPILER), torch through the Python interpreter given by
# Python_EXECUTABLE (AG_WITH_TORCH), and the small libraries of the core. It does not look for packages of an option
# that is off. It uses ccache and mold if they are present.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${CCACHE}")
  # ccache caches files that use precompiled headers only with the first option. With the other two, build folders share
  # objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 "${CCACHE}")
endif()
find_program(MOLD mold)
if(MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()

set(AG_WARNINGS -Wall -Wextra -Wno-unused-parameter -Werror=return-type -Werror=unused-result)
if(CMAKE_UNITY_BUILD)  # several files are compiled as one, and each is taken for a header
  list(APPEND AG_WARNINGS -Wno-subobject-linkage)
endif()
if(AG_WERROR)
  list(APPEND AG_WARNINGS -Werror)
endif()

# --- LLVM and MLIR 22 -------------------------------------------------------------------------------------------------
if(AG_WITH_COMPILER)
  list(APPEND CMAKE_PREFIX_PATH /usr/lib/llvm-22)
  find_package(MLIR REQUIRED CONFIG)
  if(NOT LLVM_VERSION_MAJOR EQUAL 22)
    message(FATAL_ERROR "agspeed needs MLIR/LLVM 22, found ${LLVM_PACKAGE_VERSION}: install libmlir-22-dev and mlir-22-tools")
  endif()
  add_library(ag_mlir INTERFACE)
  target_include_directories(ag_mlir SYSTEM INTERFACE ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
  if(AG_STATIC_LLVM)
    # Debian's component targets also link the dylibs, so the archives are listed by path.
    list(GET LLVM_LIBRARY_DIRS 0 AG_LLVM_LIB_DIR)
    file(GLOB AG_MLIR_ARCHIVES "${AG_LLVM_LIB_DIR}/libMLIR*.a")
    list(FILTER AG_MLIR_ARCHIVES EXCLUDE REGEX "Test|CAPI")
    file(GLOB AG_LLVM_ARCHIVES "${AG_LLVM_LIB_DIR}/libLLVM*.a")
    target_link_libraries(ag_mlir INTERFACE -Wl,--start-group ${AG_MLIR_ARCHIVES} ${AG_LLVM_ARCHIVES} -Wl,--end-group
      -Wl,--gc-sections -Wl,--as-needed -Wl,--exclude-libs,ALL z zstd xml2 edit curl pthread dl)
  else()
    target_link_libraries(ag_mlir INTERFACE MLIR LLVM)
  endif()
endif()

# --- torch ------------------------------------------------------------------------------------------------------------
# Sets AG_TORCHES, with a name for each release of torch to build for ("torch215"). The first one is the default. Each
# name has a target ag_NAME and the variables AG_NAME_DIR and AG_NAME_VERSION.
if(AG_WITH_TORCH)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  if(NOT AG_TORCH_DIRS)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
      OUTPUT_VARIABLE AG_TORCH_DIRS OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE AG_TORCH_RESULT ERROR_QUIET)
    if(NOT AG_TORCH_RESULT EQUAL 0)
      message(FATAL_ERROR "agspeed needs torch >= 2.11 in ${Python_EXECUTABLE}: run 'make setup' or pip install torch")
    endif()
  endif()
  foreach(directory IN LISTS AG_TORCH_DIRS)
    file(READ "${directory}/version.py" AG_TORCH_VERSION_FILE)
    if(NOT AG_TORCH_VERSION_FILE MATCHES "__version__ = '(([0-9]+)\\.([0-9]+)[^']*)'")
      message(FATAL_ERROR "${directory} holds no torch: its version.py names no version")
    endif()
    set(torch "torch${CMAKE_MATCH_2}${CMAKE_MATCH_3}")
    set(AG_${torch}_DIR "${directory}")
    set(AG_${torch}_VERSION "${CMAKE_MATCH_1}")
    list(APPEND AG_TORCHES ${torch})
    add_library(ag_${torch} INTERFACE)
    target_include_directories(ag_${torch} SYSTEM INTERFACE
      "${directory}/include" "${directory}/include/torch/csrc/api/include")
    target_link_directories(ag_${torch} INTERFACE "${directory}/lib")
    target_link_libraries(ag_${torch} INTERFACE c10 torch_cpu)  # libtorch would only add libtorch_cuda
  endforeach()
  list(GET AG_TORCHES 0 AG_DEFAULT_TORCH)
endif()

# --- small libraries --------------------------------------------------------------------------------------------------
find_package(nlohmann_json REQUIRED)
if(AG_WITH_COMPILER)
  find_package(SQLite3 REQUIRED)
endif()
set(OPENSSL_USE_STATIC_LIBS ${AG_STATIC_LLVM})  # a machine with the wheel may not have OpenSSL
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
# Optional, and for x86-64 only. Without it, OpenSSL seals frames, which is slower.
find_path(AG_IPSEC_MB_INCLUDE intel-ipsec-mb.h)
if(AG_STATIC_LLVM)
  find_library(AG_IPSEC_MB_LIBRARY libIPSec_MB.a)
else()
  find_library(AG_IPSEC_MB_LIBRARY IPSec_MB)
endif()
if(AG_IPSEC_MB_INCLUDE AND AG_IPSEC_MB_LIBRARY)
  add_library(ag_ipsec_mb INTERFACE)
  target_include_directories(ag_ipsec_mb SYSTEM INTERFACE "${AG_IPSEC_MB_INCLUDE}")
  target_link_libraries(ag_ipsec_mb INTERFACE "${AG_IPSEC_MB_LIBRARY}")
endif()
# Only Highway's headers: its library chooses the instruction set at run time, and exists only as a shared library.
find_package(hwy REQUIRED CONFIG)
add_library(ag_highway INTERFACE)
target_include_directories(ag_highway SYSTEM INTERFACE $<TARGET_PROPERTY:hwy::hwy,INTERFACE_INCLUDE_DIRECTORIES>)
if(AG_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(AG_WITH_COMPILER)
  message(STATUS "agspeed: LLVM ${LLVM_PACKAGE_VERSION}")
endif()
if(AG_WITH_TORCH)
  message(STATUS "agspeed: ${AG_TORCHES} (the first from ${AG_${AG_DEFAULT_TORCH}_DIR}), Python ${Python_VERSION}")
endif()
