// SPDX-License-Identifier: Apache-2.0
#include "kernel_test_support.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "scalar_interpreter.h"

namespace agspeed::compiler::testing {
namespace {

template <typename T>
T readAs(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void writeAs(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

float bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t floatToBf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  uint32_t dropped = bits & 0xffff;
  bits >>= 16;
  if (dropped > 0x8000 || (dropped == 0x8000 && (bits & 1))) ++bits;
  return static_cast<uint16_t>(bits);
}

float f16ToFloat(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  int fraction = bits & 1023;
  double magnitude = exponent == 31  ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
                     : exponent == 0 ? std::ldexp(fraction, -24)
                                     : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(bits >> 15 ? -magnitude : magnitude);
}

// Rounds to the nearest finite value in units of the target's last place.
uint16_t floatToF16(float x) {
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  double a = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (a >= 65520) return sign | 0x7c00;
  int exponent = a == 0 ? -24 : std::max(std::ilogb(a) - 10, -24);
  double units = std::nearbyint(std::ldexp(a, -exponent));
  if (units == 2048) return sign | static_cast<uint16_t>((exponent + 26) << 10);
  if (units < 1024) return sign | static_cast<uint16_t>(units);
  return sign | static_cast<uint16_t>(((exponent + 25) << 10) + (static_cast<int>(units) - 1024));
}

int64_t wrap(int64_t value, DType dtype) {
  switch (dtype) {
    case DType::kBool: return value != 0;
    case DType::kU8: return static_cast<uint8_t>(value);
    case DType::kI8: return static_cast<int8_t>(value);
    case DType::kI16: return static_cast<int16_t>(value);
    case DType::kI32: return static_cast<int32_t>(value);
    default: return value;
  }
}

// Converts as x86 does: out-of-range values give the smallest integer, and narrow integers come from 32 bits.
int64_t floatToInt(double x, DType to) {
  bool isWide = to == DType::kI64;
  double limit = std::ldexp(1, isWide ? 63 : 31);
  int64_t smallest = isWide ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
  return wrap(std::fabs(x) < limit ? static_cast<int64_t>(x) : smallest, to);
}

double roundFloat(double x, DType to) {
  if (to == DType::kF64) return x;
  float single = static_cast<float>(x);
  if (to == DType::kBF16) return bf16ToFloat(floatToBf16(single));
  if (to == DType::kF16) return f16ToFloat(floatToF16(single));
  return single;
}

bool isReduction(const ClusterNode& node) { return infoOf(node.op).isReduction; }

std::vector<double> specialFloats(DType dtype) {
  double inf = std::numeric_limits<double>::infinity();
  double tiny = dtype == DType::kF64 ? 0x1p-1074 : 0x1p-149;
  double normal = dtype == DType::kF64 ? 0x1p-1022 : 0x1p-126;
  double most = dtype == DType::kF64 ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
  return {0.0,   -0.0,   1,       -1,   0.5,   -0.5, 2,    -2,  3,   -3,   inf,    -inf, std::nan(""), tiny,
          -tiny, normal, -normal, most, -most, 100,  -100, 1.5, 2.5, -2.5, 0.9999, 1e-4, -7.25};
}

std::vector<int64_t> specialInts(DType dtype) {
  int64_t bits = 8 * static_cast<int64_t>(sizeInBytes(dtype));
  bool isUnsigned = dtype == DType::kU8;
  int64_t most = isUnsigned ? 255 : static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1);
  int64_t least = isUnsigned ? 0 : -most - 1;
  return {0, 1, -1, 2, -2, 3, 7, -7, 8, 31, 33, 64, most, least, most - 1, 100};
}

double randomFloat(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> magnitude(-12, 8);
  return random() % 2 ? normal(random) : std::ldexp(normal(random), magnitude(random));
}

}  // namespace

int ClusterBuilder::load(DType dtype, Columns columns) {
  bool isPerRow = columns == Columns::kBroadcast;
  cluster_.operands.push_back({dtype, false, columns, isPerRow});
  ClusterNode node{PointwiseOp::kLoad, dtype, {}, static_cast<int32_t>(cluster_.operands.size() - 1), 0, isPerRow};
  cluster_.nodes.push_back(node);
  return static_cast<int>(cluster_.nodes.size() - 1);
}

int ClusterBuilder::constant(DType dtype, double value) {
  cluster_.nodes.push_back({PointwiseOp::kConstant, dtype, {}, -1, value, true});
  return static_cast<int>(cluster_.nodes.size() - 1);
}

int ClusterBuilder::node(PointwiseOp op, DType dtype, std::vector<int32_t> inputs) {
  bool isPerRow = infoOf(op).isReduction;
  if (!isPerRow) {
    isPerRow = true;
    for (int32_t input : inputs) isPerRow = isPerRow && cluster_.nodes[input].isPerRow;
  }
  cluster_.nodes.push_back({op, dtype, std::move(inputs), -1, 0, isPerRow});
  return static_cast<int>(cluster_.nodes.size() - 1);
}

int ClusterBuilder::castToElement(int input, DType dtype) {
  cluster_.nodes.push_back({PointwiseOp::kCast, dtype, {input}});
  return static_cast<int>(cluster_.nodes.size() - 1);
}

void ClusterBuilder::store(int node, Columns columns) {
  bool isPerRow = columns == Columns::kBroadcast;
  cluster_.operands.push_back({cluster_.nodes[node].dtype, true, columns, isPerRow});
  cluster_.stores.push_back({node, static_cast<int32_t>(cluster_.operands.size() - 1)});
}

Scalar readScalar(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8: return {0, readAs<uint8_t>(at)};
    case DType::kI8: return {0, readAs<int8_t>(at)};
    case DType::kI16: return {0, readAs<int16_t>(at)};
    case DType::kI32: return {0, readAs<int32_t>(at)};
    case DType::kI64: return {0, readAs<int64_t>(at)};
    case DType::kF16: return {f16ToFloat(readAs<uint16_t>(at)), 0};
    case DType::kBF16: return {bf16ToFloat(readAs<uint16_t>(at)), 0};
    case DType::kF32: return {readAs<float>(at), 0};
    default: return {readAs<double>(at), 0};
  }
}

void writeScalar(DType dtype, std::byte* at, Scalar value) {
  switch (dtype) {
    case DType::kBool: return writeAs<uint8_t>(at, value.i != 0);
    case DType::kU8:
    case DType::kI8: return writeAs<int8_t>(at, static_cast<int8_t>(value.i));
    case DType::kI16: return writeAs<int16_t>(at, static_cast<int16_t>(value.i));
    case DType::kI32: return writeAs<int32_t>(at, static_cast<int32_t>(value.i));
    case DType::kI64: return writeAs<int64_t>(at, value.i);
    case DType::kF16: return writeAs<uint16_t>(at, floatToF16(static_cast<float>(value.f)));
    case DType::kBF16: return writeAs<uint16_t>(at, floatToBf16(static_cast<float>(value.f)));
    case DType::kF32: return writeAs<float>(at, static_cast<float>(value.f));
    default: return writeAs<double>(at, value.f);
  }
}

Scalar castScalar(Scalar value, DType from, DType to) {
  if (isFloat(to)) {
    double number = isFloat(from)       ? value.f
                    : to == DType::kF64 ? static_cast<double>(value.i)
                                        : static_cast<float>(value.i);
    return {roundFloat(number, to), 0};
  }
  if (to == DType::kBool) return {0, isFloat(from) ? value.f != 0 : value.i != 0};
  return {0, isFloat(from) ? floatToInt(value.f, to) : wrap(value.i, to)};
}

std::string print(DType dtype, Scalar value) {
  if (!isFloat(dtype)) return std::to_string(value.i);
  char text[64];
  std::snprintf(text, sizeof(text), "%.17g (%a)", value.f, value.f);
  return text;
}

Scalar testValue(DType dtype, int64_t index, int input, std::mt19937_64& random) {
  if (dtype == DType::kBool) return {0, (index >> input) & 1};
  if (isFloat(dtype)) {
    static const std::vector<double> kSpecial32 = specialFloats(DType::kF32);
    static const std::vector<double> kSpecial64 = specialFloats(DType::kF64);
    const std::vector<double>& special = dtype == DType::kF64 ? kSpecial64 : kSpecial32;
    int64_t n = static_cast<int64_t>(special.size());
    double value = index < n * n ? special[input == 0 ? index % n : index / n % n] : randomFloat(random);
    return castScalar({value, 0}, DType::kF64, dtype);
  }
  std::vector<int64_t> special = specialInts(dtype);
  int64_t n = static_cast<int64_t>(special.size());
  if (index < n * n) return {0, wrap(special[input == 0 ? index % n : index / n % n], dtype)};
  return {0, wrap(static_cast<int64_t>(random() >> (random() % 64)), dtype)};
}

Problem::Problem(const Cluster& cluster, std::vector<int64_t> outerSizes, int64_t columns, uint64_t seed)
    : cluster_(cluster), outerSizes_(std::move(outerSizes)), columns_(columns), owner_(cluster.operands.size()) {
  std::iota(owner_.begin(), owner_.end(), 0);
  std::mt19937_64 random(seed);
  int input = 0;
  for (const ClusterOperand& operand : cluster.operands) {
    bool isTransposed = operand.columns == Columns::kTransposed;
    int64_t columnStride = operand.isPerRow                       ? 0
                           : operand.columns == Columns::kStrided ? 3
                           : isTransposed                         ? outerSizes_.back() + 3
                                                                  : 1;
    int64_t stride = operand.isPerRow ? 1 : columns * columnStride + 2;
    std::vector<int64_t> strides(outerSizes_.size());
    for (size_t d = outerSizes_.size(); d-- > 0;) {
      bool areNeighbours = isTransposed && d + 1 == outerSizes_.size();
      strides[d] = areNeighbours ? 1 : stride;
      if (!areNeighbours) stride *= outerSizes_[d];
    }
    outerStrides_.push_back(strides);
    columnStrides_.push_back(columnStride);
    int64_t numElements = stride + 2;
    size_t width = sizeInBytes(operand.dtype);
    std::vector<std::byte>& buffer = buffers_.emplace_back(numElements * width, std::byte{1});
    if (operand.isOutput) continue;
    for (int64_t i = 0; i < numElements; ++i) {
      writeScalar(operand.dtype, buffer.data() + i * width, testValue(operand.dtype, i, input, random));
    }
    ++input;
  }
}

int64_t Problem::numRows() const {
  return std::accumulate(outerSizes_.begin(), outerSizes_.end(), int64_t{1}, std::multiplies<>());
}

int64_t Problem::extent() const { return outerSizes_.empty() ? columns_ : numRows(); }

std::vector<int64_t> Problem::coordinates(int64_t row) const {
  std::vector<int64_t> result(outerSizes_.size());
  for (size_t d = outerSizes_.size(); d-- > 0; row /= outerSizes_[d]) result[d] = row % outerSizes_[d];
  return result;
}

int64_t Problem::offset(int operand, int64_t row, int64_t column) const {
  std::vector<int64_t> at = coordinates(row);
  return std::inner_product(at.begin(), at.end(), outerStrides_[operand].begin(), column * columnStrides_[operand]);
}

Scalar Problem::at(int operand, int64_t row, int64_t column) const {
  DType dtype = cluster_.operands[operand].dtype;
  return readScalar(dtype, buffers_[owner_[operand]].data() + offset(operand, row, column) * sizeInBytes(dtype));
}

void Problem::set(int operand, int64_t row, int64_t column, Scalar value) {
  DType dtype = cluster_.operands[operand].dtype;
  writeScalar(dtype, buffers_[owner_[operand]].data() + offset(operand, row, column) * sizeInBytes(dtype), value);
}

void Problem::run(runtime::KernelFunction kernel, const std::vector<std::pair<int64_t, int64_t>>& slices) {
  std::vector<void*> pointers;
  std::vector<int64_t> integers = outerSizes_;
  integers.push_back(columns_);
  for (size_t operand = 0; operand < buffers_.size(); ++operand) {
    pointers.push_back(buffers_[owner_[operand]].data());
    integers.insert(integers.end(), outerStrides_[operand].begin(), outerStrides_[operand].end());
    integers.push_back(columnStrides_[operand]);
  }
  for (auto [begin, end] : slices) kernel(pointers.data(), integers.data(), begin, end);
}

namespace {

// Reductions start with their first element and continue in f64 (for f32 inputs) or in the dtype.
Scalar reduce(PointwiseOp op, DType dtype, const std::vector<Scalar>& values, int64_t count) {
  bool isSum = op == PointwiseOp::kReduceSum;
  bool isProduct = op == PointwiseOp::kReduceProd;
  double inf = std::numeric_limits<double>::infinity();
  long double number = isSum ? 0 : isProduct ? 1 : op == PointwiseOp::kReduceMax ? -inf : inf;
  uint64_t whole = isProduct ? 1 : 0;
  for (int64_t i = 0; i < count; ++i) {
    double x = values[i].f;
    if (isSum)
      number += x, whole += static_cast<uint64_t>(values[i].i);
    else if (isProduct)
      number *= x, whole *= static_cast<uint64_t>(values[i].i);
    else {
      PointwiseOp step = op == PointwiseOp::kReduceMax ? PointwiseOp::kMaximum : PointwiseOp::kMinimum;
      number = evaluate(step, DType::kF64, DType::kF64, {{static_cast<double>(number), 0}, values[i]}).f;
      Scalar best{0, static_cast<int64_t>(whole)};
      whole = static_cast<uint64_t>(i == 0 ? values[i].i : evaluate(step, dtype, dtype, {best, values[i]}).i);
    }
  }
  if (isFloat(dtype)) return {roundFloat(static_cast<double>(number), dtype), 0};
  return {0, wrap(static_cast<int64_t>(whole), dtype)};
}

}  // namespace

void Problem::interpret() {
  int64_t width = std::max<int64_t>(columns_, 1);
  for (int64_t row = 0; row < numRows(); ++row) {
    std::vector<std::vector<Scalar>> values;
    for (const ClusterNode& node : cluster_.nodes) {
      std::vector<Scalar>& out = values.emplace_back(width);
      for (int64_t column = 0; column < width; ++column) {
        std::vector<Scalar> in;
        for (int32_t input : node.inputs) in.push_back(values[input][column]);
        DType inType = node.inputs.empty() ? node.dtype : cluster_.nodes[node.inputs.back()].dtype;
        if (node.op == PointwiseOp::kLoad)
          out[column] = at(node.operand, row, columns_ ? column : 0);
        else if (node.op == PointwiseOp::kConstant)
          out[column] = castScalar({node.constant, 0}, DType::kF64, node.dtype);
        else if (node.op == PointwiseOp::kCast)
          out[column] = castScalar(in[0], inType, node.dtype);
        else if (!isReduction(node))
          out[column] = evaluate(node.op, inType, node.dtype, in);
        else if (column == 0)
          out.assign(width, reduce(node.op, node.dtype, values[node.inputs[0]], columns_));
      }
    }
    for (const ClusterStore& store : cluster_.stores) {
      int64_t count = cluster_.operands[store.operand].isPerRow ? 1 : columns_;
      for (int64_t column = 0; column < count; ++column) set(store.operand, row, column, values[store.node][column]);
    }
  }
}

int64_t ulpsBetween(DType dtype, Scalar a, Scalar b) {
  if (!isFloat(dtype)) return std::llabs(a.i - b.i);
  if (std::isnan(a.f) || std::isnan(b.f)) return std::isnan(a.f) && std::isnan(b.f) ? 0 : INT64_MAX;
  if (a.f == b.f) return 0;
  auto ordered = [&](double x) -> int64_t {
    if (dtype == DType::kF64) {
      int64_t bits = std::bit_cast<int64_t>(x);
      return bits < 0 ? std::numeric_limits<int64_t>::min() - bits : bits;
    }
    int32_t bits = std::bit_cast<int32_t>(static_cast<float>(x));
    int64_t shift = dtype == DType::kBF16 ? 16 : dtype == DType::kF16 ? 13 : 0;
    int64_t magnitude = (bits & 0x7fffffff) >> shift;
    return bits < 0 ? -magnitude : magnitude;
  };
  return std::llabs(ordered(a.f) - ordered(b.f));
}

namespace {

bool agrees(DType dtype, Scalar actual, Scalar expected, const Tolerance& tolerance) {
  if (!isFloat(dtype)) return actual.i == expected.i;
  if (std::isnan(expected.f)) return std::isnan(actual.f);
  if (actual.f == expected.f) {
    bool isExact = tolerance.ulps == 0 && tolerance.relative == 0 && !tolerance.ignoresZeroSign;
    return !isExact || std::signbit(actual.f) == std::signbit(expected.f);
  }
  if (ulpsBetween(dtype, actual, expected) <= tolerance.ulps) return true;
  double allowed = tolerance.absolute + tolerance.relative * std::fabs(expected.f);
  return std::isfinite(actual.f) && std::fabs(actual.f - expected.f) <= allowed;
}

}  // namespace

std::string compare(const Problem& actual, const Problem& expected, const Tolerance& tolerance) {
  const Cluster& cluster = actual.cluster();
  for (const ClusterStore& store : cluster.stores) {
    DType dtype = cluster.operands[store.operand].dtype;
    size_t width = sizeInBytes(dtype);
    const std::vector<std::byte>& got = actual.bytes(store.operand);
    const std::vector<std::byte>& wanted = expected.bytes(store.operand);
    for (size_t i = 0; i < wanted.size() / width; ++i) {
      Scalar a = readScalar(dtype, got.data() + i * width);
      Scalar e = readScalar(dtype, wanted.data() + i * width);
      if (agrees(dtype, a, e, tolerance)) continue;
      return "operand " + std::to_string(store.operand) + " (" + std::string(toString(dtype)) + ") element " +
             std::to_string(i) + ": got " + print(dtype, a) + ", expected " + print(dtype, e) + " in\n" +
             cluster.toString();
    }
  }
  return "";
}

Tolerance toleranceOf(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::kMaximum:
    case PointwiseOp::kMinimum:
    case PointwiseOp::kRelu: return {0, 0, 0, true};
    case PointwiseOp::kRsqrt: return {1, 0, 0, false};
    default: break;
  }
  bool isFormula = (op >= PointwiseOp::kExp && op <= PointwiseOp::kLog1p) ||
                   (op >= PointwiseOp::kSin && op <= PointwiseOp::kSigmoid) || op == PointwiseOp::kPow ||
                   op == PointwiseOp::kAtan2;
  return isFormula ? Tolerance{4, 0, 0, false} : Tolerance{};
}

std::shared_ptr<const runtime::KernelLibrary> build(const std::vector<Cluster>& clusters) {
  runtime::CompileStats stats;
  auto library = buildKernels(clusters, CompileOptions(), stats);
  EXPECT_TRUE(library.hasValue()) << library.status().toString();
  return library.hasValue() ? library.value() : nullptr;
}

}  // namespace agspeed::compiler::testing
