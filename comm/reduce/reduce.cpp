// SPDX-License-Identifier: Apache-2.0
// This file is compiled once per instruction set (foreach_target.h). The compiler vectorizes the scalar loops for each
// set. Buffers are processed in tiles. A tile stays in the first-level cache together with the partial results of the
// tree, so each input is read from memory once.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)  // these sets bring no gain here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "comm/reduce/reduce.h"
#include "runtime/base/instruction_set.h"

HWY_BEFORE_NAMESPACE();
namespace agspeed::comm::reduce::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kTileBytes = 4096;

/// Storage of the 16-bit floats; all other element types are their own C++ types.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename T>
using Accumulator = std::conditional_t<sizeof(T) == 2 && std::is_class_v<T>, float, T>;

inline void convert(float* HWY_RESTRICT target, const BF16* HWY_RESTRICT source, size_t count) {
  for (size_t i = 0; i < count; ++i) target[i] = std::bit_cast<float>(uint32_t{source[i].bits} << 16);
}

/// Converts f32 to bf16: rounds to nearest, ties to even; NaN stays NaN.
inline void convert(BF16* HWY_RESTRICT target, const float* HWY_RESTRICT source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
    target[i].bits = static_cast<uint16_t>(isNan ? (bits >> 16) | 0x40u : rounded);
  }
}

/// Applies `convertVector(target, source)` to whole vectors. The rest uses the same instruction on padded copies, so
/// that the bits of an element do not depend on its position.
template <typename To, typename From, typename F>
inline void convertVectors(To* target, const From* source, size_t count, F convertVector) {
  const hn::ScalableTag<float> wide;
  const size_t lanes = hn::Lanes(wide);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) convertVector(target + i, source + i);
  if (i == count) return;
  From in[hn::MaxLanes(wide)] = {};
  To out[hn::MaxLanes(wide)];
  std::copy(source + i, source + count, in);
  convertVector(out, in);
  std::copy(out, out + (count - i), target + i);
}

inline void convert(float* target, const F16* source, size_t count) {
  convertVectors(target, source, count, [](float* to, const F16* from) {
    const hn::ScalableTag<float> wide;
    const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
    hn::StoreU(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from))), wide, to);
  });
}

inline void convert(F16* target, const float* source, size_t count) {
  convertVectors(target, source, count, [](F16* to, const float* from) {
    const hn::ScalableTag<float> wide;
    const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
    hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(wide, from)), narrow, reinterpret_cast<hwy::float16_t*>(to));
  });
}

/// Applies `f` to two elements. Integers wrap around, so `f` gets them as unsigned values.
template <typename T, typename F>
inline T wrap(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    // At least 32 bits wide, or the product of two uint16_t would overflow int.
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return wrap(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Product {
  template <typename T>
  static T apply(T a, T b) {
    return wrap(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};
struct BitAnd {
  template <typename T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct BitOr {
  template <typename T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct BitXor {
  template <typename T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

/// Computes target[i] = left[i] op right[i]. `target` may be `left` or `right`.
template <typename Op, typename T>
void combine(T* target, const T* left, const T* right, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) target[i] = Op::apply(left[i], right[i]);
}

/// Reduces one tile: evaluates the canonical tree over the inputs at an offset.
template <typename T, typename Op>
class TileReducer {
 public:
  using A = Accumulator<T>;
  static constexpr size_t kTile = kTileBytes / sizeof(A);

  TileReducer(std::span<const Operand> inputs, const Reduction& reduction)
      : inputs_(inputs), divisor_(reduction.divisor) {}

  void run(std::byte* target, bool isTargetWide, size_t offset, size_t count) {
    offset_ = offset;
    count_ = count;
    depth_ = 0;
    if (isTargetWide || std::is_same_v<T, A>) {
      finish(reinterpret_cast<A*>(target) + offset);
    } else {
      A* result = tiles_[depth_++];
      finish(result);
      store(reinterpret_cast<T*>(target) + offset, result);
    }
  }

 private:
  void finish(A* result) {
    const CanonicalTree tree(static_cast<int>(inputs_.size()));
    const A* value = evaluate(tree, 0, tree.numPositions, result);
    if (divisor_ != 1) {
      // Divides integers by an int, because their own type may not hold the number of ranks.
      const auto divisor = static_cast<std::conditional_t<std::is_integral_v<A>, int, A>>(divisor_);
      for (size_t i = 0; i < count_; ++i) result[i] = static_cast<A>(value[i] / divisor);
    } else if (value != result) {
      std::memmove(result, value, count_ * sizeof(A));
    }
  }

  /// Computes the value of `count` positions from `first`. Returns: where the value is, an input or `result`. The left
  /// operand is computed into a tile and never into `result`, because `result` may be an input that the right operand
  /// still reads.
  const A* evaluate(const CanonicalTree& tree, int first, int count, A* result) {
    if (count == 1 && !tree.isPair(first)) return load(tree.firstLeaf(first));
    const int mark = depth_;
    const A* left;
    const A* right;
    if (count == 1) {
      left = load(tree.firstLeaf(first));
      right = load(tree.firstLeaf(first) + 1);
    } else {
      left = evaluate(tree, first, count / 2, tiles_[depth_++]);
      right = evaluate(tree, first + count / 2, count / 2, tiles_[depth_++]);
    }
    combine<Op>(result, left, right, count_);
    depth_ = mark;
    return result;
  }

  const A* load(int index) {
    const Operand& input = inputs_[static_cast<size_t>(index)];
    if constexpr (!std::is_same_v<T, A>) {
      if (!input.isWide) {
        A* tile = tiles_[depth_++];
        convert(tile, reinterpret_cast<const T*>(input.data) + offset_, count_);
        return tile;
      }
    }
    return reinterpret_cast<const A*>(input.data) + offset_;
  }

  void store(T* target, const A* result) {
    if constexpr (!std::is_same_v<T, A>) convert(target, result, count_);
  }

  // Each level of the tree uses at most two tiles, and the result uses one. Fewer than 2^15 ranks have at most 15
  // levels.
  static constexpr int kMaxTiles = 34;

  std::span<const Operand> inputs_;
  const int divisor_;
  size_t offset_ = 0, count_ = 0;
  int depth_ = 0;
  alignas(64) A tiles_[kMaxTiles][kTile];
};

template <typename T, typename Op>
void reduceWith(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
                const Reduction& reduction) {
  TileReducer<T, Op> reducer(inputs, reduction);
  constexpr size_t kTile = TileReducer<T, Op>::kTile;
  for (size_t offset = 0; offset < count; offset += kTile) {
    reducer.run(target, isTargetWide, offset, std::min(kTile, count - offset));
  }
}

template <typename T>
void reduceOf(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
              const Reduction& reduction) {
  const auto run = [&](auto op) { reduceWith<T, decltype(op)>(target, isTargetWide, inputs, count, reduction); };
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kPremultipliedSum: return run(Sum{});
    case ReduceOp::kProduct: return run(Product{});
    case ReduceOp::kMin: return run(Min{});
    case ReduceOp::kMax: return run(Max{});
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (reduction.op == ReduceOp::kBitAnd) return run(BitAnd{});
    if (reduction.op == ReduceOp::kBitOr) return run(BitOr{});
    if (reduction.op == ReduceOp::kBitXor) return run(BitXor{});
  }
}

/// Calls f with a value of the C++ type that stores `dtype`; does nothing for complex numbers.
template <typename F>
void withElementType(DType dtype, F f) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8: return f(uint8_t{});
    case DType::kI8: return f(int8_t{});
    case DType::kI16: return f(int16_t{});
    case DType::kI32: return f(int32_t{});
    case DType::kI64: return f(int64_t{});
    case DType::kF16: return f(F16{});
    case DType::kBF16: return f(BF16{});
    case DType::kF32: return f(float{});
    case DType::kF64: return f(double{});
    default: return;
  }
}

void reduceAll(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
               const Reduction& reduction) {
  withElementType(reduction.dtype,
                  [&](auto element) { reduceOf<decltype(element)>(target, isTargetWide, inputs, count, reduction); });
}

template <typename T>
void multiplyBy(T* target, const T* source, size_t count, double factor) {
  if constexpr (std::is_integral_v<T>) {
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = static_cast<double>(std::numeric_limits<T>::max());
    for (size_t i = 0; i < count; ++i) {
      const double product = static_cast<double>(source[i]) * factor;
      // The largest int64_t is not a double, hence the comparison with >=.
      if (product >= high) {
        target[i] = std::numeric_limits<T>::max();
      } else {
        target[i] = product <= low ? std::numeric_limits<T>::min() : product == product ? static_cast<T>(product) : T{};
      }
    }
  } else {
    using A = Accumulator<T>;
    const A by = static_cast<A>(factor);
    if constexpr (std::is_same_v<T, A>) {
      for (size_t i = 0; i < count; ++i) target[i] = source[i] * by;
    } else {
      constexpr size_t kTile = kTileBytes / sizeof(A);
      alignas(64) A tile[kTile];
      for (size_t at = 0; at < count; at += kTile) {
        const size_t size = std::min(kTile, count - at);
        convert(tile, source + at, size);
        for (size_t i = 0; i < size; ++i) tile[i] *= by;
        convert(target + at, tile, size);
      }
    }
  }
}

void multiplyAll(std::byte* target, const std::byte* source, size_t count, DType dtype, double factor) {
  withElementType(dtype, [&](auto element) {
    using T = decltype(element);
    multiplyBy(reinterpret_cast<T*>(target), reinterpret_cast<const T*>(source), count, factor);
  });
}

}  // namespace agspeed::comm::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace agspeed::comm::reduce {

namespace {

using ReduceAll = decltype(HWY_STATIC_DISPATCH(reduceAll));
using MultiplyAll = decltype(HWY_STATIC_DISPATCH(multiplyAll));

ReduceAll* const bestReduceAll =
    bestVariant<ReduceAll>(HWY_CHOOSE_AVX3(reduceAll), HWY_CHOOSE_AVX2(reduceAll), &HWY_STATIC_DISPATCH(reduceAll));
MultiplyAll* const bestMultiplyAll = bestVariant<MultiplyAll>(
    HWY_CHOOSE_AVX3(multiplyAll), HWY_CHOOSE_AVX2(multiplyAll), &HWY_STATIC_DISPATCH(multiplyAll));

/// Returns the operation on the bytes 0 and 1 that computes `op` on bools.
ReduceOp ofBools(ReduceOp op) {
  if (op == ReduceOp::kSum) return ReduceOp::kMax;
  return op == ReduceOp::kProduct ? ReduceOp::kMin : op;
}

}  // namespace

void reduce(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
            const Reduction& reduction) {
  Reduction exact = reduction;
  if (exact.dtype == DType::kBool) exact.op = ofBools(exact.op);
  bestReduceAll(target, isTargetWide, inputs, count, exact);
}

void multiply(std::byte* target, const std::byte* source, size_t count, DType dtype, double factor) {
  bestMultiplyAll(target, source, count, dtype, factor);
}

}  // namespace agspeed::comm::reduce
#endif
