// SPDX-License-Identifier: Apache-2.0
// plan-memory: places kernel results that are needed only inside the call in one arena. A value that an output may
// alias gets memory of its own.
//
// The arena lives as long as the call, but memory of its own is free again after the value's last use. So large values
// get memory of their own, too, if the arena would raise the peak of the call clearly. Otherwise they stay in the
// arena, whose pages the next call uses again.
//
// A joined tensor is placed as a whole. Its life begins with the first kernel that writes a part of it.
//
// The arena begins with the values of constant size, which are packed by first fit over their lifetimes. Values of
// symbolic size follow in slots. A slot holds values of the same size expression whose lifetimes do not overlap.
#include <algorithm>

#include "passes/graph/passes.h"

namespace agspeed::passes {

using compiler::Graph;
using compiler::kNoValue;
using compiler::Node;
using compiler::NodeKind;
using compiler::ValueId;

namespace {

constexpr int64_t kAlignment = 64;
// A value of at least this size is large. Smaller values hardly raise the peak.
constexpr int64_t kLargeBytes = 128 << 10;
// How much the arena may raise the peak.
constexpr double kMostGrowth = 1.10;

struct Lifetime {
  ValueId value = kNoValue;
  int32_t begin = 0;
  int32_t end = 0;  // last node that may touch the memory
  SymExpr bytes;

  bool overlaps(const Lifetime& other) const { return begin <= other.end && other.begin <= end; }
};

// The number of elements from the first to the last one, including the gaps that strides may leave between rows.
SymExpr spannedElements(const compiler::TensorType& type) {
  if (compiler::isContiguous(type) || std::ranges::any_of(type.sizes, compiler::isZero)) {
    return compiler::numElements(type.sizes);
  }
  SymExpr elements(1);
  for (size_t dim = 0; dim < type.sizes.size(); ++dim) {
    elements = elements + (type.sizes[dim] - 1) * type.strides[dim];
  }
  return elements;
}

SymExpr alignedBytes(const compiler::TensorType& type) {
  SymExpr bytes = spannedElements(type) * static_cast<int64_t>(sizeInBytes(type.dtype));
  return floorDiv(bytes + (kAlignment - 1), kAlignment) * kAlignment;
}

// Lifetimes of the kernel results that no output may alias. A value lives until the last use of any value in its alias
// class.
std::vector<Lifetime> arenaLifetimes(const Graph& graph) {
  const std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
  std::vector<bool> escapes(graph.values.size(), false);
  for (ValueId output : graph.outputs) {
    if (output != kNoValue) escapes[classes[output]] = true;
  }
  std::vector<int32_t> lastUse(graph.values.size(), -1);  // by class
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) lastUse[classes[input]] = static_cast<int32_t>(i);
  }
  const std::vector<int32_t> producers = compiler::producersOf(graph);
  const std::vector<int32_t> joins = compiler::joinsOf(graph);
  std::vector<Lifetime> lifetimes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.kind != NodeKind::kKernel && node.kind != NodeKind::kJoin) continue;
    for (ValueId result : node.results) {
      if (escapes[classes[result]] || joins[result] >= 0) continue;
      auto begin = static_cast<int32_t>(i);
      if (node.kind == NodeKind::kJoin) {
        for (ValueId part : node.inputs) begin = std::min(begin, producers[part]);
      }
      lifetimes.push_back(
          {result, begin, std::max(begin, lastUse[classes[result]]), alignedBytes(graph.typeOf(result))});
    }
  }
  return lifetimes;
}

// Places the largest values first. Each value gets the lowest offset that is free of values with overlapping lifetimes.
// Returns the end of the last value.
int64_t packConstantSizes(std::vector<Lifetime> lifetimes, MemoryPlan& plan) {
  std::ranges::stable_sort(lifetimes, std::greater{}, [](const Lifetime& l) { return l.bytes.constant(); });
  struct Placed {
    Lifetime lifetime;
    int64_t offset;
  };
  std::vector<Placed> placed;  // sorted by offset
  int64_t total = 0;
  for (const Lifetime& lifetime : lifetimes) {
    int64_t offset = 0;
    for (const Placed& other : placed) {
      if (!other.lifetime.overlaps(lifetime)) continue;
      if (offset + lifetime.bytes.constant() <= other.offset) break;
      offset = std::max(offset, other.offset + other.lifetime.bytes.constant());
    }
    plan.offsets[lifetime.value] = SymExpr(offset);
    total = std::max(total, offset + lifetime.bytes.constant());
    auto after = std::ranges::upper_bound(placed, offset, {}, &Placed::offset);
    placed.insert(after, {lifetime, offset});
  }
  return total;
}

// Places values of equal size and disjoint lifetimes in one slot. The slots begin at `base`. Returns their end.
SymExpr packSymbolicSizes(const std::vector<Lifetime>& lifetimes, SymExpr base, MemoryPlan& plan) {
  struct Slot {
    SymExpr bytes;
    SymExpr offset;
    int32_t end;
  };
  std::vector<Slot> slots;
  for (const Lifetime& lifetime : lifetimes) {
    auto slot = std::ranges::find_if(slots, [&](const Slot& candidate) {
      return candidate.end < lifetime.begin && compiler::sameValue(candidate.bytes, lifetime.bytes);
    });
    if (slot == slots.end()) {
      slots.push_back({lifetime.bytes, base, 0});
      slot = slots.end() - 1;
      base = base + lifetime.bytes;
    }
    slot->end = lifetime.end;
    plan.offsets[lifetime.value] = slot->offset;
  }
  return base;
}

MemoryPlan pack(const Graph& graph, const std::vector<Lifetime>& lifetimes) {
  MemoryPlan plan;
  plan.offsets.resize(graph.values.size());
  std::vector<Lifetime> constant;
  std::vector<Lifetime> symbolic;
  for (const Lifetime& lifetime : lifetimes) {
    (lifetime.bytes.isConstant() ? constant : symbolic).push_back(lifetime);
  }
  plan.arenaBytes = packSymbolicSizes(symbolic, SymExpr(packConstantSizes(std::move(constant), plan)), plan);
  return plan;
}

// The estimated peak of the call in bytes. It counts each input until its last use.
int64_t peakOf(const Graph& graph, const MemoryPlan& plan) {
  struct Block {
    int64_t bytes = 0;
    int32_t begin = 0;
    int32_t end = -1;
  };
  const std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
  const std::vector<int32_t> producers = compiler::producersOf(graph);
  std::vector<bool> isInArena(graph.values.size(), false);  // by class: views of the arena take no memory of their own
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (plan.offsets[v]) isInArena[classes[v]] = true;
  }
  std::vector<Block> blocks(graph.values.size());  // by class; the blocks outside the arena
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (isInArena[classes[v]] || graph.values[v].isScalar) continue;
    Block& block = blocks[classes[v]];
    int64_t bytes = compiler::estimate(alignedBytes(graph.values[v].type), graph.hints);
    block.begin = block.bytes == 0 ? producers[v] : std::min(block.begin, producers[v]);
    block.bytes = std::max(block.bytes, bytes);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) blocks[classes[input]].end = static_cast<int32_t>(i);
  }
  for (ValueId output : graph.outputs) {
    if (output != kNoValue) blocks[classes[output]].end = static_cast<int32_t>(graph.nodes.size());
  }
  std::vector<int64_t> change(graph.nodes.size() + 2, 0);  // by node
  for (const Block& block : blocks) {
    if (block.bytes == 0) continue;
    change[std::max(block.begin, 0)] += block.bytes;
    change[std::max(block.begin, block.end) + 1] -= block.bytes;
  }
  int64_t live = 0;
  int64_t peak = 0;
  for (int64_t bytes : change) peak = std::max(peak, live += bytes);
  return compiler::estimate(plan.arenaBytes, graph.hints) + peak;
}

}  // namespace

MemoryPlan planMemory(const Graph& graph) {
  std::vector<Lifetime> lifetimes = arenaLifetimes(graph);
  MemoryPlan withLarge = pack(graph, lifetimes);
  std::erase_if(lifetimes, [&](const Lifetime& lifetime) {
    return compiler::estimate(lifetime.bytes, graph.hints) >= kLargeBytes;
  });
  MemoryPlan plan = pack(graph, lifetimes);
  const double most = kMostGrowth * static_cast<double>(peakOf(graph, plan));
  return static_cast<double>(peakOf(graph, withLarge)) > most ? plan : withLarge;
}

std::string toString(const MemoryPlan& plan, const Graph& graph) {
  std::string text = "memory arena " + plan.arenaBytes.toString() + "\n";
  for (size_t v = 0; v < plan.offsets.size(); ++v) {
    if (plan.offsets[v]) text += "  %" + graph.values[v].name + " at " + plan.offsets[v]->toString() + "\n";
  }
  return text;
}

}  // namespace agspeed::passes
