// SPDX-License-Identifier: Apache-2.0
#include "comm/api.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "python/csrc/bindings.h"
#include "python/csrc/status_to_python.h"
#include "runtime/base/format.h"

namespace agspeed::python {
namespace {

pybind11::dict explainInterfaces() {
  const auto [variable, text] = comm::interfaceSelection();
  const comm::InterfaceSelector selector = unwrap(comm::InterfaceSelector::parse(text));
  pybind11::list interfaces;
  for (const comm::InterfaceChoice& choice : selector.explain(unwrap(comm::listInterfaces()))) {
    pybind11::dict found;
    found["name"] = choice.interface.name;
    found["address"] = comm::toString(choice.interface.address);
    found["prefix_bits"] = choice.interface.prefixBits;
    found["is_up"] = choice.interface.isUp;
    found["is_selected"] = choice.isSelected;
    found["reason"] = choice.reason;
    interfaces.append(found);
  }
  pybind11::dict result;
  result["variable"] = variable;
  result["selector"] = text;
  result["interfaces"] = interfaces;
  return result;
}

// --- where the main thread is, for people who look into a hang

constexpr std::chrono::milliseconds kTimeout{500};
constexpr size_t kMaxFrames = 32;

/// A reading thread waits for the interpreter's lock without a deadline, so there is at most one.
std::atomic<bool> isReading = false;

/// Returns a text of Python's. Names of files may have characters that UTF-8 does not have.
std::string utf8Of(const pybind11::handle& text) {
  return text.attr("encode")("utf-8", "backslashreplace").cast<std::string>();
}

std::vector<std::string> readMainStack() {
  const pybind11::gil_scoped_acquire gil;
  std::vector<std::string> lines;
  try {
    const pybind11::object main = pybind11::module_::import("threading").attr("main_thread")().attr("ident");
    const pybind11::dict frames = pybind11::module_::import("sys").attr("_current_frames")();
    pybind11::object frame = frames.contains(main) ? pybind11::object(frames[main]) : pybind11::none();
    for (; !frame.is_none() && lines.size() < kMaxFrames; frame = frame.attr("f_back")) {
      const pybind11::object code = frame.attr("f_code");
      lines.push_back(formatText("{}:{} in {}", utf8Of(code.attr("co_filename")),
                                 utf8Of(pybind11::str(frame.attr("f_lineno"))), utf8Of(code.attr("co_name"))));
    }
  } catch (const std::exception&) {
    // The interpreter is ending; the lines so far are all that there is.
  }
  return lines;
}

/// Returns the frames of the main thread, the innermost first, such as "train.py:12 in step". Runs no code of the user.
/// Returns nothing if it does not get the interpreter's lock for half a second, for example because the main thread
/// computes outside of Python without releasing it. Requires: the caller does not hold that lock.
std::vector<std::string> mainStack() {
  struct Answer {
    std::mutex mutex;
    std::condition_variable isReady;
    bool isDone = false;  ///< guarded by mutex, as is `lines`
    std::vector<std::string> lines;
  };
  if (Py_IsInitialized() == 0 || isReading.exchange(true)) return {};
  const auto answer = std::make_shared<Answer>();
  try {
    std::thread([answer] {
      std::vector<std::string> lines = readMainStack();
      isReading = false;
      const std::lock_guard lock(answer->mutex);
      answer->lines = std::move(lines);
      answer->isDone = true;
      answer->isReady.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    isReading = false;
    return {};
  }
  std::unique_lock lock(answer->mutex);
  answer->isReady.wait_for(lock, kTimeout, [&] { return answer->isDone; });
  return answer->lines;
}

}  // namespace

void bindNetwork(pybind11::module_& module) {
  module.def("describe_transport", [] { return unwrap(comm::World::describeAlone()); });
  module.def("explain_interfaces", &explainInterfaces);
  comm::setStackReader(&mainStack);
}

}  // namespace agspeed::python
