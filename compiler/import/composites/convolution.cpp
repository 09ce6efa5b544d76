// SPDX-License-Identifier: Apache-2.0
// Builders of convolutions and their gradients. A 1x1 convolution is a product of matrices, and so are its gradients.
// These products are calls of the library, on views of the images. For x [N, C, H, W] and weight [O, C, 1, 1], with P
// for the H*W pixels of an image:
//
//   form     layout of images                  y                       gradient of weight
//   kImages  a matrix [C, P] for each image    bmm(weight, x)          sum over images of bmm(grad, x^T)
//   kRows    one matrix [N*P, C] for all       mm(x, weight^T)         mm(grad^T, x)
//
// Images in another layout than the form's are copied by a kernel, which fuses with its neighbours. Kernels also add
// the bias and sum its gradient. Depthwise convolutions are window operators (window.cpp). All others stay calls.
#include <algorithm>

#include "compiler/import/composites/depthwise.h"
#include "compiler/import/op_table.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

enum class Form : uint8_t { kImages, kRows };

bool hasImages(const TensorType& type) { return isContiguousFrom(type, 1); }

// --- which form ---

struct ImageSizes {
  int64_t batch, pixels, inputs, outputs;

  int64_t numElements() const { return batch * pixels * (inputs + outputs); }
};

// These limits are from measurements on processors with AVX-512, with one thread, or with one and two for channels-last
// images: images of 1 to 56x56 pixels, 8 to 576 channels, batches of 2 to 64, in f32.
constexpr int64_t kMostRowElements = 1 << 20;
constexpr int64_t kMostRowElementsOfBackward = 1 << 21;
// Several threads do not share the product for a gradient of few weights.
constexpr int64_t kFewestSharedChannels = 32;
constexpr int64_t kMostRowElementsOfFewChannels = 1 << 18;
// Calls of the convolution cost about as much per call as the copies of this many elements.
constexpr int64_t kMostCopiedElements = 1 << 17;
// Products of narrower matrices leave vectors empty.
constexpr int64_t kFewestPixels = 16;
// Images of such a number of pixels fill vectors.
constexpr int64_t kPixelsOfVectors = 16;

// A product for each image packs the weights again. A convolution copies images to a layout of its own, and costs more
// per call. `packed`: a measure of the cost of packing, relative to a copy.
bool packsLess(const ImageSizes& sizes, double packed, double elementsPerCall) {
  const double copied = static_cast<double>(sizes.pixels * (sizes.inputs + sizes.outputs));
  const double weights = static_cast<double>(sizes.inputs * sizes.outputs);
  return weights * packed <= copied + elementsPerCall / static_cast<double>(sizes.batch);
}

bool isForwardFasterByImages(const ImageSizes& sizes) {
  const bool fillsVectors = sizes.pixels % kPixelsOfVectors == 0;
  return packsLess(sizes, fillsVectors ? 0.125 : 0.8, 6e4);
}

bool isBackwardFasterByImages(const ImageSizes& sizes) { return packsLess(sizes, 1, 2e5); }

int64_t mostRowElementsOfForward(const ImageSizes&) { return kMostRowElements; }

int64_t mostRowElementsOfBackward(const ImageSizes& sizes) {
  const bool isShared = std::min(sizes.inputs, sizes.outputs) >= kFewestSharedChannels;
  return isShared ? kMostRowElementsOfBackward : kMostRowElementsOfFewChannels;
}

struct FormLimits {
  bool (*isFasterByImages)(const ImageSizes&);
  int64_t (*mostRowElements)(const ImageSizes&);  // of channels-last images
};
constexpr FormLimits kForward = {isForwardFasterByImages, mostRowElementsOfForward};
constexpr FormLimits kBackward = {isBackwardFasterByImages, mostRowElementsOfBackward};

// --- the products ---

class Products {
 public:
  // `image` and `windows`: the types of the image and of the convolution's result. Errors: kUnsupported if the
  // convolution is none of 1x1.
  static StatusOr<Products> make(OpImport& op, const TensorType& image, const TensorType& windows) {
    if (!isOneByOne(op, image)) return unsupported("it is not a 1x1 convolution");
    return Products(op, image, windows);
  }

  // Errors (of both): kUnsupported if ATen's convolution is faster, or if there is no product of these tensors.
  Status buildForward() {
    AG_RETURN_IF_ERROR(check({"x", "weight", "bias"}));
    AG_ASSIGN_OR_RETURN(form_, chooseForm(kForward));
    const ValueId x = matrix(arranged("x"));
    const ValueId product = form_ == Form::kRows ? multiply(x, transposed(weight())) : multiply(perImage(weight()), x);
    Operand result = op_->emitter().use(asImages(product, windows_));
    if (op_->isTensor("bias")) {
      const Operand bias = op_->emitter().use(op_->tensor("bias"));
      AG_ASSIGN_OR_RETURN(result, op_->emitter().apply(PointwiseOp::kAdd,
                                                       {result, op_->emitter().unsqueezeLast(bias, numImageDims())}));
    }
    return op_->setResult(result);
  }

  Status buildBackward() {
    AG_RETURN_IF_ERROR(check({"grad", "x", "weight"}));
    AG_ASSIGN_OR_RETURN(form_, chooseForm(kBackward));
    const ValueId grad = arranged("grad");
    if (op_->isResultWanted(0)) AG_RETURN_IF_ERROR(setInputGradient(matrix(grad)));
    if (op_->isResultWanted(1)) AG_RETURN_IF_ERROR(setWeightGradient(matrix(grad)));
    return op_->isResultWanted(2) ? setBiasGradient(grad) : Status();
  }

 private:
  Products(OpImport& op, TensorType image, TensorType windows)
      : op_(&op),
        image_(std::move(image)),
        windows_(std::move(windows)),
        batch_(image_.sizes[0]),
        pixels_(numElements(Dims(image_.sizes.begin() + 2, image_.sizes.end()))) {}

  static bool isOneByOne(OpImport& op, const TensorType& image) {
    const TensorType& weight = op.typeOf("weight");
    const auto groups = op.integer("groups");
    const auto strides = op.integers("stride");
    const auto paddings = op.integers("padding");
    if (!groups.hasValue() || !strides.hasValue() || !paddings.hasValue()) return false;
    return image.rank() >= 3 && weight.rank() == image.rank() && *groups == 1 && !op.flag("transposed") &&
           std::all_of(weight.sizes.begin() + 2, weight.sizes.end(), isOne) &&
           std::ranges::all_of(*strides, [](int64_t stride) { return stride == 1; }) &&
           std::ranges::all_of(*paddings, [](int64_t padding) { return padding == 0; });
  }

  // Whether the products compute what the convolution does.
  Status check(std::initializer_list<const char*> parameters) {
    if (!graph().device.isHost()) return unsupported("convolutions on a GPU are left to ATen");
    for (const char* parameter : parameters) {
      if (!op_->isTensor(parameter)) continue;
      const TensorType& type = op_->typeOf(parameter);
      const bool isFull = type.dtype == DType::kF32 || type.dtype == DType::kF64;
      if (!isFull || type.dtype != image_.dtype) return unsupported("its tensors are not all f32 or all f64");
      if (std::ranges::any_of(type.sizes, isZero)) return unsupported("a tensor is empty");
    }
    const Dims& weight = op_->typeOf("weight").sizes;
    Dims expected = image_.sizes;
    expected[1] = weight[0];
    const bool areEqual = sameValue(weight[1], image_.sizes[1]) && sameDims(windows_.sizes, expected);
    return areEqual ? Status() : unsupported("only a guard makes the sizes equal");
  }

  StatusOr<Form> chooseForm(const FormLimits& limits) {
    if (isOne(pixels_)) return Form::kRows;
    const auto estimated = [this](const SymExpr& size) { return estimate(size, graph().hints); };
    const ImageSizes sizes{estimated(batch_), estimated(pixels_), estimated(image_.sizes[1]),
                           estimated(windows_.sizes[1])};
    const bool isWide = sizes.pixels >= kFewestPixels && hasImages(image_);
    if (isWide && limits.isFasterByImages(sizes)) return Form::kImages;
    const bool areRows = isChannelsLast(image_) && isChannelsLast(windows_);
    if (sizes.numElements() <= (areRows ? limits.mostRowElements(sizes) : kMostCopiedElements)) return Form::kRows;
    return unsupported("ATen's 1x1 convolution is as fast for images of this size");
  }

  // --- views ---

  Graph& graph() { return op_->emitter().graph(); }
  size_t numImageDims() const { return image_.rank() - 2; }

  ValueId view(const char* target, ValueId value, const TensorType& type) {
    std::vector<Argument> sizes;
    for (const SymExpr& size : type.sizes) sizes.push_back(Argument::ofInteger(size));
    return op_->emitter().view(target, value, {Argument::ofInput(0), Argument::ofList(sizes)}, {0, {}}, type);
  }

  // [O, C]
  ValueId weight() {
    const TensorType type = op_->typeOf("weight");
    return view("aten.view.default", op_->tensor("weight"),
                {type.dtype, {type.sizes[0], type.sizes[1]}, {type.strides[0], type.strides[1]}});
  }

  ValueId transposed(ValueId value) {
    TensorType type = graph().typeOf(value);
    for (Dims* dims : {&type.sizes, &type.strides}) std::swap(dims->end()[-1], dims->end()[-2]);
    return view("aten.transpose.int", value, type);
  }

  // A matrix as factor of a product for each image.
  ValueId perImage(ValueId value) {
    TensorType type = graph().typeOf(value);
    if (isOne(batch_)) return value;
    type.sizes.insert(type.sizes.begin(), batch_);
    type.strides.insert(type.strides.begin(), SymExpr(0));
    return view("aten.expand.default", value, type);
  }

  // The images of an argument in the layout of the form.
  ValueId arranged(const char* parameter) {
    const ValueId value = op_->tensor(parameter);
    const TensorType type = graph().typeOf(value);
    if (form_ == Form::kRows ? isChannelsLast(type) : hasImages(type)) return value;
    const TensorType wanted = form_ == Form::kRows ? channelsLastType(type) : contiguousType(type.dtype, type.sizes);
    return op_->emitter().materialize(op_->emitter().use(value), wanted,
                                      formatText("{}.{}", op_->node().name, parameter));
  }

  // Arranged images as the factor that the form needs: [N*P, C], or [N, C, P], or [C, P] of a single image.
  ValueId matrix(ValueId images) {
    const TensorType type = graph().typeOf(images);
    const SymExpr& channels = type.sizes[1];
    if (form_ == Form::kRows) {
      return view("aten.view.default", images, contiguousType(type.dtype, {batch_ * pixels_, channels}));
    }
    TensorType wanted = contiguousType(type.dtype, {channels, pixels_});
    if (isOne(batch_)) return view("aten.view.default", images, wanted);
    wanted.sizes.insert(wanted.sizes.begin(), batch_);
    wanted.strides.insert(wanted.strides.begin(), type.strides[0]);
    return view("aten.view.default", images, wanted);
  }

  // A product in the layout of the form as images of the given type. The strides are the product's.
  ValueId asImages(ValueId product, const TensorType& type) {
    const TensorType natural = form_ == Form::kRows ? channelsLastType(type) : contiguousType(type.dtype, type.sizes);
    return view("aten.view.default", product, sameLayout(natural, type) ? type : natural);
  }

  // --- products ---

  ValueId multiply(ValueId a, ValueId b) {
    Dims sizes = graph().typeOf(a).sizes;
    sizes.back() = graph().typeOf(b).sizes.back();
    const char* target = sizes.size() == 2 ? "aten.mm.default" : "aten.bmm.default";
    const std::vector<ValueId> results = op_->emitter().call(
        target, {a, b}, {Argument::ofInput(0), Argument::ofInput(1)}, {contiguousType(image_.dtype, sizes)});
    graph().nodes.back().reason = "it is a product of a 1x1 convolution";
    return results[0];
  }

  Status setInputGradient(ValueId grad) {
    const ValueId product =
        form_ == Form::kRows ? multiply(grad, weight()) : multiply(perImage(transposed(weight())), grad);
    return op_->setResult(op_->emitter().use(asImages(product, image_)), 0);
  }

  Status setWeightGradient(ValueId grad) {
    const ValueId x = matrix(arranged("x"));
    const ValueId product = form_ == Form::kRows ? multiply(transposed(grad), x) : multiply(grad, transposed(x));
    Operand sum = op_->emitter().use(product);
    if (graph().typeOf(product).rank() == 3) sum = op_->emitter().sumRows(sum, 1, 0);
    return op_->setResult(op_->emitter().unsqueezeLast(sum, numImageDims()), 1);
  }

  Status setBiasGradient(ValueId grad) {
    Emitter& emitter = op_->emitter();
    if (form_ == Form::kRows) return op_->setResult(emitter.sumRows(emitter.use(matrix(grad)), 1, 0), 2);
    const Operand ofImages =
        emitter.reduce(PointwiseOp::kReduceSum, emitter.use(grad), numImageDims(), /*keepDims=*/false);
    return op_->setResult(emitter.sumRows(ofImages, 1, 0), 2);
  }

  OpImport* op_;
  TensorType image_;
  TensorType windows_;
  SymExpr batch_;
  SymExpr pixels_;  // of an image
  Form form_ = Form::kImages;
};

}  // namespace

Status buildConvolution(OpImport& op) {
  if (!op.isTensor("x") || !op.isTensor("weight")) return buildDepthwise(op);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  StatusOr<Products> products = Products::make(op, op.typeOf("x"), windows);
  return products.hasValue() ? products->buildForward() : buildDepthwise(op);
}

Status buildConvolutionBackward(OpImport& op) {
  if (!op.isTensor("grad") || !op.isTensor("x") || !op.isTensor("weight")) return buildDepthwiseBackward(op);
  StatusOr<Products> products = Products::make(op, op.typeOf("x"), op.typeOf("grad"));
  return products.hasValue() ? products->buildBackward() : buildDepthwiseBackward(op);
}

}  // namespace agspeed::compiler
