// SPDX-License-Identifier: Apache-2.0
// Graphs on a simulated GPU: compiled for cuda:0, loaded through the fake driver, run by the Executor on torch tensors
// of a device that the host simulates, and compared with the reference interpreter on the CPU. Memory, streams, order
// and errors are the product's; machine code and speed are not.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "compiler/driver/compile.h"
#include "runtime/aten/aten_executable.h"
#include "runtime/device/cuda/driver.h"
#include "tests/backends/simt/fake_gpu.h"
#include "tests/runtime/device/torch_on_host.h"

namespace agspeed {
namespace {

namespace fake_gpu = simt::fake_gpu;
using compiler::CompileOptions;
using runtime::aten::Argument;
using runtime::aten::AtenExecutable;
using runtime::aten::AtenRun;
using runtime::device::failOperator;
using runtime::device::setCurrentStream;
using runtime::device::toCuda;
using ::testing::HasSubstr;

using Loaded = std::shared_ptr<const AtenExecutable>;

// GraphSpec nodes, one per line. DEVICE is a placeholder for their device.
std::string specOn(const std::string& device, std::string nodes) {
  for (size_t at; (at = nodes.find("DEVICE")) != std::string::npos;) nodes.replace(at, 6, device);
  return R"({"version": 1, "nodes": [)" + nodes + "]}";
}

std::string tensorType(const std::string& shape, const std::string& dtype = "f32") {
  return R"("type": {"dtype": ")" + dtype + R"(", "shape": [)" + shape + R"(], "device": "DEVICE"})";
}

std::string input(const std::string& name, const std::string& shape, const std::string& dtype = "f32") {
  return R"({"name": ")" + name + R"(", "op": "input", )" + tensorType(shape, dtype) + "},";
}

std::string call(const std::string& name, const std::string& target, const std::string& args, const std::string& shape,
                 const std::string& dtype = "f32") {
  return R"({"name": ")" + name + R"(", "op": "call", "target": ")" + target + R"(", "args": [)" + args + "], " +
         tensorType(shape, dtype) + "},";
}

std::string ref(const std::string& name) { return R"({"ref": ")" + name + R"("})"; }

std::string output(const std::string& refs) {
  return R"({"name": "output", "op": "output", "args": [[)" + refs + "]]}";
}

StatusOr<Loaded> compileOn(const std::string& device, const std::string& nodes, const std::string& target = "",
                           const std::string& cacheDir = "", compiler::Constants constants = {}) {
  CompileOptions options;
  options.device = deviceFromString(device).value();
  options.target = target;
  options.cacheDir = cacheDir;
  AG_ASSIGN_OR_RETURN(auto executable,
                      compiler::compile({{"forward", specOn(device, nodes)}}, options, std::move(constants)));
  return AtenExecutable::load(std::move(executable));
}

std::vector<at::Tensor> tensorsOf(const StatusOr<std::vector<Argument>>& outputs) {
  EXPECT_TRUE(outputs.hasValue()) << outputs.status().toString();
  std::vector<at::Tensor> tensors;
  if (!outputs.hasValue()) return tensors;
  for (const Argument& output : *outputs) tensors.push_back(std::get<at::Tensor>(output));
  return tensors;
}

std::vector<at::Tensor> runOn(const Loaded& executable, const std::vector<at::Tensor>& inputs) {
  return tensorsOf(AtenExecutable::run(*executable->entry("forward"), {inputs.begin(), inputs.end()}));
}

class Nvptx : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime::device::installTorchOnHost(&fake_gpu::synchronize);
    fake_gpu::open();
    setCurrentStream(nullptr);
    at::manual_seed(17);
  }
  void TearDown() override { setCurrentStream(nullptr); }

  // Runs the graph on the GPU and by the reference, and expects equal results.
  void expectAsReference(const std::string& nodes, const std::vector<at::Tensor>& inputs, double tolerance = 2e-6) {
    auto onGpu = compileOn("cuda:0", nodes);
    auto oracle = compileOn("cpu", nodes, "reference");
    ASSERT_TRUE(onGpu.hasValue()) << onGpu.status().toString();
    ASSERT_TRUE(oracle.hasValue()) << oracle.status().toString();
    EXPECT_GT((*onGpu)->stats().numKernels, 0);
    std::vector<at::Tensor> moved;
    for (const at::Tensor& input : inputs) moved.push_back(toCuda(input));
    const std::vector<at::Tensor> actual = runOn(*onGpu, moved);
    const std::vector<at::Tensor> expected = runOn(*oracle, inputs);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(actual[i].is_cuda());
      const at::Tensor difference = (actual[i].cpu().to(at::kDouble) - expected[i].to(at::kDouble)).abs();
      EXPECT_LE(difference.max().item<double>(), tolerance) << "output " << i;
    }
  }
};

const std::string kElementwise =
    input("x", "5, 37") + input("y", "37") + call("gelu", "aten.gelu.default", ref("x"), "5, 37") +
    call("mul", "aten.mul.Tensor", ref("gelu") + "," + ref("y"), "5, 37") + output(ref("mul"));

TEST_F(Nvptx, AnElementwiseGraphIsTheReferences) {
  expectAsReference(kElementwise, {at::randn({5, 37}), at::randn({37})});
}

TEST_F(Nvptx, RowReductionsAreTheReferences) {
  for (const std::string columns : {"7", "300", "5000"}) {
    const std::string shape = "6, " + columns;
    const std::string softmax = input("x", shape) +
                                call("softmax", "aten._softmax.default", ref("x") + ", -1, false", shape) +
                                output(ref("softmax"));
    expectAsReference(softmax, {at::randn({6, std::stoi(columns)})});
  }
}

TEST_F(Nvptx, SumsOverRowsAreTheReferencesThroughTheArena) {
  const std::string sum = input("x", "900, 40") + call("exp", "aten.exp.default", ref("x"), "900, 40") +
                          call("sum", "aten.sum.dim_IntList", ref("exp") + ", [0]", "40") + output(ref("sum"));
  expectAsReference(sum, {at::randn({900, 40})}, 1e-3);
}

TEST_F(Nvptx, CallsStayCallsInTheStreamsOrder) {
  const std::string linear =
      input("x", "9, 8") + input("w", "8, 16") + call("relu", "aten.relu.default", ref("x"), "9, 8") +
      call("mm", "aten.mm.default", ref("relu") + "," + ref("w"), "9, 16") +
      call("tanh", "aten.tanh.default", ref("mm"), "9, 16") +
      call("add", "aten.add.Tensor", ref("tanh") + "," + ref("mm"), "9, 16") + output(ref("add"));
  expectAsReference(linear, {at::randn({9, 8}), at::randn({8, 16})}, 1e-5);
}

TEST_F(Nvptx, KernelsAreQueuedOnTheCallersStreamAndNotWaitedFor) {
  auto compiled = compileOn("cuda:0", kElementwise);
  ASSERT_TRUE(compiled.hasValue()) << compiled.status().toString();
  const at::Tensor x = toCuda(at::randn({5, 37})), y = toCuda(at::randn({37}));
  void* stream = fake_gpu::makeStream();
  setCurrentStream(stream);
  const at::Tensor result = runOn(*compiled, {x, y}).at(0);
  EXPECT_EQ(fake_gpu::numRun(), 0);
  fake_gpu::synchronize(nullptr);
  EXPECT_EQ(fake_gpu::numRun(), 0) << "the default stream has none of it";
  fake_gpu::synchronize(stream);
  EXPECT_EQ(fake_gpu::numRun(), 1);
}

TEST_F(Nvptx, InputsOfAnotherDeviceAreRefusedBeforeAnythingRuns) {
  auto compiled = compileOn("cuda:0", kElementwise);
  ASSERT_TRUE(compiled.hasValue()) << compiled.status().toString();
  const Status status =
      AtenExecutable::run(*(*compiled)->entry("forward"), {toCuda(at::randn({5, 37})), at::randn({37})}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("input 1 is f32[37] with strides [1] on cpu where the graph was compiled for "
                                          "f32[37] with strides [1] on cuda:0"));
}

TEST_F(Nvptx, NumbersFromTheHostReachOperatorsOnly) {
  const std::string nodes = input("x", "4, 8") +
                            R"({"name": "n", "op": "input", "type": {"dtype": "f32", "shape": [], "device": "cpu"}},)" +
                            call("mul", "aten.mul.Tensor", ref("x") + "," + ref("n"), "4, 8") +
                            call("exp", "aten.exp.default", ref("mul"), "4, 8") + output(ref("exp"));
  auto compiled = compileOn("cuda:0", nodes);
  ASSERT_TRUE(compiled.hasValue()) << compiled.status().toString();
  EXPECT_EQ((*compiled)->stats().numExternalOperators, 1);
  EXPECT_EQ((*compiled)->stats().numCompiledOperators, 1);
  const at::Tensor x = at::randn({4, 8}), number = at::scalar_tensor(0.5);
  EXPECT_TRUE(at::allclose(runOn(*compiled, {toCuda(x), number}).at(0).cpu(), (x * number).exp()));
}

TEST_F(Nvptx, ConstantsAreWhereTheGraphHasThem) {
  const auto onHost = [](const std::string& name, const std::string& rest) {
    return R"({"name": ")" + name + R"(", )" + rest + R"("type": {"dtype": "f32", "shape": [], "device": "cpu"}},)";
  };
  const std::string nodes = input("x", "3") + input("shift", "3") + onHost("c", R"("op": "input", )") +
                            onHost("n", R"("op": "call", "target": "aten.neg.default", "args": [)" + ref("c") + "], ") +
                            call("mul", "aten.mul.Tensor", ref("x") + "," + ref("n"), "3") +
                            call("add", "aten.add.Tensor", ref("mul") + "," + ref("shift"), "3") + output(ref("add"));
  const auto bytesOf = [](const std::vector<float>& values) {
    const auto* begin = reinterpret_cast<const std::byte*>(values.data());
    return std::vector<std::byte>(begin, begin + values.size() * sizeof(float));
  };
  auto compiled = compileOn("cuda:0", nodes, "", "", {{"forward", {bytesOf({10, 20, 30}), bytesOf({2})}}});
  ASSERT_TRUE(compiled.hasValue()) << compiled.status().toString();
  const at::Tensor x = at::tensor({1.0f, 2.0f, 3.0f});
  EXPECT_TRUE(at::equal(runOn(*compiled, {toCuda(x)}).at(0).cpu(), at::tensor({8.0f, 16.0f, 24.0f})));
}

TEST_F(Nvptx, TwoGpusInOneGraphAreUnsupported) {
  const std::string nodes =
      input("x", "4") + R"({"name": "y", "op": "input", "type": {"dtype": "f32", "shape": [4], "device": "cuda:1"}},)" +
      call("add", "aten.add.Tensor", ref("x") + "," + ref("y"), "4") + output(ref("add"));
  const Status status = compileOn("cuda:0", nodes).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("a tensor is on cuda:1 in a graph for cuda:0"));
}

TEST_F(Nvptx, DropoutStaysEagersCall) {
  const std::string mask = R"({"name": "drop", "op": "call", "target": "aten.native_dropout.default", "args": [)" +
                           ref("x") + R"(, 0.5, true], "type": {"tuple": [)" +
                           R"({"dtype": "f32", "shape": [64], "device": "DEVICE"},)" +
                           R"({"dtype": "bool", "shape": [64], "device": "DEVICE"}]}},)" +
                           R"({"name": "item", "op": "call", "target": "operator.getitem", "args": [)" + ref("drop") +
                           ", 0], " + tensorType("64") + "},";
  auto compiled = compileOn(
      "cuda:0", input("x", "64") + mask + call("exp", "aten.exp.default", ref("item"), "64") + output(ref("exp")));
  ASSERT_TRUE(compiled.hasValue()) << compiled.status().toString();
  const at::Tensor x = at::randn({64});
  at::manual_seed(3);
  const at::Tensor actual = runOn(*compiled, {toCuda(x)}).at(0).cpu();
  at::manual_seed(3);
  EXPECT_TRUE(at::allclose(actual, std::get<0>(at::native_dropout(x, 0.5, true)).exp()));
}

TEST_F(Nvptx, TheKernelCacheHoldsPtxByCapability) {
  const std::string folder = ::testing::TempDir() + "/agspeed-nvptx-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  EXPECT_EQ(compileOn("cuda:0", kElementwise, "", folder).value()->stats().numKernelCacheHits, 0);
  EXPECT_EQ(compileOn("cuda:0", kElementwise, "", folder).value()->stats().numKernelCacheHits, 1);
  fake_gpu::open(/*capability=*/80);
  EXPECT_EQ(compileOn("cuda:0", kElementwise, "", folder).value()->stats().numKernelCacheHits, 0);
  std::filesystem::remove_all(folder);
}

TEST_F(Nvptx, EachErrorOfTheDriverIsAnErrorOfItsCall) {
  using namespace runtime::device::cuda;  // result codes of the driver
  struct Case {
    const char* symbol;
    int result;
    StatusCode code;
  };
  for (const Case& each : {Case{"cuInit", kNoDevice, StatusCode::kUnavailable},
                           Case{"cuDevicePrimaryCtxRetain", kDevicesUnavailable, StatusCode::kUnavailable},
                           Case{"cuDevicePrimaryCtxRetain", kOutOfMemory, StatusCode::kResourceExhausted},
                           Case{"cuModuleLoadDataEx", kUnsupportedPtxVersion, StatusCode::kUnsupported},
                           Case{"cuModuleLoadDataEx", kOutOfMemory, StatusCode::kResourceExhausted},
                           Case{"cuLaunchKernel", kLaunchOutOfResources, StatusCode::kResourceExhausted},
                           Case{"cuLaunchKernel", kIllegalAddress, StatusCode::kInternal}}) {
    SCOPED_TRACE(each.symbol + std::string(" ") + std::to_string(each.result));
    fake_gpu::open();
    const bool isLaunch = each.symbol == std::string("cuLaunchKernel");
    if (!isLaunch) fake_gpu::fail(each.symbol, each.result);
    auto compiled = compileOn("cuda:0", kElementwise);
    Status status = compiled.status();
    if (isLaunch) {
      ASSERT_TRUE(compiled.hasValue()) << status.toString();
      fake_gpu::fail(each.symbol, each.result);
      const std::vector<Argument> inputs = {toCuda(at::randn({5, 37})), toCuda(at::randn({37}))};
      status = AtenExecutable::run(*(*compiled)->entry("forward"), inputs).status();
      EXPECT_THAT(status.message(), HasSubstr("gelu"));
      compiled = internalError("dropped");
    }
    EXPECT_EQ(status.code(), each.code) << status.toString();
    EXPECT_EQ(fake_gpu::numAlive(), 0);
  }
}

// Uses everything that a Program keeps in a GPU's memory: a constant, an arena, and results of kernels and of a call.
class OutOfMemory : public Nvptx {
 protected:
  // Compiles and runs while `fail` is active from the first call on. If that succeeds, runs again with `fail` active.
  Status attempt(const std::function<void()>& fail, const std::function<void()>& stopFailing) {
    fail();
    const std::vector<float> shift = {1, 2, 3, 4};
    const auto* bytes = reinterpret_cast<const std::byte*>(shift.data());
    auto compiled = compileOn("cuda:0", kNodes, "", "", {{"forward", {{bytes, bytes + 16}}}});
    if (!compiled.hasValue()) return compiled.status();
    const auto run = [&] { return AtenExecutable::run(*(*compiled)->entry("forward"), {toCuda(x_), toCuda(w_)}); };
    const Status status = run().status();
    stopFailing();
    const std::vector<at::Tensor> again = tensorsOf(run());
    const at::Tensor sum = (x_.exp() + at::tensor(shift)).mm(w_);
    EXPECT_EQ(again.size(), 2u);
    if (again.size() != 2) return status;
    EXPECT_TRUE(at::allclose(again[0].cpu(), sum.tanh()));
    EXPECT_TRUE(at::allclose(again[1].cpu(), sum));
    return status;
  }

  const std::string kNodes = input("x", "3, 4") + input("w", "4, 5") + input("shift", "4") +
                             call("exp", "aten.exp.default", ref("x"), "3, 4") +
                             call("add", "aten.add.Tensor", ref("exp") + "," + ref("shift"), "3, 4") +
                             call("mm", "aten.mm.default", ref("add") + "," + ref("w"), "3, 5") +
                             call("tanh", "aten.tanh.default", ref("mm"), "3, 5") +
                             output(ref("tanh") + "," + ref("mm"));
  const at::Tensor x_ = at::rand({3, 4}), w_ = at::rand({4, 5});
};

TEST_F(OutOfMemory, InAnyOperatorOfTorchIsAnErrorOfItsCall) {
  int64_t numFailed = 0;
  for (Status status = resourceExhausted("to begin with"); !status.isOk(); ++numFailed) {
    status = attempt([&] { failOperator(numFailed); }, [] { failOperator(-1); });
    ASSERT_TRUE(status.isOk() || status.code() == StatusCode::kResourceExhausted) << numFailed << status.toString();
  }
  EXPECT_GE(numFailed, 5) << "the constant, the arena, three results";
}

TEST_F(OutOfMemory, InAnyCallOfTheDriverIsAnErrorOfItsCall) {
  for (const char* symbol : {"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadDataEx", "cuLaunchKernel"}) {
    int numFailed = 0;
    for (Status status = resourceExhausted("to begin with"); !status.isOk(); ++numFailed) {
      fake_gpu::open();
      status = attempt([&] { fake_gpu::fail(symbol, runtime::device::cuda::kOutOfMemory, numFailed); },
                       [&] { fake_gpu::fail(symbol, runtime::device::cuda::kSuccess); });
      ASSERT_TRUE(status.isOk() || status.code() == StatusCode::kResourceExhausted)
          << symbol << " " << numFailed << ": " << status.toString();
      EXPECT_EQ(fake_gpu::numAlive(), 0) << symbol << " " << numFailed;
    }
    EXPECT_GE(numFailed, 2) << symbol;
  }
}

TEST_F(Nvptx, AGpuBelowTheOldestCapabilityIsRefusedByName) {
  fake_gpu::open(/*capability=*/70);
  EXPECT_THAT(compileOn("cuda:0", kElementwise).status().message(), HasSubstr("sm_70"));
}

}  // namespace
}  // namespace agspeed
