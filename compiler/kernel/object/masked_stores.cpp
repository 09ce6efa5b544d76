// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/object/masked_stores.h"

#include <numeric>
#include <vector>

#include "llvm/ADT/SmallVector.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"

namespace agspeed::compiler {
namespace {

constexpr unsigned kRegisterBits = 256;

// Stores `numLanes` lanes of the vector from lane `first` on, before the given instruction.
void storePart(llvm::IntrinsicInst* store, unsigned first, unsigned numLanes) {
  llvm::IRBuilder<> builder(store);
  llvm::Value* whole = store->getArgOperand(0);
  llvm::Value* place = store->getArgOperand(1);
  llvm::Value* allLanes = store->getArgOperand(store->arg_size() - 1);
  llvm::SmallVector<int> lanes(numLanes);
  std::iota(lanes.begin(), lanes.end(), static_cast<int>(first));
  llvm::Value* mask = builder.CreateShuffleVector(allLanes, lanes);
  llvm::Value* isAny = builder.CreateOrReduce(mask);
  llvm::Instruction* anyEnd = llvm::SplitBlockAndInsertIfThen(isAny, store->getIterator(), /*Unreachable=*/false);
  builder.SetInsertPoint(anyEnd);
  llvm::Value* part = builder.CreateShuffleVector(whole, lanes);
  auto* element = llvm::cast<llvm::VectorType>(whole->getType())->getElementType();
  llvm::Value* begin = builder.CreateConstGEP1_32(element, place, first);
  llvm::Instruction* wholeEnd = nullptr;
  llvm::Instruction* partEnd = nullptr;
  llvm::SplitBlockAndInsertIfThenElse(builder.CreateAndReduce(mask), anyEnd->getIterator(), &wholeEnd, &partEnd);
  const llvm::Align align(element->getScalarSizeInBits() / 8);
  builder.SetInsertPoint(wholeEnd);
  builder.CreateAlignedStore(part, begin, align);
  builder.SetInsertPoint(partEnd);
  builder.CreateMaskedStore(part, begin, align, mask);
}

}  // namespace

void splitMaskedStores(llvm::Module& module, const llvm::TargetMachine& machine) {
  const llvm::StringRef features = machine.getTargetFeatureString();
  if (!machine.getTargetTriple().isX86() || features.contains("+avx512vl") || !features.contains("+avx")) return;
  std::vector<llvm::IntrinsicInst*> stores;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
      if (call == nullptr || call->getIntrinsicID() != llvm::Intrinsic::masked_store) continue;
      if (llvm::isa<llvm::Constant>(call->getArgOperand(call->arg_size() - 1))) continue;
      const unsigned bits = call->getArgOperand(0)->getType()->getScalarSizeInBits();
      if (bits == 32 || bits == 64) stores.push_back(call);
    }
  }
  for (llvm::IntrinsicInst* store : stores) {
    auto* type = llvm::cast<llvm::FixedVectorType>(store->getArgOperand(0)->getType());
    const unsigned numLanes = std::min(kRegisterBits / type->getScalarSizeInBits(), type->getNumElements());
    for (unsigned first = 0; first < type->getNumElements(); first += numLanes) storePart(store, first, numLanes);
    store->eraseFromParent();
  }
}

}  // namespace agspeed::compiler
