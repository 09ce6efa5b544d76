// SPDX-License-Identifier: Apache-2.0
// Builders of operators on windows of images: pooling and depthwise convolutions, with their gradients. Each becomes
// one kernel of its own (compiler/graph/window.h), which does not fuse with its neighbours. [C, H, W] and [N, C, H, W]
// in any layout. Images, unlike batch and channels, must have fixed sizes.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "compiler/graph/window_plan.h"
#include "compiler/import/op_table.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

// With fewer channels, most lanes of a vector would be empty.
constexpr int64_t kFewestChannels = 8;
// A slice of a launch that is worth a thread has about this many multiplications, or comparisons.
constexpr int64_t kGrainWork = 1 << 20;

// ATen's kernels for channels-last are vectorised. Kernels with tiles are faster for images of at most this many
// pixels.
constexpr int64_t kChannelsLastPixels = 256;
// ATen's convolutions with fewer taps than this are better than its others, so the limit is lower.
constexpr int64_t kManyTaps = 25;
constexpr int64_t kChannelsLastPixelsOfFewTaps = 144;

constexpr const char* kEmpty = "a tensor is empty";

// Sizes or strides of one of its tensors, in the order of the integer table.
struct Layout {
  SymExpr batch, rows, columns, channels;
};

Layout layoutOf(const Dims& dims, const SymExpr& missingBatch) {
  const size_t rank = dims.size();
  return {rank == 4 ? dims[0] : missingBatch, dims[rank - 2], dims[rank - 1], dims[rank - 3]};
}

// The two numbers of a parameter such as padding. One number stands for both.
StatusOr<std::array<int64_t, 2>> pairOf(const OpImport& op, const char* parameter) {
  AG_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, op.integers(parameter));
  if (numbers.size() != 1 && numbers.size() != 2) {
    return unsupported("argument \"{}\" has {} numbers", parameter, numbers.size());
  }
  return std::array{numbers.front(), numbers.back()};
}

// Describes one launch: its window, its tensors and their layouts.
class WindowLaunch {
 public:
  WindowLaunch(OpImport& op, WindowOp operation) : op_(&op) { window_.op = operation; }

  Window& window() { return window_; }

  // Sets the sizes of both axes from the types of image and windows. Errors (of all functions): kUnsupported.
  Status setSizes(const TensorType& image, const TensorType& windows) {
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

  void setAxes(int64_t WindowAxis::* member, const std::array<int64_t, 2>& values) {
    window_.rows.*member = values[0];
    window_.columns.*member = values[1];
  }

  Status addInput(const char* parameter) {
    inputs_.push_back(op_->tensor(parameter));
    return addOperand(op_->typeOf(parameter));
  }

  Status addResult(size_t index) {
    AG_ASSIGN_OR_RETURN(const TensorType type, op_->resultType(index));
    results_.emplace_back(index, type);
    return addOperand(type);
  }

  // Checks everything else. Nothing is emitted before emit().
  Status check() {
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
    const bool isNarrow = estimate(sizes_.channels, op_->emitter().graph().hints) < kFewestChannels;
    return isNarrow ? unsupported("it has fewer than {} channels", kFewestChannels) : Status();
  }

  void emit() {
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

 private:
  Status addOperand(const TensorType& type) {
    const size_t operand = types_.size();
    const WindowOpInfo& info = infoOf(window_.op);
    const bool isMissing = static_cast<int32_t>(operand) == info.optional && type.rank() != 1;
    const WindowSide side = info.operands[operand + (isMissing ? 1 : 0)].side;
    const bool isVector = side == WindowSide::kChannel;
    if (side == WindowSide::kFilter && type.rank() != 4) return unsupported("a filter has {} dimensions", type.rank());
    if (!isVector && type.rank() != 4 && type.rank() != 3)
      return unsupported("a tensor has {} dimensions", type.rank());
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

  Status refuseWhereAtenIsFaster() const {
    const bool hasFewTaps = hasFilter_ && window_.rows.kernel * window_.columns.kernel < kManyTaps;
    const int64_t most = hasFewTaps ? kChannelsLastPixelsOfFewTaps : kChannelsLastPixels;
    const bool isFaster = isOne(strides_[0].channels) && window_.rows.image * window_.columns.image > most;
    return isFaster ? unsupported("ATen is as fast for channels-last images of this size") : Status();
  }

  // If channels of all images are at equal distances, takes all images for one with more channels. This fills lanes.
  void mergeBatch() {
    if (!mergesBatch_ || hasFilter_) return;
    for (const Layout& strides : strides_) {
      if (!sameValue(strides.batch, sizes_.channels * strides.channels)) return;
    }
    sizes_.channels = sizes_.batch * sizes_.channels;
    sizes_.batch = 1;
    for (Layout& strides : strides_) strides.batch = 0;
  }

  int64_t workOfImage() const {
    return window_.rows.windows * window_.columns.windows * window_.rows.kernel * window_.columns.kernel;
  }

  OpImport* op_;
  Window window_;
  Cluster cluster_;
  Layout sizes_;  // of the image
  bool mergesBatch_ = true;
  bool hasFilter_ = false;
  std::vector<ValueId> inputs_;
  std::vector<std::pair<size_t, TensorType>> results_;
  std::vector<TensorType> types_;  // of all operands
  std::vector<Layout> strides_;
};

// --- pooling ---

// Reads kernel_size, stride (default: kernel_size) and padding.
Status setPoolAxes(OpImport& op, WindowLaunch& launch) {
  AG_ASSIGN_OR_RETURN(const auto kernel, pairOf(op, "kernel_size"));
  AG_ASSIGN_OR_RETURN(const auto padding, pairOf(op, "padding"));
  auto stride = kernel;
  AG_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, op.integers("stride"));
  if (!strides.empty()) stride = {strides.front(), strides.back()};
  launch.setAxes(&WindowAxis::kernel, kernel);
  launch.setAxes(&WindowAxis::stride, stride);
  launch.setAxes(&WindowAxis::padding, padding);
  return {};
}

Status buildMaximum(OpImport& op, WindowLaunch& launch, const TensorType& image, const TensorType& windows) {
  AG_RETURN_IF_ERROR(launch.setSizes(image, windows));
  AG_RETURN_IF_ERROR(setPoolAxes(op, launch));
  AG_ASSIGN_OR_RETURN(const auto dilation, pairOf(op, "dilation"));
  launch.setAxes(&WindowAxis::dilation, dilation);
  return {};
}

Status requireTensors(const OpImport& op, std::initializer_list<const char*> parameters) {
  for (const char* parameter : parameters) {
    if (!op.isTensor(parameter)) return unsupported("argument \"{}\" is not a tensor", parameter);
  }
  return {};
}

Status finish(WindowLaunch& launch) {
  AG_RETURN_IF_ERROR(launch.check());
  launch.emit();
  return {};
}

Status setAverage(OpImport& op, WindowLaunch& launch) {
  AG_RETURN_IF_ERROR(setPoolAxes(op, launch));
  launch.window().dividesBy = op.flag("count_include_pad") ? WindowDivisor::kPadded : WindowDivisor::kInside;
  if (op.isNone("divisor_override")) return {};
  launch.window().dividesBy = WindowDivisor::kConstant;
  AG_ASSIGN_OR_RETURN(launch.window().divisor, op.integer("divisor_override"));
  return {};
}

// The windows of adaptive pooling are equal and do not overlap if their number divides the size of the image.
Status setAdaptive(WindowLaunch& launch) {
  for (WindowAxis* axis : {&launch.window().rows, &launch.window().columns}) {
    if (axis->image % axis->windows != 0) return unsupported("its windows have different sizes");
    axis->kernel = axis->stride = axis->image / axis->windows;
  }
  launch.window().dividesBy = WindowDivisor::kSides;
  return {};
}

// --- depthwise convolutions ---

// Reads the arguments of a convolution whose every channel has one filter.
Status setConvolution(OpImport& op, WindowLaunch& launch, const TensorType& image, const TensorType& windows) {
  const TensorType weight = op.typeOf("weight");
  AG_ASSIGN_OR_RETURN(const int64_t groups, op.integer("groups"));
  if (groups == 1 || image.rank() != 4 || weight.rank() != 4 || op.flag("transposed")) {
    return unsupported("it is not a depthwise convolution of images");
  }
  AG_RETURN_IF_ERROR(launch.setSizes(image, windows));
  const bool isDepthwise = sameValue(image.sizes[1], groups) && sameValue(weight.sizes[0], groups);
  if (!isDepthwise || !isOne(weight.sizes[1])) return unsupported("it has several channels in a group");
  if (!weight.sizes[2].isConstant() || !weight.sizes[3].isConstant())
    return unsupported("the filter's size is not fixed");
  launch.setAxes(&WindowAxis::kernel, {weight.sizes[2].constant(), weight.sizes[3].constant()});
  AG_ASSIGN_OR_RETURN(const auto stride, pairOf(op, "stride"));
  AG_ASSIGN_OR_RETURN(const auto padding, pairOf(op, "padding"));
  AG_ASSIGN_OR_RETURN(const auto dilation, pairOf(op, "dilation"));
  launch.setAxes(&WindowAxis::stride, stride);
  launch.setAxes(&WindowAxis::padding, padding);
  launch.setAxes(&WindowAxis::dilation, dilation);
  return {};
}

StatusOr<WindowLaunch> inputGradient(OpImport& op) {
  WindowLaunch launch(op, WindowOp::kDepthwiseInput);
  AG_RETURN_IF_ERROR(setConvolution(op, launch, op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput("weight"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  AG_RETURN_IF_ERROR(launch.check());
  return launch;
}

StatusOr<WindowLaunch> weightGradient(OpImport& op) {
  WindowLaunch launch(op, WindowOp::kDepthwiseWeight);
  AG_RETURN_IF_ERROR(setConvolution(op, launch, op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(1));
  if (op.isResultWanted(2)) AG_RETURN_IF_ERROR(launch.addResult(2));
  AG_RETURN_IF_ERROR(launch.check());
  return launch;
}

}  // namespace

Status buildMaxPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kMaxPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType(0));
  AG_RETURN_IF_ERROR(buildMaximum(op, launch, op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  AG_RETURN_IF_ERROR(launch.addResult(1));
  return finish(launch);
}

Status buildMaxPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x", "indices"}));
  WindowLaunch launch(op, WindowOp::kMaxPoolBackward);
  AG_RETURN_IF_ERROR(buildMaximum(op, launch, op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput("indices"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

Status buildAvgPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kAvgPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(setAverage(op, launch));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

Status buildAvgPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x"}));
  WindowLaunch launch(op, WindowOp::kAvgPoolBackward);
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(setAverage(op, launch));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

Status buildAdaptiveAvgPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kAvgPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(setAdaptive(launch));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

Status buildAdaptiveAvgPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x"}));
  WindowLaunch launch(op, WindowOp::kAvgPoolBackward);
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(setAdaptive(launch));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

Status buildConvolution(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x", "weight"}));
  WindowLaunch launch(op, WindowOp::kDepthwise);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_RETURN_IF_ERROR(setConvolution(op, launch, op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addInput("weight"));
  if (op.isTensor("bias")) AG_RETURN_IF_ERROR(launch.addInput("bias"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return finish(launch);
}

// The gradients are one kernel for the input, and one for filters and bias.
Status buildConvolutionBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x", "weight"}));
  if (op.isResultWanted(2) && !op.isResultWanted(1)) return unsupported("only the bias has a gradient");
  std::optional<WindowLaunch> input, weight;
  if (op.isResultWanted(0)) {
    AG_ASSIGN_OR_RETURN(input, inputGradient(op));
  }
  if (op.isResultWanted(1)) {
    AG_ASSIGN_OR_RETURN(weight, weightGradient(op));
  }
  if (input) input->emit();
  if (weight) weight->emit();
  return {};
}

}  // namespace agspeed::compiler
