// SPDX-License-Identifier: Apache-2.0
#include "comm/named/timeline.h"

#include <utility>

#include "runtime/base/files/write_file.h"
#include "runtime/base/format.h"

namespace agspeed::comm::named {
namespace {

constexpr size_t kFullBytes = size_t{256} << 10;

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') result += '\\';
    result += static_cast<unsigned char>(each) < 0x20 ? ' ' : each;
  }
  return result + '"';
}

}  // namespace

StatusOr<std::shared_ptr<Timeline>> Timeline::open(const std::string& path, bool marksCycles) {
  const StatusOr<int> file = createFile(path);
  if (!file.hasValue()) {
    return invalidArgument("the timeline '{}' cannot be written: {}; choose a file that this process can write", path,
                           file.status().message());
  }
  return std::shared_ptr<Timeline>(new Timeline(fdopen(*file, "w"), marksCycles));
}

Timeline::Timeline(std::FILE* file, bool marksCycles) : marksCycles_(marksCycles), file_(file) {
  const auto sinceEpoch = std::chrono::system_clock::now().time_since_epoch();
  text_ = formatText(
      "[\n{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
      "{{\"start_time_since_epoch_in_micros\":{}}}}},\n"
      "{{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": {{\"sort_index\": 0}}}}",
      std::chrono::duration_cast<std::chrono::microseconds>(sinceEpoch).count());
}

Timeline::~Timeline() { close(); }

int64_t Timeline::microseconds() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(io::Clock::now() - openedAt_).count();
}

void Timeline::addText(std::string_view text) {
  if (isClosed_) return;
  text_ += ",\n";
  text_ += text;
}

void Timeline::add(const std::string& name, std::string_view phase, std::string_view activity) {
  const auto [at, isNew] = numbers_.try_emplace(name, static_cast<int>(numbers_.size()) + 1);
  const int number = at->second;
  if (isNew) {
    addText(formatText("{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {}, \"args\": {{\"name\": {}}}}}", number,
                       quoted(name)));
    addText(
        formatText("{{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": {}, \"args\": {{\"sort_index\": {}}}}}",
                   number, number));
  }
  const std::string what = activity.empty() ? "" : formatText(", \"name\": {}", quoted(activity));
  addText(formatText("{{\"ph\": \"{}\"{}, \"ts\": {}, \"pid\": {}{}}}", phase, what, microseconds(), number,
                     phase == "X" ? ", \"dur\": 0" : ""));
}

void Timeline::requested(int rank, const Request* request) {
  if (request == nullptr || request->kind == NamedKind::kJoin) return;
  const std::lock_guard lock(mutex_);
  const std::string& name = request->name;
  if (negotiating_.insert(name).second) add(name, "B", "NEGOTIATE_" + upperCase(toString(request->kind)));
  add(name, "X", std::to_string(rank));
}

void Timeline::negotiated(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (negotiating_.erase(name) > 0) add(name, "E", "");
}

void Timeline::begin(const std::string& name, std::string_view activity) {
  const std::lock_guard lock(mutex_);
  add(name, "B", activity);
}

void Timeline::end(const std::string& name) {
  const std::lock_guard lock(mutex_);
  add(name, "E", "");
}

void Timeline::markCycle() {
  if (!marksCycles_) return;
  const std::lock_guard lock(mutex_);
  addText(formatText("{{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": {}, \"s\": \"g\"}}", microseconds()));
}

bool Timeline::isFull() {
  const std::lock_guard lock(mutex_);
  return text_.size() >= kFullBytes;
}

void Timeline::flush() {
  const std::lock_guard writing(writeMutex_);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text.swap(text_);
  }
  if (file_ != nullptr) std::fwrite(text.data(), 1, text.size(), file_);
}

void Timeline::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(isClosed_, true)) return;
    text_ += "]\n";
  }
  flush();
  const std::lock_guard writing(writeMutex_);
  std::fclose(std::exchange(file_, nullptr));
}

}  // namespace agspeed::comm::named
