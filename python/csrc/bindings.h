// SPDX-License-Identifier: Apache-2.0
// The bind functions of python/csrc, one per component. module.cpp calls all of them.
//
// Threading: all of them run with the GIL held, while the module is imported.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace agspeed::python {

/// build_info(): what this extension was built for.
void bindBuildInfo(pybind11::module_& module);
/// int8_encode(), lossless_encode(), select_largest() and the like: codes of gradients.
void bindCodecs(pybind11::module_& module);
/// Dispatcher: the swappable callable that Dynamo calls.
void bindDispatcher(pybind11::module_& module);
/// compile() and Executable.
void bindExecutable(pybind11::module_& module);
/// create_named_group(), NamedGroup, NamedRequest, NamedHandles and GradientExchange: named operations on tensors, as
/// in Horovod.
void bindHorovod(pybind11::module_& module);
/// MemoryMeter: live and peak bytes of CPU tensors. retain_memory() and its relatives: the allocator that keeps blocks.
void bindMemory(pybind11::module_& module);
/// explain_interfaces(): which network interfaces carry a job, and why. describe_transport(): the rails of a rank.
void bindNetwork(pybind11::module_& module);
/// StepRecord: whether the layouts and options of an optimizer are as at an earlier step.
void bindOptimizer(pybind11::module_& module);
/// ProcessGroup, create_process_group() and collective_algorithms(): the backend "agspeed" of torch.distributed. Binds
/// nothing if torch was built without torch.distributed.
void bindProcessGroup(pybind11::module_& module);
/// quick_allreduce() and quick_synchronize(): callables that replace functions; reduce_again().
void bindQuickCalls(pybind11::module_& module);
/// Region: a compiled forward/backward pair with its own autograd node.
void bindRegion(pybind11::module_& module);
/// configure(): takes the settings that the Python side has resolved.
void bindSettings(pybind11::module_& module);
/// Tuner, GroupTuner and TuningDatabase.
void bindTuner(pybind11::module_& module);

}  // namespace agspeed::python
