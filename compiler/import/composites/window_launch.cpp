// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/composites/window_launch.h"

#include <algorithm>

#include "compiler/graph/window_plan.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

// With fewer channels, most lanes of a vector would be empty. ATen interpolates element by element, so fewer lanes are
// enough then.
constexpr int64_t kFewestChannels = 8;
constexpr int64_t kFewestInterpolatedChannels = 3;
// A slice of a launch that is worth a thread has about this many multiplications, or comparisons.
constexpr int64_t kGrainWork = 1 << 20;

// ATen's kernels for channels-last images are vectorised. Kernels with tiles are faster than these if an image has at
// most the following number of pixels. Convolutions with kManyTaps or more taps are faster for images of any size. The
// numbers are from measurements with one thread on processors with AVX-512 and with AVX2.
constexpr int64_t kManyTaps = 25;
constexpr int64_t kConvolvedPixels = 144;
constexpr int64_t kConvolvedPixelsOfSteps = 256;  // for strides of 2 and more
constexpr int64_t kAveragedPixels = 256;
constexpr int64_t kMaximaPixels = 64;
constexpr int64_t kMaximaOfFewTapsPixels = 36;  // for maxima of fewer elements than a 3x3 window has
// For each pixel of channels-last images, ATen's resampling computes its position first. This takes longer than the
// channels if they are few. Tiles cost little if the larger one of image and result has few elements.
constexpr int64_t kFewResampledChannels = 20;
constexpr int64_t kFewResampledElements = 1 << 15;

constexpr const char* kEmpty = "a tensor is empty";

}  // namespace

WindowLaunch::Layout WindowLaunch::layoutOf(const Dims& dims, const SymExpr& missingBatch) {
  const size_t rank = dims.size();
  return {rank == 4 ? dims[0] : missingBatch, dims[rank - 2], dims[rank - 1], dims[rank - 3]};
}

Status WindowLaunch::setSizes(const TensorType& image, const TensorType& windows) {
  if (!op_->emitter().graph().device.isHost()) return unsupported("there are no kernels for windows on a GPU");
  if (image.rank() != windows.rank() || (image.rank() != 3 && image.rank() != 4)) {
    return unsupported("the image is not [N, C, H, W] or [C, H, W]");
  }
  for (const Dims& sizes : {image.sizes, windows.sizes}) {
    if (std::ranges::any_of(sizes, isZero)) return unsupported(kEmpty);
  }
  sizes_ = layoutOf(image.sizes, 1);
  const Layout counts = layoutOf(windows.sizes, 1);
  for (const SymExpr& size : {sizes_.rows, sizes_.columns, counts.rows, counts.columns}) {
    if (!size.isConstant()) return unsupported("the size of the image is not fixed");
  }
  window_.rows.image = sizes_.rows.constant();
  window_.columns.image = sizes_.columns.constant();
  window_.rows.windows = counts.rows.constant();
  window_.columns.windows = counts.columns.constant();
  return {};
}

void WindowLaunch::setAxes(int64_t WindowAxis::* member, const std::array<int64_t, 2>& values) {
  window_.rows.*member = values[0];
  window_.columns.*member = values[1];
}

Status WindowLaunch::addInput(ValueId value) {
  inputs_.push_back(value);
  return addOperand(op_->emitter().typeOf(value));
}

Status WindowLaunch::addResult(size_t index) {
  AG_ASSIGN_OR_RETURN(const TensorType type, op_->resultType(index));
  results_.emplace_back(index, type);
  return addOperand(type);
}

Status WindowLaunch::check() {
  cluster_.outerRank = 3;
  cluster_.window = window_;
  const DType dtype = types_[0].dtype;
  for (size_t i = 0; i < types_.size(); ++i) {
    ClusterOperand operand;
    operand.dtype = types_[i].dtype;
    operand.isOutput = i >= inputs_.size();
    operand.columns =
        isOne(strides_[i].channels) ? ClusterOperand::Columns::kContiguous : ClusterOperand::Columns::kStrided;
    cluster_.operands.push_back(operand);
  }
  if (Status status = cluster_.verify(); !status.isOk()) return unsupported(status.message());
  AG_RETURN_IF_ERROR(checkWindowSize(window_, dtype));
  AG_RETURN_IF_ERROR(refuseWhereAtenIsFaster());
  mergeBatch();
  const int64_t fewest = window_.isInterpolating() ? kFewestInterpolatedChannels : kFewestChannels;
  const bool isNarrow = estimate(sizes_.channels, op_->emitter().graph().hints) < fewest;
  return isNarrow ? unsupported("it has fewer than {} channels", fewest) : Status();
}

void WindowLaunch::emit() {
  Graph& graph = op_->emitter().graph();
  Node node;
  node.kind = NodeKind::kKernel;
  node.origin = op_->node().name;
  node.inputs = inputs_;
  for (const auto& [index, type] : results_) {
    const bool isTuple = op_->node().type.kind == SpecType::Kind::kTuple;
    const std::string suffix = isTuple ? formatText(".r{}", index) : "";
    node.results.push_back(graph.addValue(op_->node().name + suffix, type));
    op_->setResultValue(node.results.back(), index);
  }
  node.integers = {sizes_.batch, sizes_.rows, sizes_.columns, sizes_.channels};
  for (const Layout& strides : strides_) {
    node.integers.insert(node.integers.end(), {strides.batch, strides.rows, strides.columns, strides.channels});
  }
  const int64_t lanes = windowLanes(types_[0].dtype);
  const SymExpr blocks = floorDiv(sizes_.channels + (lanes - 1), lanes);
  const bool sumsOverBatch = infoOf(window_.op).sumsOverBatch;
  node.extent = sumsOverBatch ? blocks : blocks * sizes_.batch;
  const SymExpr work = sumsOverBatch ? sizes_.batch * workOfImage() : SymExpr(workOfImage());
  node.grain = max(1, floorDiv(kGrainWork / lanes, max(1, work)));
  node.cluster = static_cast<int32_t>(graph.clusters.size());
  graph.clusters.push_back(std::move(cluster_));
  graph.nodes.push_back(std::move(node));
}

Status WindowLaunch::addOperand(const TensorType& type) {
  const size_t operand = types_.size();
  const WindowOpInfo& info = infoOf(window_.op);
  const bool isMissing = static_cast<int32_t>(operand) == info.optional && type.rank() != 1;
  const WindowSide side = info.operands[operand + (isMissing ? 1 : 0)].side;
  const bool isVector = side == WindowSide::kChannel;
  if (side == WindowSide::kFilter && type.rank() != 4) return unsupported("a filter has {} dimensions", type.rank());
  if (!isVector && type.rank() != 4 && type.rank() != 3) return unsupported("a tensor has {} dimensions", type.rank());
  if (isVector) {
    strides_.push_back({0, 0, 0, type.strides[0]});
  } else if (side == WindowSide::kFilter) {
    strides_.push_back({0, type.strides[2], type.strides[3], type.strides[0]});
  } else {
    strides_.push_back(layoutOf(type.strides, 0));
    mergesBatch_ &= type.rank() == 4;
  }
  hasFilter_ |= side == WindowSide::kFilter;
  types_.push_back(type);
  return {};
}

Status WindowLaunch::refuseWhereAtenIsFaster() const {
  const int64_t pixels = window_.rows.image * window_.columns.image;
  const int64_t taps = window_.rows.kernel * window_.columns.kernel;
  const bool isMaximum = window_.op == WindowOp::kMaxPool || window_.op == WindowOp::kMaxPoolBackward;
  const int64_t maximaPixels = taps < 9 ? kMaximaOfFewTapsPixels : kMaximaPixels;
  bool isFaster = pixels > (isMaximum ? maximaPixels : kAveragedPixels);
  if (window_.isResampling()) {
    const int64_t channels = estimate(sizes_.channels, op_->emitter().graph().hints);
    const int64_t largest = std::max(pixels, window_.rows.windows * window_.columns.windows);
    isFaster = channels > kFewResampledChannels && channels * largest > kFewResampledElements;
  } else if (hasFilter_) {
    const bool steps = window_.rows.stride > 1 && window_.columns.stride > 1;
    isFaster = taps < kManyTaps && pixels > (steps ? kConvolvedPixelsOfSteps : kConvolvedPixels);
  }
  isFaster &= isOne(strides_[0].channels);
  return isFaster ? unsupported("ATen is as fast for channels-last images of this size") : Status();
}

// If channels of all images are at equal distances, takes all images for one with more channels. This fills lanes.
void WindowLaunch::mergeBatch() {
  if (!mergesBatch_ || hasFilter_) return;
  for (const Layout& strides : strides_) {
    if (!sameValue(strides.batch, sizes_.channels * strides.channels)) return;
  }
  sizes_.channels = sizes_.batch * sizes_.channels;
  sizes_.batch = 1;
  for (Layout& strides : strides_) strides.batch = 0;
}

int64_t WindowLaunch::workOfImage() const {
  const int64_t perWindow = window_.isResampling() ? 4 : window_.rows.kernel * window_.columns.kernel;
  return window_.rows.windows * window_.columns.windows * perWindow;
}

Status WindowLaunch::finish() {
  AG_RETURN_IF_ERROR(check());
  emit();
  return {};
}

}  // namespace agspeed::compiler
