// SPDX-License-Identifier: Apache-2.0
// AtenExecutable: an Executable bound to torch, ready to run its entries on tensors.
//
// Thread-safety: immutable after load; any thread may run any entry. Shared ownership: all objects that may still run
// an entry (a region, an autograd node) hold a shared_ptr.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/aten/aten_backend.h"
#include "runtime/executor.h"

namespace agspeed::runtime::aten {

/// A tensor, an integer, or None.
using Argument = std::variant<std::monostate, at::Tensor, int64_t>;

/// One entry, bound.
struct AtenEntry {
  std::shared_ptr<AtenBackend> backend;
  std::unique_ptr<Executor> executor;
  std::string event;                                ///< the profiler's name of a run, such as "agspeed::forward"
  std::vector<int32_t> stages;                      ///< by output: the stage that hands it over
  std::vector<std::vector<size_t>> outputsOfStage;  ///< by stage, in order; at least one

  size_t numStages() const { return outputsOfStage.size(); }
  const Program& program() const { return executor->program(); }
  bool isScalarInput(size_t index) const { return program().values[program().inputs[index]].isScalar; }
  /// Output `index` is an integer, not a tensor.
  bool isScalarOutput(size_t index) const {
    const ValueId id = program().outputs[index];
    return id != kNoValue && program().values[id].isScalar;
  }
  /// The input that output `index` is identical with, or -1.
  int32_t inputOfOutput(size_t index) const;
  /// The input whose memory output `index` is or views, or -1.
  int32_t inputAliasedByOutput(size_t index) const;
  bool sameValue(size_t first, size_t second) const { return program().outputs[first] == program().outputs[second]; }
  /// Whether two outputs are the same value or views of one.
  bool shareMemory(size_t first, size_t second) const;
};

/// One run of an entry, stage by stage. The entry outlives it. Threading: any thread, one at a time.
class AtenRun {
 public:
  explicit AtenRun(const AtenEntry& entry) : entry_(entry), lease_(entry.executor->lease()) {}

  /// Runs the first stage and returns its outputs, in order. Inputs from position `flexibleFrom` on may have any
  /// strides: they are copied if the Program needs others. Tensors that are moved in are freed after their last use, if
  /// there is no other reference to them. Errors: kInvalidArgument for inputs that do not fit, else the errors of
  /// Executor::run.
  StatusOr<std::vector<Argument>> start(const std::vector<Argument>& inputs);
  StatusOr<std::vector<Argument>> start(std::vector<Argument>&& inputs, size_t flexibleFrom);
  /// Runs the next stage and returns its outputs. Requires: no stage has failed, and there is one left.
  StatusOr<std::vector<Argument>> resume();

 private:
  AtenFrame& frame() const { return static_cast<AtenFrame&>(lease_.frame()); }
  template <typename Inputs>
  StatusOr<std::vector<Argument>> startOn(Inputs& inputs, size_t flexibleFrom);
  std::vector<Argument> takeOutputs();

  const AtenEntry& entry_;
  Executor::Lease lease_;
  size_t stage_ = 0;  ///< the stage to run next
};

class AtenExecutable {
 public:
  /// Errors: kUnsupported for an operator torch lacks, kInvalidArgument for a malformed Program; the entry is named.
  static StatusOr<std::shared_ptr<const AtenExecutable>> load(std::shared_ptr<const Executable> executable);

  /// nullptr when there is no such entry.
  const AtenEntry* entry(const std::string& name) const;
  /// Runs all stages and returns all outputs. Errors: as AtenRun.
  static StatusOr<std::vector<Argument>> run(const AtenEntry& entry, const std::vector<Argument>& inputs);
  const CompileStats& stats() const { return executable_->stats; }
  const Executable& executable() const { return *executable_; }

 private:
  AtenExecutable() = default;
  std::shared_ptr<const Executable> executable_;
  std::shared_ptr<ArenaPool> arenas_ = std::make_shared<ArenaPool>();
  std::vector<at::Tensor> constants_;
  std::map<std::string, AtenEntry> entries_;
};

/// While alive, operators called on this thread go straight to their kernels: no autograd, autocast, functorch or
/// Python.
class OperatorsOnly {
 public:
  OperatorsOnly();

 private:
  c10::impl::ExcludeDispatchKeyGuard keys_;
  c10::AutoGradMode gradMode_;
};

}  // namespace agspeed::runtime::aten
