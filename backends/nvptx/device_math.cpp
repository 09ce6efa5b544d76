// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/device_math.h"

#include <limits>

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::backends::nvptx {

using namespace mlir;
using namespace passes;

namespace {

// --- remainders ---

constexpr double kSubnormalDivisor = 0x1p-960;
constexpr double kDivisorScale = 0x1p54;
constexpr int kDigitsOfStep = 50;
constexpr int kMaxShift = 2040;

Val exponentOf(Val x) {
  Val bits = bitcastTo(x, x.builder->ops().getI64Type());
  return shiftRightLogical(bits, x.builder->integer(bits.type(), 52)) & x.builder->integer(bits.type(), 2047);
}

// 2^n for 0 <= n <= 1023.
Val powerOfTwo(Val n) {
  ValueBuilder& b = *n.builder;
  return bitcastTo(shiftLeft(n + b.like(n, 1023), b.like(n, 52)), b.ops().getF64Type());
}

// The largest divisor * 2^k, k >= 0, for which the quotient has at most kDigitsOfStep digits.
Val shiftedDivisor(Val rest, Val divisor) {
  ValueBuilder& b = *rest.builder;
  Val isSmall = lt(divisor, kSubnormalDivisor);
  Val exponent = exponentOf(select(isSmall, divisor * kDivisorScale, divisor));
  exponent = select(isSmall, exponent - 54.0, exponent);
  Val k = exponentOf(rest) - exponent - static_cast<double>(kDigitsOfStep);
  k = select(lt(k, 0.0), b.like(k, 0), k);
  k = select(gt(k, kMaxShift), b.like(k, kMaxShift), k);
  Val half = shiftRightLogical(k, b.like(k, 1));
  return divisor * powerOfTwo(half) * powerOfTwo(k - half);
}

// The rounded quotient may be one too large, but never too small; the remainder of the right one is exact.
Val subtractMultiple(Val rest, Val divisor) {
  Val step = shiftedDivisor(rest, divisor);
  Val quotient = trunc(rest / step);
  Val next = fma(-quotient, step, rest);
  return select(lt(next, 0.0), next + step, next);
}

// C fmod of f64.
Val exactRemainder(Val x, Val y) {
  ValueBuilder& b = *x.builder;
  double infinity = std::numeric_limits<double>::infinity();
  Val divisor = abs(y);
  Val isValid = lt(abs(x), infinity) & gt(divisor, 0.0);
  auto isLeft = [&](Val rest) { return isValid & ge(rest, divisor); };
  auto loop = scf::WhileOp::create(
      b.ops(), b.loc(), TypeRange{x.type()}, ValueRange{abs(x).value},
      [&](OpBuilder& ops, Location loc, ValueRange carried) {
        OpBuilder::InsertionGuard guard(b.ops());
        b.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
        scf::ConditionOp::create(b.ops(), loc, isLeft(b.wrap(carried[0])).value, carried);
      },
      [&](OpBuilder& ops, Location loc, ValueRange carried) {
        OpBuilder::InsertionGuard guard(b.ops());
        b.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
        Val rest = b.wrap(carried[0]);
        scf::YieldOp::create(b.ops(), loc, select(isLeft(rest), subtractMultiple(rest, divisor), rest).value);
      });
  Val nan = b.like(x, std::numeric_limits<double>::quiet_NaN());
  return select(isValid, copysign(b.wrap(loop.getResult(0)), x), nan);
}

Val deviceRemainder(Val x, Val y) {
  Builder& ops = x.builder->ops();
  Type element = x.elementType();
  return convertFloat(exactRemainder(convertFloat(x, ops.getF64Type()), convertFloat(y, ops.getF64Type())), element);
}

// --- trigonometry ---

// A zero, then the binary digits of 2/pi, 32 per word.
constexpr int64_t kTwoOverPi[] = {0,          0xA2F9836E, 0x4E441529, 0xFC2757D1,
                                  0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB};
constexpr int kMaxFirstWord = 4;
constexpr double kHalfPi = 1.57079632679489661923;

struct Angle {
  Val quadrant;  ///< i64, modulo 4
  Val sine;      ///< f64, of the reduced angle in -pi/4 .. pi/4
  Val cosine;
};

Val wordAt(Val first, int next) {
  ValueBuilder& b = *first.builder;
  Val word = b.integer(first.type(), kTwoOverPi[next]);
  for (int i = 1; i <= kMaxFirstWord; ++i) {
    word = select(eq(first, static_cast<double>(i)), b.integer(first.type(), kTwoOverPi[i + next]), word);
  }
  return word;
}

// Returns |x| times 2/pi modulo 4, times 2^62. Let |x| = m 2^p with an integer m. Digits of 2/pi above 2^(2 - p) only
// add multiples of 4, and digits below 2^-64 of the rest do not matter.
Val quadrantsOf(Val x) {
  ValueBuilder& b = *x.builder;
  Val bits = convertInt(bitcastTo(x, b.ops().getI32Type()), b.ops().getI64Type(), Signedness::kUnsigned);
  auto number = [&](int64_t value) { return b.integer(bits.type(), value); };
  Val m = (bits & number(0x7fffff)) | number(0x800000);
  Val p = (shiftRightLogical(bits, number(23)) & number(0xff)) - number(150);
  Val firstDigit = p + number(32 - 2);
  Val firstWord = shiftRightLogical(firstDigit, number(5));
  Val shift = firstDigit & number(31);
  Val lowWord = number(0xffffffff);
  auto digits = [&](int word) {
    Val pair = shiftLeft(wordAt(firstWord, word), number(32)) | wordAt(firstWord, word + 1);
    return shiftRightLogical(shiftLeft(pair, shift), number(32)) & lowWord;
  };
  Val low = m * digits(2);
  Val middle = m * digits(1) + shiftRightLogical(low, number(32));
  Val high = m * digits(0) + shiftRightLogical(middle, number(32));
  return shiftLeft(high, number(32)) | (middle & lowWord);
}

Angle reduceAngle(Val x) {
  const double kSine[] = {1, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800};
  const double kCosine[] = {1, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800};
  ValueBuilder& b = *x.builder;
  Val quadrants = quadrantsOf(abs(x));
  Val fraction = shiftLeft(quadrants, b.like(quadrants, 2));
  Val rounds = lt(fraction, b.like(fraction, 0));
  Val quadrant = shiftRightLogical(quadrants, b.like(quadrants, 62));
  quadrant = select(rounds, quadrant + 1.0, quadrant);
  Type f64 = withElement(x.type(), b.ops().getF64Type());
  Val r = b.wrap(arith::SIToFPOp::create(b.ops(), b.loc(), f64, fraction.value)) * (kHalfPi * 0x1p-64);
  Val square = r * r;
  return {quadrant, r * polynomial(square, kSine), polynomial(square, kCosine)};
}

Val bitOf(Val integer, int64_t bit) { return ne(integer & integer.builder->integer(integer.type(), bit), 0.0); }

// sin(n pi/2 + r): sin r, cos r, -sin r, -cos r for n = 0 .. 3 modulo 4.
Val sineOfQuadrant(const Angle& angle, Val quadrant) {
  Val value = select(bitOf(quadrant, 1), angle.cosine, angle.sine);
  return select(bitOf(quadrant, 2), -value, value);
}

// Infinities and NaN give NaN. An odd function gets the sign of x.
Val finish(Val x, Val wide, bool isOdd) {
  Val value = convertFloat(wide, x.elementType());
  if (isOdd) value = select(lt(x, 0.0), -value, value);
  return select(lt(abs(x), std::numeric_limits<double>::infinity()), value, x - x);
}

Val largeSin(Val x) {
  Angle angle = reduceAngle(x);
  return finish(x, sineOfQuadrant(angle, angle.quadrant), /*isOdd=*/true);
}

Val largeCos(Val x) {
  Angle angle = reduceAngle(x);
  return finish(x, sineOfQuadrant(angle, angle.quadrant + 1.0), /*isOdd=*/false);
}

Val largeTan(Val x) {
  Angle angle = reduceAngle(x);
  Val isOdd = bitOf(angle.quadrant, 1);
  Val tangent = select(isOdd, -angle.cosine, angle.sine) / select(isOdd, angle.sine, angle.cosine);
  return finish(x, tangent, /*isOdd=*/true);
}

struct Row {
  StringRef op;
  Val (*formula)(Val);
};
constexpr Row kLargeAngles[] = {{"math.cos", largeCos}, {"math.sin", largeSin}, {"math.tan", largeTan}};

// Operations that are instructions, or that NVPTX expands itself.
constexpr StringRef kNative[] = {"math.absf", "math.ceil",      "math.copysign", "math.floor",
                                 "math.fma",  "math.roundeven", "math.sqrt",     "math.trunc"};

// Emits one lane after the other, because several formulas side by side would need more registers than a thread has.
Value perLane(OpBuilder& ops, Operation* op, llvm::function_ref<Val(ValueBuilder&, ValueRange)> formula) {
  ValueBuilder builder(ops, op->getLoc());
  auto type = dyn_cast<VectorType>(op->getResult(0).getType());
  if (!type) return formula(builder, op->getOperands()).value;
  Value result = builder.constant(type, 0).value;
  for (int64_t lane = 0; lane < type.getNumElements(); ++lane) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) {
      operands.push_back(vector::ExtractOp::create(ops, op->getLoc(), operand, ArrayRef<int64_t>{lane}));
    }
    Value value = formula(builder, operands).value;
    result = vector::InsertOp::create(ops, op->getLoc(), value, result, ArrayRef<int64_t>{lane});
  }
  return result;
}

struct DeviceMathPass : PassWrapper<DeviceMathPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(DeviceMathPass)

  StringRef getArgument() const override { return "device-math"; }

  void runOnOperation() override {
    SmallVector<Operation*> found;
    getOperation().walk([&](Operation* op) { found.push_back(op); });
    for (Operation* op : found) replace(op);
  }

  void replace(Operation* op) {
    StringRef name = op->getName().getStringRef();
    OpBuilder ops(op);
    Value result;
    const Row* row = llvm::find_if(kLargeAngles, [&](const Row& candidate) { return candidate.op == name; });
    if (isa<arith::RemFOp>(op)) {
      result = perLane(ops, op,
                       [](ValueBuilder& b, ValueRange in) { return deviceRemainder(b.wrap(in[0]), b.wrap(in[1])); });
    } else if (row != std::end(kLargeAngles) && getElementTypeOrSelf(op->getResult(0).getType()).isF32()) {
      result = perLane(ops, op, [&](ValueBuilder& b, ValueRange in) { return row->formula(b.wrap(in[0])); });
    }
    if (!result) return;
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }
};

struct SplitMathPass : PassWrapper<SplitMathPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SplitMathPass)

  StringRef getArgument() const override { return "split-math"; }

  void runOnOperation() override {
    SmallVector<Operation*> found;
    getOperation().walk([&](Operation* op) {
      bool isMath = isa_and_nonnull<math::MathDialect>(op->getDialect());
      bool isVector = op->getNumResults() == 1 && isa<VectorType>(op->getResult(0).getType());
      if (isMath && isVector && !llvm::is_contained(kNative, op->getName().getStringRef())) found.push_back(op);
    });
    for (Operation* op : found) split(op);
  }

  void split(Operation* op) {
    OpBuilder ops(op);
    Type element = getElementTypeOrSelf(op->getResult(0).getType());
    Value result = perLane(ops, op, [&](ValueBuilder& b, ValueRange in) {
      OperationState state(op->getLoc(), op->getName());
      state.addOperands(in);
      state.addTypes(element);
      state.addAttributes(op->getAttrs());
      return b.wrap(ops.create(state)->getResult(0));
    });
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }
};

}  // namespace

std::unique_ptr<Pass> createSplitMathPass() { return std::make_unique<SplitMathPass>(); }

std::unique_ptr<Pass> createDeviceMathPass() { return std::make_unique<DeviceMathPass>(); }

Status checkDeviceMath(ModuleOp module) {
  Operation* refused = nullptr;
  module.walk([&](Operation* op) {
    bool isMath = isa_and_nonnull<math::MathDialect>(op->getDialect());
    if (isMath && !refused && !llvm::is_contained(kNative, op->getName().getStringRef())) refused = op;
  });
  if (!refused) return {};
  Type element = getElementTypeOrSelf(refused->getResult(0).getType());
  return unsupported("GPU kernels have no code for {} on {}", refused->getName().getStringRef().str(),
                     element.isF64() ? "f64" : "f32");
}

}  // namespace agspeed::backends::nvptx
