// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/random_cluster.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "backends/reference/scalar_op.h"
#include "runtime/base/format.h"

namespace agspeed::backends::testing {

using compiler::Cluster;
using compiler::ClusterNode;
using compiler::ClusterOperand;
using compiler::infoOf;
using Columns = ClusterOperand::Columns;
using Op = compiler::PointwiseOp;

namespace {

constexpr DType kComputed[] = {DType::kF32, DType::kF32, DType::kF32, DType::kF64, DType::kI32, DType::kI64};
constexpr DType kStored[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                             DType::kI32, DType::kI64, DType::kI8,   DType::kU8,  DType::kBool};

class Generator {
 public:
  Generator(uint64_t seed, Arithmetic arithmetic)
      : random_(seed), isExact_(arithmetic == Arithmetic::kExact), dtype_(kComputed[pick(std::size(kComputed))]) {
    cluster_.outerRank = pick(4);
  }

  Cluster make() {
    for (int i = 1 + pick(4); i > 0; --i) addLoad();
    for (int i = 2 + pick(12); i > 0; --i) addNode();
    for (int i = 1 + pick(2); i > 0; --i) addStore();
    if (cluster_.outerRank > 0 && pick(3) == 0) addSum();
    return std::move(cluster_);
  }

 private:
  int pick(size_t count) { return static_cast<int>(random_() % count); }
  // Prefers later nodes, so that most nodes are used.
  int32_t anyNumber() {
    size_t count = numbers_.size();
    size_t back = static_cast<size_t>(pick(pick(2) ? count : std::min<size_t>(count, 3)));
    return numbers_[count - 1 - back];
  }

  int32_t add(Op op, DType dtype, std::vector<int32_t> inputs, int32_t operand = -1, double constant = 0) {
    bool isPerRow = infoOf(op).isReduction || op == Op::kConstant;
    if (!inputs.empty() && !isPerRow) {
      isPerRow = std::ranges::all_of(inputs, [&](int32_t input) { return cluster_.nodes[input].isPerRow; });
    }
    if (op == Op::kLoad) isPerRow = cluster_.operands[operand].isPerRow;
    cluster_.nodes.push_back({op, dtype, std::move(inputs), operand, constant, isPerRow});
    return static_cast<int32_t>(cluster_.nodes.size() - 1);
  }

  int32_t addOperand(ClusterOperand operand) {
    cluster_.operands.push_back(operand);
    return static_cast<int32_t>(cluster_.operands.size() - 1);
  }

  void addLoad() {
    DType dtype = kStored[pick(std::size(kStored))];
    auto columns = static_cast<Columns>(pick(3));
    int32_t operand = addOperand({dtype, false, columns, columns == Columns::kBroadcast});
    int32_t loaded = add(Op::kLoad, dtype, {}, operand);
    numbers_.push_back(dtype == dtype_ ? loaded : add(Op::kCast, dtype_, {loaded}));
  }

  // Maps every product and every reduction back into a small range.
  int32_t bounded(int32_t node) { return add(Op::kRemainder, dtype_, {node, add(Op::kConstant, dtype_, {}, -1, 7)}); }

  void addFunction() {
    constexpr Op kFunctions[] = {Op::kExp, Op::kTanh,  Op::kErf,     Op::kSin,  Op::kLog1p,     Op::kSqrt,
                                 Op::kCos, Op::kRsqrt, Op::kSigmoid, Op::kAcos, Op::kReciprocal};
    Op op = kFunctions[pick(std::size(kFunctions))];
    int32_t input = anyNumber();
    if (dtype_ != DType::kF32) input = add(Op::kCast, DType::kF32, {input});
    int32_t result = add(op, DType::kF32, {input});
    numbers_.push_back(dtype_ == DType::kF32 ? result : add(Op::kCast, dtype_, {result}));
  }

  void addNode() {
    constexpr Op kUnary[] = {Op::kAbs, Op::kNeg, Op::kRelu, Op::kFloor, Op::kSign};
    constexpr Op kBinary[] = {Op::kAdd, Op::kSub, Op::kMul, Op::kMaximum, Op::kMinimum};
    constexpr Op kReductions[] = {Op::kReduceSum, Op::kReduceMax, Op::kReduceMin};
    if (!isExact_ && pick(3) == 0) return addFunction();
    switch (pick(cluster_.outerRank > 0 ? 5 : 4)) {
      case 0: return numbers_.push_back(add(kUnary[pick(5)], dtype_, {anyNumber()}));
      case 1: {
        int32_t condition = add(Op::kLt, DType::kBool, {anyNumber(), anyNumber()});
        return numbers_.push_back(add(Op::kWhere, dtype_, {condition, anyNumber(), anyNumber()}));
      }
      case 4: return numbers_.push_back(bounded(add(kReductions[pick(3)], dtype_, {anyElement()})));
      default: numbers_.push_back(bounded(add(kBinary[pick(5)], dtype_, {anyNumber(), anyNumber()})));
    }
  }

  // A node with a value for each column.
  int32_t anyElement() {
    int32_t node = anyNumber();
    if (!cluster_.nodes[node].isPerRow) return node;
    return spread(node, dtype_);
  }

  int32_t spread(int32_t node, DType dtype) {
    int32_t copy = add(Op::kCast, dtype, {node});
    cluster_.nodes[copy].isPerRow = false;
    return copy;
  }

  void addStore() {
    int32_t node = anyNumber();
    DType dtype = kStored[pick(std::size(kStored))];
    bool isRow = cluster_.nodes[node].isPerRow && cluster_.outerRank > 0 && pick(2);
    int32_t stored = isRow ? add(Op::kCast, dtype, {node}) : spread(node, dtype);
    Columns columns = isRow ? Columns::kBroadcast : pick(3) ? Columns::kContiguous : Columns::kStrided;
    cluster_.stores.push_back({stored, addOperand({dtype, true, columns, isRow})});
  }

  void addSum() {
    int32_t element = anyElement();
    int32_t sum = add(Op::kSumRows, dtype_, {element});
    cluster_.stores.push_back({sum, addOperand({dtype_, true, Columns::kContiguous, false, true})});
  }

  std::mt19937_64 random_;
  bool isExact_;
  DType dtype_;  ///< dtype of all arithmetic
  Cluster cluster_;
  std::vector<int32_t> numbers_;  ///< nodes with that dtype
};

int64_t randomColumns(std::mt19937_64& random) {
  constexpr int64_t kLongRow = 9000;  // more than a group keeps in registers
  switch (random() % 8) {
    case 0: return 1;
    case 1:
    case 3: return static_cast<int64_t>(64 + random() % 900);
    case 2: return random() % 4 == 0 ? static_cast<int64_t>(kLongRow + random() % 100) : 16;
    default: return static_cast<int64_t>(random() % 64);
  }
}

}  // namespace

Cluster randomCluster(uint64_t seed, Arithmetic arithmetic) { return Generator(seed, arithmetic).make(); }

RandomLaunch::RandomLaunch(const Cluster& cluster, uint64_t seed) : cluster_(cluster) {
  std::mt19937_64 random(seed);
  columns_ = randomColumns(random);
  for (int i = 0; i < cluster.outerRank; ++i) {
    outerSizes_.push_back(1 + static_cast<int64_t>(random() % (columns_ > 1000 ? 2 : 5)));
  }
  int64_t rows = std::accumulate(outerSizes_.begin(), outerSizes_.end(), int64_t{1}, std::multiplies<>());
  blockRows_ = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1));
  extent_ = cluster.outerRank == 0 ? columns_ : rows;
  if (cluster.sumsRows()) extent_ = (rows + blockRows_ - 1) / blockRows_;
  integers_ = outerSizes_;
  integers_.push_back(columns_);
  for (const ClusterOperand& operand : cluster.operands) addOperand(operand, random);
  if (cluster.sumsRows()) integers_.push_back(blockRows_);
}

void RandomLaunch::addOperand(const ClusterOperand& operand, std::mt19937_64& random) {
  bool hasColumns = !operand.isPerRow;
  int64_t columnStride = !hasColumns ? 0 : operand.columns == Columns::kStrided ? 3 : 1;
  int64_t stride = (hasColumns ? columns_ * columnStride : 1) + static_cast<int64_t>(random() % 4);
  std::vector<int64_t> strides(outerSizes_.size(), 0);
  int64_t numElements = stride;
  if (operand.isPerBlock) {
    strides[0] = columns_;
    numElements = extent_ * columns_;
  } else {
    for (size_t d = strides.size(); d-- > 0;) {
      bool isBroadcast = !operand.isOutput && random() % 4 == 0;
      strides[d] = isBroadcast ? 0 : stride;
      if (!isBroadcast) stride *= outerSizes_[d];
    }
    numElements = stride;
  }
  integers_.insert(integers_.end(), strides.begin(), strides.end());
  integers_.push_back(columnStride);
  size_t width = sizeInBytes(operand.dtype);
  size_t start = random() % 3 * (random() % 2 ? 4 : 1);
  starts_.push_back(start * width);
  size_t count = start + static_cast<size_t>(numElements) + 3;
  std::vector<std::byte>& buffer = buffers_.emplace_back(count * width, std::byte{1});
  for (size_t i = 0; i < count && !operand.isOutput; ++i) {
    auto value = static_cast<int64_t>(random() % 9) - 4;
    reference::Scalar scalar = reference::convertScalar({.integer = value}, DType::kI64, operand.dtype);
    reference::storeScalar(buffer.data(), operand.dtype, static_cast<int64_t>(i), scalar);
  }
}

void RandomLaunch::run(const runtime::KernelLibrary& library, int64_t begin, int64_t end) {
  std::vector<void*> pointers;
  for (size_t i = 0; i < buffers_.size(); ++i) pointers.push_back(buffers_[i].data() + starts_[i]);
  library.launch(0, pointers.data(), integers_.data(), begin, end);
}

std::string RandomLaunch::differenceFrom(const RandomLaunch& expected) const {
  for (size_t operand = 0; operand < buffers_.size(); ++operand) {
    DType dtype = cluster_.operands[operand].dtype;
    for (size_t i = 0; i < buffers_[operand].size() / sizeInBytes(dtype); ++i) {
      auto index = static_cast<int64_t>(i);
      reference::Scalar got = reference::loadScalar(buffers_[operand].data(), dtype, index);
      reference::Scalar wanted = reference::loadScalar(expected.buffers_[operand].data(), dtype, index);
      bool isNan = got.real != got.real && wanted.real != wanted.real;
      if (isNan || (got.real == wanted.real && got.integer == wanted.integer)) continue;
      return formatText("operand {} element {}: got {} / {}, expected {} / {}", operand, i, got.real, got.integer,
                        wanted.real, wanted.integer);
    }
  }
  return "";
}

std::string RandomLaunch::describe() const {
  std::string text = "integers";
  for (int64_t integer : integers_) text += formatText(" {}", integer);
  return text + "\n" + cluster_.toString();
}

}  // namespace agspeed::backends::testing
