// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/arguments.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime::aten {
namespace {

using ::testing::HasSubstr;

const c10::Argument& argument(const char* op, const char* overload, const std::string& name) {
  const auto& schema = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload).schema();
  return schema.arguments()[*schema.argumentIndexWithName(name)];
}

TEST(ConvertArgument, IntegersFollowTheSymbols) {
  const auto& size = argument("aten::view", "", "size");
  const ExternalArg arg = scalarListArg({SymExpr::symbol(0) * 2, SymExpr(-1)});
  auto value = convertArgument(arg, size, {21});
  ASSERT_TRUE(value.hasValue()) << value.status().message();
  EXPECT_EQ(value->toIntVector(), (std::vector<int64_t>{42, -1}));
}

TEST(ConvertArgument, OneIntegerFillsAFixedSizeList) {
  const auto& kernel = argument("aten::avg_pool2d", "", "kernel_size");
  EXPECT_EQ(convertArgument(scalarArg(SymExpr(3)), kernel, {})->toIntVector(), (std::vector<int64_t>{3, 3}));
}

TEST(ConvertArgument, EnumsAndDevicesTravelAsText) {
  const auto& format = argument("aten::clone", "", "memory_format");
  EXPECT_EQ(convertArgument(scalarArg("channels_last"), format, {})->toMemoryFormat(), at::MemoryFormat::ChannelsLast);
  const auto& device = argument("aten::zeros", "", "device");
  EXPECT_TRUE(convertArgument(scalarArg("cpu"), device, {})->toDevice().is_cpu());
  const auto& dtype = argument("aten::zeros", "", "dtype");
  EXPECT_EQ(convertArgument(scalarArg(ExternalArg::Type{DType::kBF16}), dtype, {})->toScalarType(), at::kBFloat16);
  EXPECT_EQ(convertArgument(scalarArg("strided"), argument("aten::zeros", "", "layout"), {})->toLayout(), at::kStrided);
}

TEST(ConvertArgument, NoneIsKeptForOptionals) {
  EXPECT_TRUE(convertArgument(scalarArg(ExternalArg::None{}), argument("aten::zeros", "", "dtype"), {})->isNone());
  EXPECT_TRUE(
      convertArgument(scalarArg(ExternalArg::None{}), argument("aten::sum", "dim_IntList", "dim"), {})->isNone());
}

TEST(ConvertArgument, ANumberForATensorDoesNotPromote) {
  auto value = convertArgument(scalarArg(2.5), argument("aten::add", "Tensor", "other"), {});
  ASSERT_TRUE(value.hasValue());
  EXPECT_EQ(at::add(at::ones({2}, at::kHalf), value->toTensor()).scalar_type(), at::kHalf);
}

TEST(ConvertArgument, AMismatchNamesTheArgument) {
  const Status status =
      convertArgument(scalarArg("nonsense"), argument("aten::clone", "", "memory_format"), {}).status();
  EXPECT_THAT(status.message(), HasSubstr("\"memory_format\""));
  EXPECT_THAT(status.message(), HasSubstr("nonsense"));
  EXPECT_FALSE(convertArgument(scalarArg("moon"), argument("aten::zeros", "", "device"), {}).hasValue());
}

}  // namespace
}  // namespace agspeed::runtime::aten
