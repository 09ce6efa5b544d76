// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_pointwise.h"

#include "compiler/kernel/emit/emit_integer.h"
#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/Math/IR/Math.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

using Op = PointwiseOp;

struct Operands {
  ArrayRef<Val> in;
  DType dtype;

  Val a() const { return in[0]; }
  Val b() const { return in[1]; }
  bool isBool() const { return dtype == DType::kBool; }
  bool isFloating() const { return isFloat(dtype); }
  Signedness signedness() const { return signednessOf(dtype); }
};

// The dtypes for which an operation has code.
constexpr unsigned kBools = 1;
constexpr unsigned kInts = 2;
constexpr unsigned kFloats = 4;
constexpr unsigned kNumbers = kInts | kFloats;
constexpr unsigned kAll = kBools | kNumbers;

struct Row {
  Op op;
  unsigned domains;
  bool isPredicate;  ///< whether the result is bool for all dtypes of the inputs
  Val (*emit)(const Operands&);
};

template <typename MathOp>
Val unary(const Operands& o) {
  ValueBuilder& b = *o.a().builder;
  return b.wrap(MathOp::create(b.ops(), b.loc(), o.a().value));
}

template <typename MathOp>
Val binary(const Operands& o) {
  ValueBuilder& b = *o.a().builder;
  return b.wrap(MathOp::create(b.ops(), b.loc(), o.a().value, o.b().value));
}

// Rounding operations do not change integers.
template <Val (*round)(Val)>
Val rounding(const Operands& o) {
  return o.isFloating() ? round(o.a()) : o.a();
}

template <Val (*compare)(Val, Val, Signedness)>
Val comparison(const Operands& o) {
  return compare(o.a(), o.b(), o.signedness());
}

Val isTrue(Val x) { return x.bitWidth() == 1 ? x : ne(x, 0.0); }

Val absolute(const Operands& o) { return o.dtype == DType::kU8 || o.isBool() ? o.a() : abs(o.a()); }

// x > 0 ? x : 0, but NaN stays NaN.
Val relu(const Operands& o) {
  Val zero = o.a().builder->like(o.a(), 0);
  if (!o.isFloating()) return select(lt(zero, o.a(), o.signedness()), o.a(), zero);
  return select(le(o.a(), zero), zero, o.a());
}

// (x > 0) - (x < 0); NaN gives 0.
Val sign(const Operands& o) {
  if (o.isBool()) return o.a();
  Val x = o.a();
  Val zero = x.builder->like(x, 0);
  Val one = x.builder->like(x, 1);
  Val positive = select(gt(x, zero, o.signedness()), one, zero);
  return select(lt(x, zero, o.signedness()), x.builder->like(x, -1), positive);
}

Val sigmoid(const Operands& o) {
  ValueBuilder& b = *o.a().builder;
  return 1.0 / (1.0 + b.wrap(math::ExpOp::create(b.ops(), b.loc(), (-o.a()).value)));
}

Val isInf(const Operands& o) {
  if (o.isFloating()) return eq(abs(o.a()), std::numeric_limits<double>::infinity());
  ValueBuilder& b = *o.a().builder;
  return b.integer(withElement(o.a().type(), b.ops().getI1Type()), 0);
}

// For bool, addition is or, and multiplication is and.
Val add(const Operands& o) { return o.isBool() ? o.a() | o.b() : o.a() + o.b(); }
Val multiply(const Operands& o) { return o.isBool() ? o.a() & o.b() : o.a() * o.b(); }

// a - b floor(a / b), rounded like ATen: from fmod, then with the sign of b.
Val floatRemainder(Val a, Val b) {
  Val mod = fmod(a, b);
  Val zero = a.builder->like(a, 0);
  Val hasWrongSign = ne(mod, 0.0) & (lt(b, zero) ^ lt(mod, zero));
  return select(hasWrongSign, mod + b, mod);
}

// As ATen's div_floor_floating: (a - fmod) / b is near an integer and is rounded to it.
Val floatFloorDiv(Val a, Val b) {
  ValueBuilder& builder = *a.builder;
  Val zero = builder.like(a, 0);
  Val mod = fmod(a, b);
  Val quotient = (a - mod) / b;
  Val needsDecrement = ne(mod, 0.0) & (lt(b, zero) ^ lt(mod, zero));
  quotient = select(needsDecrement, quotient - 1.0, quotient);
  Val below = floor(quotient);
  Val snapped = select(gt(quotient - below, 0.5), below + 1.0, below);
  Val ratio = a / b;
  Val result = select(ne(quotient, 0.0), snapped, copysign(zero, ratio));
  return select(eq(b, 0.0), ratio, result);
}

Val floorDivide(const Operands& o) {
  return o.isFloating() ? floatFloorDiv(o.a(), o.b()) : intFloorDiv(o.a(), o.b(), o.signedness());
}
Val remainder(const Operands& o) {
  return o.isFloating() ? floatRemainder(o.a(), o.b()) : intRemainder(o.a(), o.b(), o.signedness());
}
Val fmodOf(const Operands& o) { return o.isFloating() ? fmod(o.a(), o.b()) : intFmod(o.a(), o.b(), o.signedness()); }
Val power(const Operands& o) {
  return o.isFloating() ? binary<math::PowFOp>(o) : intPower(o.a(), o.b(), o.signedness());
}

// Loads, constants, casts and reductions are not pointwise operations and have no row.
constexpr Row kRows[] = {
    {Op::kAbs, kAll, false, absolute},
    {Op::kNeg, kNumbers, false, [](const Operands& o) { return -o.a(); }},
    {Op::kExp, kFloats, false, unary<math::ExpOp>},
    {Op::kExp2, kFloats, false, unary<math::Exp2Op>},
    {Op::kExpm1, kFloats, false, unary<math::ExpM1Op>},
    {Op::kLog, kFloats, false, unary<math::LogOp>},
    {Op::kLog2, kFloats, false, unary<math::Log2Op>},
    {Op::kLog10, kFloats, false, unary<math::Log10Op>},
    {Op::kLog1p, kFloats, false, unary<math::Log1pOp>},
    {Op::kSqrt, kFloats, false, unary<math::SqrtOp>},
    {Op::kRsqrt, kFloats, false, [](const Operands& o) { return 1.0 / sqrt(o.a()); }},
    {Op::kReciprocal, kFloats, false, [](const Operands& o) { return 1.0 / o.a(); }},
    {Op::kSin, kFloats, false, unary<math::SinOp>},
    {Op::kCos, kFloats, false, unary<math::CosOp>},
    {Op::kTan, kFloats, false, unary<math::TanOp>},
    {Op::kAsin, kFloats, false, unary<math::AsinOp>},
    {Op::kAcos, kFloats, false, unary<math::AcosOp>},
    {Op::kAtan, kFloats, false, unary<math::AtanOp>},
    {Op::kSinh, kFloats, false, unary<math::SinhOp>},
    {Op::kCosh, kFloats, false, unary<math::CoshOp>},
    {Op::kTanh, kFloats, false, unary<math::TanhOp>},
    {Op::kAsinh, kFloats, false, unary<math::AsinhOp>},
    {Op::kAcosh, kFloats, false, unary<math::AcoshOp>},
    {Op::kAtanh, kFloats, false, unary<math::AtanhOp>},
    {Op::kErf, kFloats, false, unary<math::ErfOp>},
    {Op::kErfc, kFloats, false, unary<math::ErfcOp>},
    {Op::kSigmoid, kFloats, false, sigmoid},
    {Op::kRelu, kNumbers, false, relu},
    {Op::kFloor, kNumbers, false, rounding<floor>},
    {Op::kCeil, kNumbers, false, rounding<ceil>},
    {Op::kRound, kNumbers, false, rounding<roundEven>},
    {Op::kTrunc, kNumbers, false, rounding<trunc>},
    {Op::kSign, kAll, false, sign},
    {Op::kLogicalNot, kAll, true, [](const Operands& o) { return ~isTrue(o.a()); }},
    {Op::kBitwiseNot, kBools | kInts, false, [](const Operands& o) { return ~o.a(); }},
    {Op::kIsNan, kAll, true, [](const Operands& o) { return ne(o.a(), o.a()); }},
    {Op::kIsInf, kAll, true, isInf},
    {Op::kAdd, kAll, false, add},
    {Op::kSub, kNumbers, false, [](const Operands& o) { return o.a() - o.b(); }},
    {Op::kMul, kAll, false, multiply},
    {Op::kDiv, kFloats, false, [](const Operands& o) { return o.a() / o.b(); }},
    {Op::kFloorDiv, kNumbers, false, floorDivide},
    {Op::kRemainder, kNumbers, false, remainder},
    {Op::kFmod, kNumbers, false, fmodOf},
    {Op::kPow, kNumbers, false, power},
    {Op::kAtan2, kFloats, false, binary<math::Atan2Op>},
    {Op::kMaximum, kAll, false, [](const Operands& o) { return extreme(true, o.a(), o.b(), o.dtype); }},
    {Op::kMinimum, kAll, false, [](const Operands& o) { return extreme(false, o.a(), o.b(), o.dtype); }},
    {Op::kEq, kAll, true, [](const Operands& o) { return eq(o.a(), o.b()); }},
    {Op::kNe, kAll, true, [](const Operands& o) { return ne(o.a(), o.b()); }},
    {Op::kLt, kAll, true, comparison<lt>},
    {Op::kLe, kAll, true, comparison<le>},
    {Op::kGt, kAll, true, comparison<gt>},
    {Op::kGe, kAll, true, comparison<ge>},
    {Op::kLogicalAnd, kAll, true, [](const Operands& o) { return isTrue(o.a()) & isTrue(o.b()); }},
    {Op::kLogicalOr, kAll, true, [](const Operands& o) { return isTrue(o.a()) | isTrue(o.b()); }},
    {Op::kLogicalXor, kAll, true, [](const Operands& o) { return isTrue(o.a()) ^ isTrue(o.b()); }},
    {Op::kBitwiseAnd, kBools | kInts, false, [](const Operands& o) { return o.a() & o.b(); }},
    {Op::kBitwiseOr, kBools | kInts, false, [](const Operands& o) { return o.a() | o.b(); }},
    {Op::kBitwiseXor, kBools | kInts, false, [](const Operands& o) { return o.a() ^ o.b(); }},
    {Op::kShiftLeft, kInts, false, [](const Operands& o) { return intShiftLeft(o.a(), o.b(), o.signedness()); }},
    {Op::kShiftRight, kInts, false, [](const Operands& o) { return intShiftRight(o.a(), o.b(), o.signedness()); }},
    {Op::kWhere, kAll, false, [](const Operands& o) { return select(o.in[0], o.in[1], o.in[2]); }},
    {Op::kFma, kNumbers, false,
     [](const Operands& o) { return o.isFloating() ? fma(o.in[0], o.in[1], o.in[2]) : o.in[0] * o.in[1] + o.in[2]; }},
};

const Row* rowOf(PointwiseOp op) {
  const Row* found = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.op == op; });
  return found == std::end(kRows) ? nullptr : found;
}

unsigned domainOf(DType dtype) {
  if (dtype == DType::kBool) return kBools;
  return isInteger(dtype) ? kInts : kFloats;
}

bool hasCode(const Cluster& cluster, const ClusterNode& node) {
  if (infoOf(node.op).isReduction) {
    bool isExtreme = node.op == Op::kReduceMax || node.op == Op::kReduceMin;
    return node.dtype != DType::kBool || isExtreme;
  }
  if (node.op == Op::kSumRows) return node.dtype != DType::kBool;
  if (node.op == Op::kLoad || node.op == Op::kConstant || node.op == Op::kCast) return true;
  const Row* row = rowOf(node.op);
  return row && (row->domains & domainOf(operationDType(cluster, node)));
}

}  // namespace

DType operationDType(const Cluster& cluster, const ClusterNode& node) {
  const Row* row = rowOf(node.op);
  return row && row->isPredicate ? cluster.nodes[node.inputs[0]].dtype : node.dtype;
}

Status checkPointwise(const Cluster& cluster, const ClusterNode& node) {
  if (node.dtype == DType::kC64 || node.dtype == DType::kC128 || !hasCode(cluster, node)) {
    return unsupported("no generated code for " + std::string(infoOf(node.op).name) + " on " +
                       std::string(toString(operationDType(cluster, node))));
  }
  return {};
}

Val emitPointwise(const ClusterNode& node, DType operationDType, ArrayRef<Val> inputs) {
  return rowOf(node.op)->emit({inputs, operationDType});
}

Val emitNode(ValueBuilder& builder, const Cluster& cluster, const ClusterNode& node, ArrayRef<Val> inputs) {
  if (node.op == PointwiseOp::kConstant) {
    const double constant = node.dtype == DType::kBool ? (node.constant != 0 ? 1 : 0) : node.constant;
    return builder.constant(registerType(builder.ops().getContext(), node.dtype), constant);
  }
  if (node.op == PointwiseOp::kCast) return castValue(inputs[0], cluster.nodes[node.inputs[0]].dtype, node.dtype);
  return emitPointwise(node, operationDType(cluster, node), inputs);
}

Val valueAs(DType dtype, const Cluster& cluster, int32_t node, Val value) {
  const DType own = cluster.nodes[node].dtype;
  return own == dtype ? value : castValue(value, own, dtype);
}

Val extreme(bool isMax, Val a, Val b, DType dtype) {
  if (dtype == DType::kBool) return isMax ? a | b : a & b;
  Signedness signedness = signednessOf(dtype);
  // If b is NaN, the comparison is false and b is picked. If a is NaN, it is put back below.
  Val picked = select(isMax ? gt(a, b, signedness) : lt(a, b, signedness), a, b);
  return isFloat(dtype) ? select(isNan(a), a, picked) : picked;
}

}  // namespace agspeed::compiler
