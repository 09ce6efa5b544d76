// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_kernel.h"

#include "compiler/graph/window_plan.h"
#include "compiler/kernel/emit/cluster_schedule.h"
#include "compiler/kernel/emit/emit_loop.h"
#include "compiler/kernel/emit/emit_memory.h"
#include "compiler/kernel/emit/emit_pointwise.h"
#include "compiler/kernel/emit/emit_types.h"
#include "compiler/kernel/emit/window/control_flow.h"
#include "compiler/kernel/emit/window/emit_window.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

class KernelEmitter {
 public:
  KernelEmitter(ValueBuilder& builder, const Cluster& cluster, const ClusterSchedule& schedule, func::FuncOp function)
      : b_(builder),
        cluster_(cluster),
        schedule_(schedule),
        access_(builder, cluster, schedule.lanes, function.getArgument(0), function.getArgument(1)),
        begin_(builder.wrap(function.getArgument(2))),
        end_(builder.wrap(function.getArgument(3))) {}

  void emit() {
    if (cluster_.outerRank == 0) {
      emitRow({begin_, end_, schedule_.lanes});
    } else if (cluster_.sumsRows()) {
      emitBlocks();
    } else {
      emitRows(begin_, end_);
    }
  }

 private:
  using Coordinates = std::vector<Val>;

  // Outer coordinates of a row, innermost last. This is the only division; later rows count up.
  Coordinates coordinatesOf(Val row) {
    int rank = cluster_.outerRank;
    Coordinates coordinates(rank);
    Val rest = row;
    for (int dimension = rank - 1; dimension > 0; --dimension) {
      Val size = access_.outerSize(dimension);
      Val one = b_.like(size, 1);
      Val divisor = select(gt(size, one), size, one);
      Val quotient = b_.wrap(arith::DivUIOp::create(b_.ops(), b_.loc(), rest.value, divisor.value).getResult());
      coordinates[dimension] = rest - quotient * divisor;
      rest = quotient;
    }
    coordinates[0] = rest;
    return coordinates;
  }

  // Adds one to the innermost coordinate and carries outwards.
  Coordinates nextCoordinates(Coordinates coordinates) {
    Val one = b_.like(begin_, 1);
    Val zero = b_.like(begin_, 0);
    Val carry = one;
    for (int dimension = cluster_.outerRank - 1; dimension > 0; --dimension) {
      Val counted = coordinates[dimension] + carry;
      Val wraps = ge(counted, access_.outerSize(dimension));
      coordinates[dimension] = select(wraps, zero, counted);
      carry = select(wraps, one, zero);
    }
    coordinates[0] = coordinates[0] + carry;
    return coordinates;
  }

  // The slice counts blocks. Each block clears its sums, then adds its rows to them.
  void emitBlocks() {
    Val numRows = access_.outerSize(0);
    for (int dimension = 1; dimension < cluster_.outerRank; ++dimension) {
      numRows = numRows * access_.outerSize(dimension);
    }
    scf::ForOp::create(b_.ops(), b_.loc(), begin_.value, end_.value, b_.like(begin_, 1).value, ValueRange{},
                       [&](OpBuilder& ops, Location loc, Value index, ValueRange) {
                         OpBuilder::InsertionGuard guard(b_.ops());
                         b_.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                         Val block = b_.wrap(index);
                         access_.enterBlock(block);
                         clearSums();
                         Val first = block * access_.blockRows();
                         Val next = first + access_.blockRows();
                         emitRows(first, select(lt(next, numRows), next, numRows));
                         scf::YieldOp::create(b_.ops(), loc);
                       });
  }

  void clearSums() {
    ColumnRange columns{b_.like(begin_, 0), access_.numColumns(), schedule_.lanes};
    emitColumnLoop(b_, columns, {}, [&](const ColumnVector& vector) {
      for (const ClusterStore& store : schedule_.elementStores) {
        if (!cluster_.operands[store.operand].isPerBlock) continue;
        Type element = registerType(b_.ops().getContext(), cluster_.nodes[store.node].dtype);
        access_.store(store.operand, vector, b_.constant(VectorType::get({vector.lanes}, element), 0));
      }
      return std::vector<Val>();
    });
  }

  // A tile ends where the index of a row in the last outer dimension is a multiple of the lanes.
  Val rowsOfTile(Val row, Val end, const Coordinates& coordinates) {
    Val lanes = b_.like(row, schedule_.lanes);
    Val inner = coordinates.back();
    Val count = lanes - (inner & (lanes - 1));
    for (Val limit : {access_.outerSize(cluster_.outerRank - 1) - inner, end - row}) {
      count = select(lt(limit, count), limit, count);
    }
    return count;
  }

  void emitTiles(Val begin, Val end) {
    const auto condition = [&](OpBuilder& ops, Location loc, ValueRange row) {
      Value isBefore = arith::CmpIOp::create(ops, loc, arith::CmpIPredicate::slt, row[0], end.value);
      scf::ConditionOp::create(ops, loc, isBefore, row);
    };
    const auto body = [&](OpBuilder& ops, Location loc, ValueRange carried) {
      OpBuilder::InsertionGuard guard(b_.ops());
      b_.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
      Val row = b_.wrap(carried[0]);
      Coordinates coordinates = coordinatesOf(row);
      Val numRows = rowsOfTile(row, end, coordinates);
      access_.enterTile(coordinates, numRows);
      emitFor(b_.like(row, 0), numRows, [&](Val index) {
        access_.enterRowOfTile(index);
        emitRow({b_.like(begin_, 0), access_.numColumns(), schedule_.lanes});
      });
      access_.leaveTile();
      scf::YieldOp::create(b_.ops(), loc, (row + numRows).value);
    };
    scf::WhileOp::create(b_.ops(), b_.loc(), TypeRange{begin.type()}, ValueRange{begin.value}, condition, body);
  }

  void emitRows(Val begin, Val end) {
    if (access_.hasTiles()) return emitTiles(begin, end);
    SmallVector<Value> initial;
    for (Val coordinate : coordinatesOf(begin)) initial.push_back(coordinate.value);
    scf::ForOp::create(b_.ops(), b_.loc(), begin.value, end.value, b_.like(begin, 1).value, initial,
                       [&](OpBuilder& ops, Location loc, Value, ValueRange carried) {
                         OpBuilder::InsertionGuard guard(b_.ops());
                         b_.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                         Coordinates coordinates;
                         for (Value value : carried) coordinates.push_back(b_.wrap(value));
                         access_.enterRow(coordinates);
                         emitRow({b_.like(begin_, 0), access_.numColumns(), schedule_.lanes});
                         SmallVector<Value> next;
                         for (Val coordinate : nextCoordinates(coordinates)) next.push_back(coordinate.value);
                         scf::YieldOp::create(b_.ops(), loc, next);
                       });
  }

  void emitRow(const ColumnRange& columns) {
    rowValues_.assign(cluster_.nodes.size(), Val());
    int numPhases = schedule_.numPhases();
    for (int phase = 0; phase < numPhases; ++phase) {
      emitRowValues(phase);
      emitPhase(phase, columns, phase == numPhases - 1);
    }
    emitRowValues(numPhases);
    for (const ClusterStore& store : schedule_.rowStores) {
      access_.storeRow(store.operand,
                       valueAs(cluster_.operands[store.operand].dtype, cluster_, store.node, rowValues_[store.node]));
    }
  }

  // Computes the row values that become available at `phase`, other than reductions.
  void emitRowValues(int phase) {
    for (size_t index = 0; index < cluster_.nodes.size(); ++index) {
      const ClusterNode& node = cluster_.nodes[index];
      if (!schedule_.isRow[index] || schedule_.phase[index] != phase || infoOf(node.op).isReduction) continue;
      if (node.op == PointwiseOp::kLoad) {
        rowValues_[index] = access_.loadRow(node.operand);
        continue;
      }
      SmallVector<Val> inputs;
      for (int32_t input : node.inputs) inputs.push_back(rowValues_[input]);
      rowValues_[index] = emitNode(b_, cluster_, node, inputs);
    }
  }

  void emitPhase(int phase, const ColumnRange& columns, bool isLast) {
    const std::vector<int>& reductionNodes = schedule_.reductions[phase];
    std::vector<Reduction> reductions;
    for (int node : reductionNodes) reductions.push_back({cluster_.nodes[node].op, cluster_.nodes[node].dtype});
    auto body = [&](const ColumnVector& vector) {
      elementValues_.assign(cluster_.nodes.size(), Val());
      std::vector<Val> taken;
      for (int node : reductionNodes) taken.push_back(reductionInput(cluster_.nodes[node], vector));
      if (isLast) storeElements(vector);
      return taken;
    };
    std::vector<Val> results = emitColumnLoop(b_, columns, reductions, body);
    for (size_t i = 0; i < results.size(); ++i) rowValues_[reductionNodes[i]] = results[i];
  }

  Val reductionInput(const ClusterNode& reduction, const ColumnVector& columns) {
    int32_t input = reduction.inputs[0];
    return valueAs(reduction.dtype, cluster_, input, elementValue(input, columns));
  }

  // Computes all values first, because a store may overwrite memory that a later value would load.
  void storeElements(const ColumnVector& columns) {
    std::vector<Val> values;
    for (const ClusterStore& store : schedule_.elementStores) {
      const ClusterNode& node = cluster_.nodes[store.node];
      bool isSum = node.op == PointwiseOp::kSumRows;
      values.push_back(elementValue(isSum ? node.inputs[0] : store.node, columns));
      if (isSum) values.back() = access_.load(store.operand, columns) + values.back();
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const ClusterStore& store = schedule_.elementStores[i];
      access_.store(store.operand, columns,
                    valueAs(cluster_.operands[store.operand].dtype, cluster_, store.node, values[i]));
    }
  }

  // The node's value for a vector of columns, computed at most once per loop body.
  Val elementValue(int32_t index, const ColumnVector& columns) {
    Val& value = elementValues_[index];
    if (value.value) return value;
    const ClusterNode& node = cluster_.nodes[index];
    if (schedule_.isRow[index]) {
      Type type = VectorType::get({columns.lanes}, rowValues_[index].type());
      return value = b_.splat(rowValues_[index], type);
    }
    if (node.op == PointwiseOp::kLoad) return value = access_.load(node.operand, columns);
    SmallVector<Val> inputs;
    for (int32_t input : node.inputs) inputs.push_back(elementValue(input, columns));
    return value = emitNode(b_, cluster_, node, inputs);
  }

  ValueBuilder& b_;
  const Cluster& cluster_;
  const ClusterSchedule& schedule_;
  OperandAccess access_;
  Val begin_;
  Val end_;
  std::vector<Val> rowValues_;      ///< per node, null until known in the current row
  std::vector<Val> elementValues_;  ///< per node, null until emitted in the current loop body
};

Status emitBody(ValueBuilder& builder, const Cluster& cluster, func::FuncOp function) {
  if (cluster.window) {
    AG_RETURN_IF_ERROR(checkWindowSize(*cluster.window, cluster.operands[0].dtype));
    const bool sums = infoOf(cluster.window->op).sumsOverBatch;
    const auto emit = cluster.window->isResampling() ? emitResample : sums ? emitWeightGradient : emitWindow;
    emit(builder, cluster, function.getArguments());
    return {};
  }
  AG_ASSIGN_OR_RETURN(ClusterSchedule schedule, scheduleCluster(cluster));
  for (const ClusterNode& node : cluster.nodes) AG_RETURN_IF_ERROR(checkPointwise(cluster, node));
  KernelEmitter(builder, cluster, schedule, function).emit();
  return {};
}

}  // namespace

void loadKernelDialects(MLIRContext& context) {
  context.loadDialect<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect, LLVM::LLVMDialect,
                      math::MathDialect, scf::SCFDialect, vector::VectorDialect>();
}

StatusOr<OwningOpRef<ModuleOp>> emitKernel(MLIRContext& context, const Cluster& cluster, const std::string& name) {
  OpBuilder ops(&context);
  Location loc = UnknownLoc::get(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  ops.setInsertionPointToEnd(module->getBody());
  Type pointer = LLVM::LLVMPointerType::get(&context);
  Type i64 = ops.getI64Type();
  auto function = func::FuncOp::create(ops, loc, name, ops.getFunctionType({pointer, pointer, i64, i64}, {}));
  ops.setInsertionPointToStart(function.addEntryBlock());
  ValueBuilder builder(ops, loc);
  AG_RETURN_IF_ERROR(emitBody(builder, cluster, function));
  func::ReturnOp::create(ops, loc);
  return module;
}

}  // namespace agspeed::compiler
