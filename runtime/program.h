// SPDX-License-Identifier: Apache-2.0
// Program: the instruction list of one entry (forward or backward) of a compiled region. Pure data, no torch, no MLIR.
//
// A Program names values by dense ids. Each value has a type and a storage class; instructions read and write values in
// order. Sizes and strides are SymExpr over the region's symbols, which the executor binds from the inputs at each
// call.
//
//   values:  v0 input f32[s0,64]   v1 input f32[64]   v2 arena f32[s0,64]   v3 external f32[s0,64]
//   kernel  k0(v0, v1 -> v2)                    one launch of generated code
//   call    aten.mm(v2, v1t -> v3)              an operator that is not compiled
//   view    v4                                  a tensor that shares the memory of another one
//   release v2
//   ready v3                                    the caller takes v3 before anything else runs
//
// Instructions run in program order. Each `ready` ends a stage; the instructions after the last one are the last stage.
// Ownership: a Program is immutable once it is part of an Executable and may be run by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/base/dtype.h"
#include "runtime/base/sym_expr.h"

namespace agspeed::runtime {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;

/// Where a value's bytes come from.
enum class Storage : uint8_t {
  kInput,     ///< an argument of the entry
  kConstant,  ///< held by the Executable (Executable::constants)
  kArena,     ///< planned: arenaOffset bytes into the call's arena; lost when the call ends
  kFresh,     ///< allocated for this call and handed out: an output or a saved tensor
  kExternal,  ///< produced (and allocated) by an ExternalCall
  kView,      ///< in the memory of ValueDecl::source; a tensor from its View on
};

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<SymExpr> sizes;
  std::vector<SymExpr> strides;  ///< in elements
};

struct ValueDecl {
  TensorType type;
  Storage storage = Storage::kInput;
  int32_t index = 0;          ///< input position, or index into Executable::constants
  SymExpr arenaOffset;        ///< bytes, kArena only
  ValueId source = kNoValue;  ///< kView only: the value that owns the memory, never a kView itself
  SymExpr viewOffset;         ///< kView only: elements between the first ones of the source and of this value
  bool isScalar = false;      ///< a SymInt/int input or output, not a tensor; its value is symbolValue
  SymExpr symbolValue;
  bool isOnHost = false;  ///< a tensor on the CPU in a Program for another device; only operators use it
};

/// Where the value of symbol s<i> is read at each call: from a size of an input tensor, or from an integer input (dim
/// == -1). input == -1: the entry does not use the symbol.
struct SymbolBinding {
  int32_t input = 0;
  int32_t dim = -1;
};

/// Launch of generated code. The kernel's C signature (compiler/kernel/kernel_abi.md):
///   void kernel(void* const* pointers, const int64_t* integers, int64_t begin, int64_t end)
/// pointers: data pointers of `operands` in order. integers: `integers` evaluated. [begin, end) is a slice of
/// [0, extent); slices may run concurrently and together cover the extent exactly once. On a device it is one launch.
struct KernelCall {
  int32_t kernel = 0;  ///< index into Executable's kernels
  std::vector<ValueId> operands;
  std::vector<SymExpr> integers;
  SymExpr extent;
  SymExpr grain;          ///< smallest slice that is worth a thread, derived from shapes alone
  std::string name = {};  ///< the kernel's name in profiles and reports
  /// Per operand: elements between the first one of its value and the one at which the kernel begins. Empty: all are 0.
  std::vector<SymExpr> offsets = {};
};

/// Makes the tensor of a value of storage kView, without a call of the tensor library.
struct View {
  ValueId value = kNoValue;
};

/// A condition on sizes that holds for all sizes that a graph was captured for: `begin` is not negative, and at most
/// `end` elements span the value.
struct Bound {
  ValueId value = kNoValue;
  SymExpr begin;
  SymExpr end;
};

/// An argument of an ExternalCall: positional ones first, then keywords. The executor matches them to the operator's
/// schema and fills in defaults. Devices, layouts and memory formats are strings ("cpu", "strided",
/// "contiguous_format").
struct ExternalArg {
  struct None {};
  struct Type {
    DType dtype;
  };
  using Scalar = std::variant<None, bool, double, SymExpr, std::string, Type>;
  enum class Kind : uint8_t { kValue, kValueList, kScalar, kScalarList };
  Kind kind = Kind::kScalar;
  std::vector<ValueId> values;  ///< kNoValue stands for None inside a list of optional tensors
  std::vector<Scalar> scalars;
  std::string name;  ///< keyword; empty: positional
};

/// Call of an operator by name, e.g. "aten.addmm.default". Unused results are kNoValue.
struct ExternalCall {
  std::string op;
  std::vector<ExternalArg> args;
  std::vector<ValueId> results;
  std::string reason = {};  ///< why it is not part of a kernel, for reports
};

/// Drops the executor's reference to a tensor of storage kInput, kExternal, kFresh or kView.
struct Release {
  ValueId value = kNoValue;
};

/// Ends a stage: hands over the outputs that are these values. Later instructions do not touch their memory.
struct GradientsReady {
  std::vector<ValueId> values;
};

struct Instruction {
  std::variant<KernelCall, ExternalCall, View, Release, GradientsReady> op;
  std::string origin;  ///< FX node names this came from, for errors and reports
};

struct Program {
  Device device;  ///< of kernels, arena, constants and all tensors that are not isOnHost
  std::vector<ValueDecl> values;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;  ///< kNoValue: None
  std::vector<SymbolBinding> symbols;
  std::vector<Instruction> instructions;
  SymExpr arenaBytes;
  std::vector<Bound> bounds;  ///< of kernels and views that begin inside a value
};

/// By output: the stage after which it is handed over; 0 for None. Outputs that no `ready` names belong to the last
/// stage.
std::vector<int32_t> stagesOfOutputs(const Program& program);
/// One more than the number of `ready` instructions.
size_t numStages(const Program& program);

/// Checks all rules that execution relies on: ids are in range, values are written before they are read, values are not
/// read after they were released or handed over, outputs are outside the arena. Errors: kInvalidArgument naming the
/// instruction and the value.
Status verify(const Program& program, size_t numKernels, size_t numConstants);

}  // namespace agspeed::runtime
