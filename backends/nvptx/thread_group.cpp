// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/thread_group.h"

#include "backends/nvptx/kernel_plan.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace agspeed::backends::nvptx {

using namespace mlir;
using namespace passes;
using compiler::Reduction;

namespace {

constexpr unsigned kSharedMemory = 3;
constexpr int kMaxWarps = kMaxGroupThreads / kWarpThreads;
static_assert(2 * kMaxWarps == kWarpThreads, "each half of a warp reads what all warps left");
constexpr int64_t kSlotBytes = 8;

Val callIntrinsic(ValueBuilder& b, Type result, const char* name, ArrayRef<Value> arguments) {
  auto call = LLVM::CallIntrinsicOp::create(b.ops(), b.loc(), result, b.ops().getStringAttr(name), arguments);
  return b.wrap(call.getResult(0));
}

}  // namespace

Val readRegister(ValueBuilder& builder, ThreadRegister which) {
  constexpr const char* kNames[] = {"llvm.nvvm.read.ptx.sreg.tid.x", "llvm.nvvm.read.ptx.sreg.tid.y",
                                    "llvm.nvvm.read.ptx.sreg.ctaid.x", "llvm.nvvm.read.ptx.sreg.ntid.x",
                                    "llvm.nvvm.read.ptx.sreg.ntid.y"};
  OpBuilder& ops = builder.ops();
  Val number = callIntrinsic(builder, ops.getI32Type(), kNames[static_cast<size_t>(which)], {});
  return convertInt(number, ops.getI64Type(), Signedness::kUnsigned);
}

ThreadGroup::ThreadGroup(ValueBuilder& builder, ModuleOp module, const std::string& sharedName, int maxReductions)
    : b_(builder) {
  OpBuilder& ops = b_.ops();
  auto type = LLVM::LLVMArrayType::get(ops.getI64Type(), std::max(1, maxReductions) * kMaxWarps);
  if (!module.lookupSymbol(sharedName)) {
    OpBuilder::InsertionGuard guard(ops);
    ops.setInsertionPointToStart(module.getBody());
    LLVM::GlobalOp::create(ops, b_.loc(), type, /*isConstant=*/false, LLVM::Linkage::Internal, sharedName, Attribute(),
                           kSlotBytes, kSharedMemory);
  }
  shared_ =
      LLVM::AddressOfOp::create(ops, b_.loc(), LLVM::LLVMPointerType::get(ops.getContext(), kSharedMemory), sharedName);
  rank_ = readRegister(b_, ThreadRegister::kThreadX);
  size_ = readRegister(b_, ThreadRegister::kGroupThreads);
}

Val ThreadGroup::spansWarps() { return gt(size_, kWarpThreads); }

void ThreadGroup::callBarrier(const char* intrinsic, int32_t argument) {
  Value value = b_.integer(b_.ops().getI32Type(), argument).value;
  LLVM::CallIntrinsicOp::create(b_.ops(), b_.loc(), b_.ops().getStringAttr(intrinsic), ValueRange{value});
}

void ThreadGroup::synchronize() {
  auto branch = scf::IfOp::create(b_.ops(), b_.loc(), spansWarps().value, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b_.ops());
  b_.ops().setInsertionPointToStart(branch.thenBlock());
  callBarrier("llvm.nvvm.barrier.cta.sync.aligned.all", 0);
  b_.ops().setInsertionPointToStart(branch.elseBlock());
  callBarrier("llvm.nvvm.bar.warp.sync", -1);
}

// The value of the thread whose number in the warp differs in the bit `distance`. 64-bit values are shuffled in halves.
Val ThreadGroup::shuffleXor(Val value, int distance) {
  OpBuilder& ops = b_.ops();
  Type i32 = ops.getI32Type();
  Type type = value.type();
  unsigned width = value.bitWidth();
  Val bits = value.isFloat() ? bitcastTo(value, ops.getIntegerType(width)) : value;
  auto shuffle = [&](Val half) {
    return callIntrinsic(
        b_, i32, "llvm.nvvm.shfl.sync.bfly.i32",
        {b_.integer(i32, -1).value, half.value, b_.integer(i32, distance).value, b_.integer(i32, 31).value});
  };
  if (width < 64) {
    bits = shuffle(convertInt(bits, i32, Signedness::kUnsigned));
    bits = convertInt(bits, ops.getIntegerType(width), Signedness::kUnsigned);
  } else {
    Val shift = b_.like(bits, 32);
    Val low = shuffle(convertInt(bits, i32, Signedness::kUnsigned));
    Val high = shuffle(convertInt(shiftRightLogical(bits, shift), i32, Signedness::kUnsigned));
    bits = convertInt(low, ops.getI64Type(), Signedness::kUnsigned) |
           shiftLeft(convertInt(high, ops.getI64Type(), Signedness::kUnsigned), shift);
  }
  return value.isFloat() ? bitcastTo(bits, type) : bits;
}

// Both partners combine in the same order, because the larger of 0 and -0 depends on it.
Val ThreadGroup::combineAcross(const Reduction& reduction, Val value, int distance) {
  Val other = shuffleXor(value, distance);
  Val isUpper = ne(rank_ & b_.like(rank_, distance), 0.0);
  return compiler::combine(reduction.op, select(isUpper, other, value), select(isUpper, value, other), reduction.dtype);
}

// Halves the distance in each step. Smaller groups skip steps that would leave them.
Val ThreadGroup::reduceInWarp(const Reduction& reduction, Val value) {
  for (int distance = kWarpThreads / 2; distance >= 1; distance /= 2) {
    Val combined = combineAcross(reduction, value, distance);
    value = select(gt(size_, distance), combined, value);
  }
  return value;
}

Value ThreadGroup::slot(int reduction, Val warp) {
  Val index = warp + static_cast<double>(reduction * kMaxWarps);
  return LLVM::GEPOp::create(b_.ops(), b_.loc(), shared_.getType(), b_.ops().getI64Type(), shared_,
                             ValueRange{index.value});
}

// Every warp stores its value in shared memory. Then each warp reads all of them, one per thread of either half, and
// reduces again.
std::vector<Val> ThreadGroup::reduceOverWarps(const std::vector<Reduction>& reductions,
                                              const std::vector<Val>& values) {
  OpBuilder& ops = b_.ops();
  Val lane = rank_ & b_.like(rank_, kWarpThreads - 1);
  Val warp = shiftRightLogical(rank_, b_.like(rank_, 5));
  Val numWarps = shiftRightLogical(size_, b_.like(size_, 5));
  auto first = scf::IfOp::create(ops, b_.loc(), eq(lane, 0.0).value, /*withElseRegion=*/false);
  {
    OpBuilder::InsertionGuard guard(ops);
    ops.setInsertionPointToStart(first.thenBlock());
    for (size_t i = 0; i < values.size(); ++i) {
      LLVM::StoreOp::create(ops, b_.loc(), values[i].value, slot(static_cast<int>(i), warp), kSlotBytes);
    }
  }
  callBarrier("llvm.nvvm.barrier.cta.sync.aligned.all", 0);
  std::vector<Val> results;
  Val half = lane & b_.like(lane, kMaxWarps - 1);
  Val isUsed = lt(half, numWarps);
  Val source = select(isUsed, half, b_.like(half, 0));
  for (size_t i = 0; i < values.size(); ++i) {
    Type type = values[i].type();
    Val partial = b_.wrap(LLVM::LoadOp::create(ops, b_.loc(), type, slot(static_cast<int>(i), source), kSlotBytes));
    Val neutral = compiler::neutralElement(b_, reductions[i].op, type, reductions[i].dtype);
    Val total = select(isUsed, partial, neutral);
    for (int distance = kMaxWarps / 2; distance >= 1; distance /= 2) {
      total = combineAcross(reductions[i], total, distance);
    }
    results.push_back(total);
  }
  callBarrier("llvm.nvvm.barrier.cta.sync.aligned.all", 0);
  return results;
}

std::vector<Val> ThreadGroup::reduce(const std::vector<Reduction>& reductions, std::vector<Val> values) {
  if (reductions.empty()) return values;
  SmallVector<Type> types;
  SmallVector<Value> inWarp;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = reduceInWarp(reductions[i], values[i]);
    types.push_back(values[i].type());
    inWarp.push_back(values[i].value);
  }
  OpBuilder& ops = b_.ops();
  auto branch = scf::IfOp::create(ops, b_.loc(), types, spansWarps().value, /*addThenBlock=*/true,
                                  /*addElseBlock=*/true);
  OpBuilder::InsertionGuard guard(ops);
  ops.setInsertionPointToStart(branch.thenBlock());
  SmallVector<Value> overWarps;
  for (Val value : reduceOverWarps(reductions, values)) overWarps.push_back(value.value);
  scf::YieldOp::create(ops, b_.loc(), overWarps);
  ops.setInsertionPointToStart(branch.elseBlock());
  scf::YieldOp::create(ops, b_.loc(), inWarp);
  std::vector<Val> results;
  for (Value result : branch.getResults()) results.push_back(b_.wrap(result));
  return results;
}

}  // namespace agspeed::backends::nvptx
