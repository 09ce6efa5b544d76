// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/emit_device_kernel.h"

#include "backends/nvptx/column_pass.h"
#include "backends/nvptx/device_operands.h"
#include "backends/nvptx/thread_group.h"
#include "compiler/kernel/emit/emit_pointwise.h"
#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::backends::nvptx {

using namespace mlir;
using namespace passes;
using compiler::castValue;
using compiler::Cluster;
using compiler::ClusterNode;
using compiler::ClusterStore;
using compiler::infoOf;
using compiler::PointwiseOp;
using compiler::Reduction;
using compiler::registerType;

namespace {

Val divideUnsigned(Val a, Val b) {
  ValueBuilder& builder = *a.builder;
  return builder.wrap(arith::DivUIOp::create(builder.ops(), builder.loc(), a.value, b.value).getResult());
}

/// The row (or block of rows) that a thread works on.
struct Unit {
  Val index;
  Val isActive;  ///< i1: false for threads beyond the extent, which compute another unit and store nothing
};

class EntryEmitter {
 public:
  EntryEmitter(ValueBuilder& builder, const Cluster& cluster, const KernelPlan& plan, Entry entry,
               func::FuncOp function, const std::string& sharedName)
      : b_(builder),
        cluster_(cluster),
        plan_(plan),
        entry_(entry),
        operands_(builder, cluster, function.getArgument(0)),
        zero_(builder.integer(builder.ops().getI64Type(), 0)),
        yes_(builder.integer(builder.ops().getI1Type(), 1)) {
    for (const ClusterStore& store : plan.schedule.elementStores) {
      if (cluster.operands[store.operand].isPerBlock) sums_.push_back(store);
    }
    if (entry == Entry::kFlat) return;
    size_t most = 0;
    for (const std::vector<int>& reductions : plan.schedule.reductions) most = std::max(most, reductions.size());
    group_.emplace(builder, function->getParentOfType<ModuleOp>(), sharedName, static_cast<int>(most));
  }

  void emit() { entry_ == Entry::kFlat ? emitFlat() : emitGrouped(); }

 private:
  using Coordinates = std::vector<Val>;

  // --- units ---

  // Thread numbers count chunks: first all chunks of the first unit, then all of the second, and so on.
  void emitFlat() {
    Val lanes = b_.like(zero_, plan_.lanes);
    bool isOneRow = cluster_.outerRank == 0;
    Val end = isOneRow ? operands_.end() : operands_.numColumns();
    Val length = isOneRow ? operands_.end() - operands_.begin() : end;
    Val chunksPerUnit = divideUnsigned(length + (lanes - 1.0), lanes);
    Val numUnits = isOneRow ? b_.like(zero_, 1) : operands_.end() - operands_.begin();
    Val thread = readRegister(b_, ThreadRegister::kBlockX) * readRegister(b_, ThreadRegister::kGroupThreads) +
                 readRegister(b_, ThreadRegister::kThreadX);
    emitIf(lt(thread, numUnits * chunksPerUnit), [&] {
      Val unit = isOneRow ? zero_ : divideUnsigned(thread, chunksPerUnit);
      Val first = (thread - unit * chunksPerUnit) * lanes;
      if (isOneRow) first = first + operands_.begin();
      columns_ = ColumnPass::ofChunk(b_, {first, end, yes_, plan_.lanes});
      emitUnit({isOneRow ? zero_ : unit + operands_.begin(), yes_});
    });
  }

  void emitGrouped() {
    Val group = readRegister(b_, ThreadRegister::kBlockX) * readRegister(b_, ThreadRegister::kGroupsOfBlock) +
                readRegister(b_, ThreadRegister::kThreadY);
    Val unit = operands_.begin() + group;
    Val isActive = lt(unit, operands_.end());
    int chunks = entry_ == Entry::kResident ? plan_.residentChunks : 0;
    columns_ = ColumnPass::ofGroup(b_, *group_, operands_.numColumns(), plan_.lanes, chunks);
    emitUnit({select(isActive, unit, operands_.end() - 1.0), isActive});
  }

  void emitUnit(const Unit& unit) {
    if (cluster_.sumsRows()) return emitBlock(unit);
    if (cluster_.outerRank > 0) operands_.enterRow(coordinatesOf(unit.index));
    emitRow(unit.isActive, {});
  }

  Coordinates coordinatesOf(Val row) {
    Coordinates coordinates(cluster_.outerRank);
    for (int dimension = cluster_.outerRank - 1; dimension > 0; --dimension) {
      Val size = operands_.outerSize(dimension);
      Val quotient = divideUnsigned(row, select(gt(size, 1), size, b_.like(size, 1)));
      coordinates[dimension] = row - quotient * size;
      row = quotient;
    }
    coordinates[0] = row;
    return coordinates;
  }

  // --- sums over rows ---

  // All groups of a warp run as many rows as a full block has. Rows beyond the last one are computed and dropped.
  void emitBlock(const Unit& unit) {
    operands_.enterBlock(unit.index);
    Val numRows = operands_.outerSize(0);
    for (int dimension = 1; dimension < cluster_.outerRank; ++dimension) {
      numRows = numRows * operands_.outerSize(dimension);
    }
    bool isKept = !columns_->isLoop();
    if (!isKept) clearSums(unit.isActive);
    Val count = select(lt(operands_.blockRows(), numRows), operands_.blockRows(), numRows);
    SmallVector<Value> initial = isKept ? neutralSums() : SmallVector<Value>();
    auto loop = scf::ForOp::create(b_.ops(), b_.loc(), zero_.value, count.value, b_.like(zero_, 1).value, initial,
                                   [&](OpBuilder& ops, Location loc, Value index, ValueRange carried) {
                                     OpBuilder::InsertionGuard guard(b_.ops());
                                     b_.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                                     Val row = unit.index * operands_.blockRows() + b_.wrap(index);
                                     Val exists = lt(row, numRows);
                                     operands_.enterRow(coordinatesOf(select(exists, row, numRows - 1.0)));
                                     scf::YieldOp::create(b_.ops(), loc,
                                                          emitRow(unit.isActive & exists, SmallVector<Value>(carried)));
                                   });
    if (isKept) storeSums(unit.isActive, loop.getResults());
  }

  Val neutralSum(const ClusterStore& store) {
    Type element = registerType(b_.ops().getContext(), cluster_.nodes[store.node].dtype);
    return b_.constant(VectorType::get({plan_.lanes}, element), 0);
  }

  // One value per sum and per chunk of the thread.
  SmallVector<Value> neutralSums() {
    SmallVector<Value> values;
    for (const ClusterStore& store : sums_) values.append(columns_->numChunks(), neutralSum(store).value);
    return values;
  }

  void clearSums(Val isActive) {
    columns_->forEach({}, isActive, [&](const ColumnChunk& chunk, int) {
      for (const ClusterStore& store : sums_) operands_.store(store.operand, chunk, neutralSum(store));
      return std::vector<Val>();
    });
  }

  void storeSums(Val isActive, ValueRange sums) {
    int numChunks = columns_->numChunks();
    columns_->forEach({}, isActive, [&](const ColumnChunk& chunk, int place) {
      for (size_t i = 0; i < sums_.size(); ++i) {
        operands_.store(sums_[i].operand, chunk, b_.wrap(sums[i * numChunks + place]));
      }
      return std::vector<Val>();
    });
  }

  // --- rows ---

  // Returns the sums; `carried` are their values before this row.
  SmallVector<Value> emitRow(Val isActive, SmallVector<Value> carried) {
    rowValues_.assign(cluster_.nodes.size(), Val());
    chunkValues_.assign(columns_->numChunks(), std::vector<Val>(cluster_.nodes.size()));
    sumValues_ = std::move(carried);
    int numPhases = plan_.schedule.numPhases();
    for (int phase = 0; phase < numPhases; ++phase) {
      emitRowValues(phase);
      emitPhase(phase, isActive, phase == numPhases - 1);
    }
    emitRowValues(numPhases);
    storeRows(isActive);
    return std::move(sumValues_);
  }

  // Stored by the first thread of a group, when no other thread still reads the memory that it overwrites.
  void storeRows(Val isActive) {
    if (plan_.schedule.rowStores.empty()) return;
    if (!cluster_.hasReduction()) group_->synchronize();
    emitIf(isActive & eq(group_->rank(), 0.0), [&] {
      for (const ClusterStore& store : plan_.schedule.rowStores) {
        operands_.storeRow(store.operand, compiler::valueAs(cluster_.operands[store.operand].dtype, cluster_,
                                                            store.node, rowValues_[store.node]));
      }
    });
  }

  void emitRowValues(int phase) {
    for (size_t index = 0; index < cluster_.nodes.size(); ++index) {
      const ClusterNode& node = cluster_.nodes[index];
      bool isDue = plan_.schedule.isRow[index] && plan_.schedule.phase[index] == phase;
      if (!isDue || infoOf(node.op).isReduction) continue;
      if (node.op == PointwiseOp::kLoad) {
        rowValues_[index] = operands_.loadRow(node.operand);
        continue;
      }
      SmallVector<Val> inputs;
      for (int32_t input : node.inputs) inputs.push_back(rowValues_[input]);
      rowValues_[index] = compiler::emitNode(b_, cluster_, node, inputs);
    }
  }

  void emitPhase(int phase, Val isActive, bool isLast) {
    const std::vector<int>& nodes = plan_.schedule.reductions[phase];
    std::vector<Reduction> reductions;
    for (int node : nodes) reductions.push_back({cluster_.nodes[node].op, cluster_.nodes[node].dtype});
    std::vector<Val> results = columns_->forEach(reductions, isActive, [&](const ColumnChunk& chunk, int place) {
      std::vector<Val>& values = chunkValues_[place];
      if (columns_->isLoop()) values.assign(cluster_.nodes.size(), Val());
      std::vector<Val> taken;
      for (int node : nodes) taken.push_back(reductionInput(cluster_.nodes[node], chunk, values));
      if (isLast) storeElements(chunk, values, place);
      return taken;
    });
    if (!reductions.empty()) results = group_->reduce(reductions, std::move(results));
    for (size_t i = 0; i < results.size(); ++i) rowValues_[nodes[i]] = results[i];
  }

  Val reductionInput(const ClusterNode& reduction, const ColumnChunk& chunk, std::vector<Val>& values) {
    int32_t input = reduction.inputs[0];
    return compiler::valueAs(reduction.dtype, cluster_, input, elementValue(input, chunk, values));
  }

  // Computes all values first, because a store may overwrite memory that a later value would load.
  void storeElements(const ColumnChunk& chunk, std::vector<Val>& values, int place) {
    std::vector<Val> stored;
    for (const ClusterStore& store : plan_.schedule.elementStores) {
      const ClusterNode& node = cluster_.nodes[store.node];
      bool isSum = node.op == PointwiseOp::kSumRows;
      stored.push_back(elementValue(isSum ? node.inputs[0] : store.node, chunk, values));
    }
    size_t sum = 0;
    for (size_t i = 0; i < stored.size(); ++i) {
      const ClusterStore& store = plan_.schedule.elementStores[i];
      if (cluster_.nodes[store.node].op == PointwiseOp::kSumRows) {
        addToSum(sum++, store, chunk, stored[i], place);
      } else {
        operands_.store(store.operand, chunk,
                        compiler::valueAs(cluster_.operands[store.operand].dtype, cluster_, store.node, stored[i]));
      }
    }
  }

  void addToSum(size_t sum, const ClusterStore& store, const ColumnChunk& chunk, Val value, int place) {
    if (columns_->isLoop()) {
      operands_.store(store.operand, chunk, operands_.load(store.operand, chunk) + value);
      return;
    }
    Value& kept = sumValues_[sum * columns_->numChunks() + place];
    Val before = b_.wrap(kept);
    Type mask = withElement(before.type(), b_.ops().getI1Type());
    kept = select(b_.splat(chunk.isActive, mask), before + value, before).value;
  }

  // The node's value for a chunk, computed at most once.
  Val elementValue(int32_t index, const ColumnChunk& chunk, std::vector<Val>& values) {
    if (values[index].value) return values[index];
    const ClusterNode& node = cluster_.nodes[index];
    if (plan_.schedule.isRow[index]) {
      Type type = VectorType::get({chunk.lanes}, rowValues_[index].type());
      return values[index] = b_.splat(rowValues_[index], type);
    }
    if (node.op == PointwiseOp::kLoad) return values[index] = operands_.load(node.operand, chunk);
    SmallVector<Val> inputs;
    for (int32_t input : node.inputs) inputs.push_back(elementValue(input, chunk, values));
    return values[index] = compiler::emitNode(b_, cluster_, node, inputs);
  }

  template <typename Body>
  void emitIf(Val condition, const Body& body) {
    auto branch = scf::IfOp::create(b_.ops(), b_.loc(), condition.value, /*withElseRegion=*/false);
    OpBuilder::InsertionGuard guard(b_.ops());
    b_.ops().setInsertionPointToStart(branch.thenBlock());
    body();
  }

  ValueBuilder& b_;
  const Cluster& cluster_;
  const KernelPlan& plan_;
  Entry entry_;
  DeviceOperands operands_;
  Val zero_;
  Val yes_;
  std::optional<ThreadGroup> group_;  ///< none in a flat entry
  std::optional<ColumnPass> columns_;
  std::vector<ClusterStore> sums_;
  std::vector<Val> rowValues_;                 ///< per node, null until known in the current row
  std::vector<std::vector<Val>> chunkValues_;  ///< per chunk, per node: null until emitted in the current row
  SmallVector<Value> sumValues_;               ///< per sum, per chunk, if sums stay in registers
};

void emitEntry(OpBuilder& ops, Location loc, ModuleOp module, const Cluster& cluster, const KernelPlan& plan,
               Entry entry, const std::string& symbol) {
  OpBuilder::InsertionGuard guard(ops);
  ops.setInsertionPointToEnd(module.getBody());
  Type pointer = LLVM::LLVMPointerType::get(ops.getContext());
  auto type = ops.getFunctionType({pointer}, {});
  auto function = func::FuncOp::create(ops, loc, entryName(symbol, entry), type);
  ops.setInsertionPointToStart(function.addEntryBlock());
  ValueBuilder builder(ops, loc);
  EntryEmitter(builder, cluster, plan, entry, function, entryName(symbol, entry) + "_shared").emit();
  func::ReturnOp::create(ops, loc);
}

}  // namespace

StatusOr<OwningOpRef<ModuleOp>> emitDeviceKernel(MLIRContext& context, const Cluster& cluster, const KernelPlan& plan,
                                                 const std::string& symbol) {
  for (const ClusterNode& node : cluster.nodes) AG_RETURN_IF_ERROR(compiler::checkPointwise(cluster, node));
  OpBuilder ops(&context);
  Location loc = UnknownLoc::get(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  for (Entry entry : plan.entries()) emitEntry(ops, loc, *module, cluster, plan, entry, symbol);
  return module;
}

}  // namespace agspeed::backends::nvptx
