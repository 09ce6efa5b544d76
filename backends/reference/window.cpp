// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/window.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backends/reference/scalar_op.h"
#include "compiler/graph/resample_plan.h"

namespace agspeed::backends::reference {

using compiler::Cluster;
using compiler::countPositions;
using compiler::Window;
using compiler::WindowAxis;
using compiler::WindowDivisor;
using compiler::WindowOp;

namespace {

// One channel of one image.
class ChannelInterpreter {
 public:
  ChannelInterpreter(const Cluster& cluster, void* const* pointers, const int64_t* integers, int64_t image,
                     int64_t channel)
      : cluster_(cluster),
        window_(*cluster.window),
        pointers_(pointers),
        strides_(integers + 4),
        image_(image),
        channel_(channel) {}

  void run() {
    switch (window_.op) {
      case WindowOp::kMaxPool: return maxPool();
      case WindowOp::kMaxPoolBackward: return maxPoolBackward();
      case WindowOp::kAvgPool: return avgPool();
      case WindowOp::kAvgPoolBackward: return avgPoolBackward();
      case WindowOp::kDepthwise: return depthwise();
      case WindowOp::kDepthwiseInput: return depthwiseInput();
      case WindowOp::kDepthwiseWeight: return;  // over all images: addWeightGradients()
      case WindowOp::kResample: return resample();
      case WindowOp::kResampleBackward: return resampleBackward();
    }
  }

  // Adds this image's part of the gradients to sums: the filter, row by row, then the bias.
  void addWeightGradients(std::vector<double>& sums) const {
    forEachTap([&](const Tap& tap) {
      sums[filterIndex(tap)] += load(0, tap.windowRow, tap.windowColumn) * loadImage(1, tap);
    });
    forEachWindow([&](int64_t row, int64_t column) { sums.back() += load(0, row, column); });
  }

  void storeWeightGradients(const std::vector<double>& sums) const {
    for (int64_t k = 0; k < window_.rows.kernel * window_.columns.kernel; ++k) {
      store(2, k / window_.columns.kernel, k % window_.columns.kernel, sums[static_cast<size_t>(k)]);
    }
    if (cluster_.operands.size() > 3) store(3, 0, 0, sums.back());
  }

 private:
  // An element of the image that a window reads.
  struct Tap {
    int64_t windowRow, windowColumn, kernelRow, kernelColumn, row, column;
    bool isInside = true;  // false: an element of the padding, which takes part
  };

  void forEachWindow(const std::function<void(int64_t, int64_t)>& body) const {
    for (int64_t row = 0; row < window_.rows.windows; ++row) {
      for (int64_t column = 0; column < window_.columns.windows; ++column) body(row, column);
    }
  }

  void forEachTapOf(int64_t windowRow, int64_t windowColumn, const std::function<void(const Tap&)>& body) const {
    for (int64_t i = 0; i < window_.rows.kernel; ++i) {
      for (int64_t j = 0; j < window_.columns.kernel; ++j) {
        const int64_t row = windowRow * window_.rows.stride - window_.rows.padding + i * window_.rows.dilation;
        const int64_t column =
            windowColumn * window_.columns.stride - window_.columns.padding + j * window_.columns.dilation;
        const bool isInside = row >= 0 && row < window_.rows.image && column >= 0 && column < window_.columns.image;
        if (isInside || window_.multipliesPadding) body({windowRow, windowColumn, i, j, row, column, isInside});
      }
    }
  }

  void forEachTap(const std::function<void(const Tap&)>& body) const {
    forEachWindow([&](int64_t row, int64_t column) { forEachTapOf(row, column, body); });
  }

  size_t filterIndex(const Tap& tap) const {
    return static_cast<size_t>(tap.kernelRow * window_.columns.kernel + tap.kernelColumn);
  }

  int64_t offset(int operand, int64_t row, int64_t column) const {
    const int64_t* strides = strides_ + static_cast<int64_t>(operand) * 4;
    return image_ * strides[0] + row * strides[1] + column * strides[2] + channel_ * strides[3];
  }

  double load(int operand, int64_t row, int64_t column) const {
    return loadScalar(pointers_[operand], cluster_.operands[operand].dtype, offset(operand, row, column)).real;
  }
  double loadImage(int operand, const Tap& tap) const { return tap.isInside ? load(operand, tap.row, tap.column) : 0; }
  int64_t loadPosition(int operand, int64_t row, int64_t column) const {
    return loadScalar(pointers_[operand], DType::kI64, offset(operand, row, column)).integer;
  }
  void store(int operand, int64_t row, int64_t column, double value) const {
    const DType dtype = cluster_.operands[operand].dtype;
    storeScalar(pointers_[operand], dtype, offset(operand, row, column),
                convertScalar({.real = value}, DType::kF64, dtype));
  }

  void storeImage(int operand, const std::vector<double>& values) const {
    for (int64_t i = 0; i < window_.rows.image * window_.columns.image; ++i) {
      store(operand, i / window_.columns.image, i % window_.columns.image, values[static_cast<size_t>(i)]);
    }
  }
  std::vector<double> zeroImage() const {
    return std::vector<double>(static_cast<size_t>(window_.rows.image * window_.columns.image));
  }
  size_t positionOf(const Tap& tap) const { return static_cast<size_t>(tap.row * window_.columns.image + tap.column); }

  double divisorOf(int64_t row, int64_t column) const {
    if (window_.dividesBy == WindowDivisor::kConstant) return static_cast<double>(window_.divisor);
    if (window_.dividesBy == WindowDivisor::kSides) {
      return static_cast<double>(window_.rows.kernel * window_.columns.kernel);
    }
    return static_cast<double>(countPositions(window_.rows, window_.dividesBy, row) *
                               countPositions(window_.columns, window_.dividesBy, column));
  }

  void maxPool() const {
    forEachWindow([&](int64_t row, int64_t column) {
      double maximum = -std::numeric_limits<double>::infinity();
      int64_t position = -1;
      forEachTapOf(row, column, [&](const Tap& tap) {
        const double value = load(0, tap.row, tap.column);
        if (position < 0) position = static_cast<int64_t>(positionOf(tap));
        if (!(value > maximum) && !std::isnan(value)) return;
        maximum = value;
        position = static_cast<int64_t>(positionOf(tap));
      });
      store(1, row, column, maximum);
      storeScalar(pointers_[2], DType::kI64, offset(2, row, column), {.integer = position});
    });
  }

  void maxPoolBackward() const {
    std::vector<double> sums = zeroImage();
    forEachTap([&](const Tap& tap) {
      const bool isMaximum = loadPosition(1, tap.windowRow, tap.windowColumn) == static_cast<int64_t>(positionOf(tap));
      if (isMaximum) sums[positionOf(tap)] += load(0, tap.windowRow, tap.windowColumn);
    });
    storeImage(2, sums);
  }

  void avgPool() const {
    forEachWindow([&](int64_t row, int64_t column) {
      double sum = 0;
      forEachTapOf(row, column, [&](const Tap& tap) { sum += load(0, tap.row, tap.column); });
      store(1, row, column, sum / divisorOf(row, column));
    });
  }

  void avgPoolBackward() const {
    std::vector<double> sums = zeroImage();
    forEachTap([&](const Tap& tap) {
      sums[positionOf(tap)] += load(0, tap.windowRow, tap.windowColumn) / divisorOf(tap.windowRow, tap.windowColumn);
    });
    storeImage(1, sums);
  }

  void depthwise() const {
    const bool hasBias = cluster_.operands.size() == 4;
    forEachWindow([&](int64_t row, int64_t column) {
      double sum = hasBias ? load(2, 0, 0) : 0;
      forEachTapOf(row, column,
                   [&](const Tap& tap) { sum += loadImage(0, tap) * load(1, tap.kernelRow, tap.kernelColumn); });
      store(hasBias ? 3 : 2, row, column, sum);
    });
  }

  void depthwiseInput() const {
    std::vector<double> sums = zeroImage();
    forEachTap([&](const Tap& tap) {
      sums[positionOf(tap)] += load(0, tap.windowRow, tap.windowColumn) * load(1, tap.kernelRow, tap.kernelColumn);
    });
    storeImage(2, sums);
  }

  // body(row, column, image row, image column, weight) for each window and each element that it reads.
  void forEachSample(const std::function<void(int64_t, int64_t, int64_t, int64_t, double)>& body) const {
    const DType dtype = cluster_.operands[0].dtype;
    const compiler::AxisSamples rows = compiler::samplesOfWindows(window_, window_.rows, dtype);
    const compiler::AxisSamples columns = compiler::samplesOfWindows(window_, window_.columns, dtype);
    forEachWindow([&](int64_t row, int64_t column) {
      for (const compiler::Sample& atRow : rows[static_cast<size_t>(row)]) {
        for (const compiler::Sample& atColumn : columns[static_cast<size_t>(column)]) {
          body(row, column, atRow.source, atColumn.source, atRow.weight * atColumn.weight);
        }
      }
    });
  }

  void resample() const {
    const int64_t numColumns = window_.columns.windows;
    std::vector<double> sums(static_cast<size_t>(window_.rows.windows * numColumns));
    forEachSample([&](int64_t row, int64_t column, int64_t imageRow, int64_t imageColumn, double weight) {
      sums[static_cast<size_t>(row * numColumns + column)] += weight * load(0, imageRow, imageColumn);
    });
    forEachWindow([&](int64_t row, int64_t column) {
      store(1, row, column, sums[static_cast<size_t>(row * numColumns + column)]);
    });
  }

  void resampleBackward() const {
    std::vector<double> sums = zeroImage();
    forEachSample([&](int64_t row, int64_t column, int64_t imageRow, int64_t imageColumn, double weight) {
      sums[static_cast<size_t>(imageRow * window_.columns.image + imageColumn)] += weight * load(0, row, column);
    });
    storeImage(1, sums);
  }

  const Cluster& cluster_;
  const Window& window_;
  void* const* pointers_;
  const int64_t* strides_;
  int64_t image_;
  int64_t channel_;
};

}  // namespace

void runWindow(const Cluster& cluster, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) {
  const int64_t numImages = integers[0];
  const int64_t lanes = compiler::windowLanes(cluster.operands[0].dtype);
  const bool sumsOverBatch = compiler::infoOf(cluster.window->op).sumsOverBatch;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t block = sumsOverBatch ? unit : unit / numImages;
    for (int64_t channel = block * lanes; channel < std::min(integers[3], (block + 1) * lanes); ++channel) {
      if (!sumsOverBatch) {
        ChannelInterpreter(cluster, pointers, integers, unit % numImages, channel).run();
        continue;
      }
      std::vector<double> sums(static_cast<size_t>(cluster.window->rows.kernel * cluster.window->columns.kernel) + 1);
      for (int64_t image = 0; image < numImages; ++image) {
        ChannelInterpreter(cluster, pointers, integers, image, channel).addWeightGradients(sums);
      }
      ChannelInterpreter(cluster, pointers, integers, 0, channel).storeWeightGradients(sums);
    }
  }
}

}  // namespace agspeed::backends::reference
