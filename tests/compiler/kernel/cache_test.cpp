// SPDX-License-Identifier: Apache-2.0
// The object cache: hits across processes, and every way an entry can be damaged or planted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernel_test_support.h"
#include "runtime/kernel_cache.h"

namespace agspeed::compiler::testing {
namespace {

namespace fs = std::filesystem;
using runtime::KernelCache;

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "agspeed-cache-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = root_ + "/kernels";
  }
  void TearDown() override {
    std::error_code missing;
    fs::permissions(folder_, fs::perms::owner_all, missing);
    fs::remove_all(root_);
  }

  std::string entry() const { return KernelCache(folder_).entryPath("key"); }
  void store(std::string_view payload = "payload") const { KernelCache(folder_).store("key", payload); }
  std::optional<std::string> load() const { return KernelCache(folder_).load("key"); }

  void damage(std::streamoff offset) const {
    std::fstream file(entry(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }

  std::string root_;
  std::string folder_;
};

TEST_F(KernelCacheTest, ReturnsWhatWasStoredUnderTheSameKeyOnly) {
  store();
  EXPECT_EQ(load(), "payload");
  EXPECT_EQ(KernelCache(folder_).load("other key"), std::nullopt);
  store("second");
  EXPECT_EQ(load(), "second");
}

TEST_F(KernelCacheTest, CreatesPrivateFiles) {
  store();
  struct stat info;
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(entry().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(KernelCacheTest, AFileOfTerabytesIsNoEntry) {
  store();
  ASSERT_EQ(truncate(entry().c_str(), off_t{2} << 40), 0) << "a sparse file needs no room";
  EXPECT_EQ(load(), std::nullopt);
}

TEST_F(KernelCacheTest, EmptyPathMeansNoCache) {
  KernelCache none("");
  none.store("key", "payload");
  EXPECT_EQ(none.load("key"), std::nullopt);
}

TEST_F(KernelCacheTest, IgnoresEveryTruncation) {
  store();
  auto size = fs::file_size(entry());
  for (uintmax_t left = 0; left < size; ++left) {
    store();
    fs::resize_file(entry(), left);
    EXPECT_EQ(load(), std::nullopt) << left << " of " << size << " bytes";
  }
}

TEST_F(KernelCacheTest, IgnoresEveryFlippedByte) {
  store();
  auto size = static_cast<std::streamoff>(fs::file_size(entry()));
  for (std::streamoff offset = 0; offset < size; ++offset) {
    bool isReserved = offset >= 12 && offset < 16;
    store();
    damage(offset);
    EXPECT_EQ(load().has_value(), isReserved) << "byte " << offset;
  }
}

TEST_F(KernelCacheTest, IgnoresTrailingBytes) {
  store();
  std::ofstream(entry(), std::ios::app | std::ios::binary) << "x";
  EXPECT_EQ(load(), std::nullopt);
}

TEST_F(KernelCacheTest, IgnoresAnEntryUnderAnotherKeysName) {
  store();
  fs::copy_file(entry(), KernelCache(folder_).entryPath("victim"));
  EXPECT_EQ(KernelCache(folder_).load("victim"), std::nullopt);
}

TEST_F(KernelCacheTest, IgnoresAnEntryOrFolderThatOthersMayWrite) {
  store();
  for (mode_t mode : {0620, 0602, 0666}) {
    ASSERT_EQ(chmod(entry().c_str(), mode), 0);
    EXPECT_EQ(load(), std::nullopt) << std::oct << mode;
  }
  ASSERT_EQ(chmod(entry().c_str(), 0600), 0);
  for (mode_t mode : {0720, 0702, 0777}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    EXPECT_EQ(load(), std::nullopt) << std::oct << mode;
    store("planted");
  }
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  EXPECT_EQ(load(), "payload") << "a folder that others may write to must not be written either";
}

TEST_F(KernelCacheTest, IgnoresAnEntryOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "changing a file's owner needs root";
  store();
  ASSERT_EQ(chown(entry().c_str(), 65534, 65534), 0);
  EXPECT_EQ(load(), std::nullopt);
  ASSERT_EQ(chown(entry().c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
  EXPECT_EQ(load(), std::nullopt);
}

TEST_F(KernelCacheTest, IgnoresLinksAndSpecialFiles) {
  store();
  fs::rename(entry(), root_ + "/elsewhere");
  fs::create_symlink(root_ + "/elsewhere", entry());
  EXPECT_EQ(load(), std::nullopt);
  fs::remove(entry());
  ASSERT_EQ(mkfifo(entry().c_str(), 0600), 0);
  EXPECT_EQ(load(), std::nullopt);
  fs::remove(entry());
  fs::create_directory(entry());
  EXPECT_EQ(load(), std::nullopt);
}

TEST_F(KernelCacheTest, WorksInAReadOnlyFolder) {
  store();
  ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
  EXPECT_EQ(load(), "payload");
  KernelCache(folder_).store("new", "payload");  // refused, or accepted as root: neither is an error
}

TEST_F(KernelCacheTest, SurvivesAFolderThatCannotBeMade) {
  std::ofstream(folder_) << "a file, not a folder";
  store();
  EXPECT_EQ(load(), std::nullopt);
}

TEST_F(KernelCacheTest, PrunesTheEntriesUnusedForLongest) {
  KernelCache cache(folder_);
  std::string payload(1000, 'x');
  for (int i = 0; i < 10; ++i) {
    std::string key = "key " + std::to_string(i);
    cache.store(key, payload);
    auto used = fs::file_time_type::clock::now() - std::chrono::hours(20 - i);
    fs::last_write_time(cache.entryPath(key), used);
  }
  EXPECT_TRUE(cache.load("key 0"));  // makes it the most recently used entry
  cache.prune(3500);
  EXPECT_TRUE(cache.load("key 0"));
  EXPECT_TRUE(cache.load("key 9"));
  EXPECT_FALSE(cache.load("key 1"));
  auto anHourAgo = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& file : fs::directory_iterator(folder_)) fs::last_write_time(file.path(), anHourAgo);
  KernelCache bounded(folder_, {2200});
  bounded.store("key new", payload);
  EXPECT_TRUE(bounded.load("key new"));
  EXPECT_LE(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

// Runs work() in a child process; returns its exit code.
template <typename Work>
pid_t inChild(Work work) {
  pid_t child = fork();
  if (child == 0) _exit(work());
  return child;
}

int exitCode(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(KernelCacheTest, ProcessesMayWriteAndReadAtOnce) {
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    children.push_back(inChild([&] {
      KernelCache cache(folder_);
      for (int i = 0; i < 200; ++i) {
        cache.store("key", std::string(1000 + i, static_cast<char>('a' + process)));
        std::optional<std::string> loaded = cache.load("key");
        bool isWhole = loaded && loaded->find_first_not_of(loaded->front()) == std::string::npos;
        if (!isWhole) return 1;
      }
      return 0;
    }));
  }
  for (pid_t child : children) EXPECT_EQ(exitCode(child), 0);
}

bool isOneLineAboutTheChecksum(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') == 1 && text.find("checksum") != std::string::npos;
}

TEST_F(KernelCacheTest, WarnsOncePerProcess) {
  // In a new process, because this one may have printed the warning already.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  store();
  damage(40);
  EXPECT_EXIT((load(), load(), std::exit(0)), ::testing::ExitedWithCode(0),
              ::testing::Truly(isOneLineAboutTheChecksum));
}

Cluster makeCluster(PointwiseOp op) {
  ClusterBuilder builder(0);
  builder.store(builder.node(op, DType::kF32, {builder.load(DType::kF32)}));
  return builder.cluster();
}

// Returns how many objects of the clusters were found in the cache.
int32_t cacheHits(const std::string& folder, const std::vector<Cluster>& clusters,
                  std::vector<std::string> disabledPasses = {}) {
  CompileOptions options;
  options.cacheDir = folder;
  options.disabledPasses = std::move(disabledPasses);
  runtime::CompileStats stats;
  auto library = buildKernels(clusters, options, stats);
  EXPECT_TRUE(library.hasValue()) << library.status().toString();
  if (!library.hasValue()) return -1;
  float x[3] = {1, 4, 9};
  float y[3] = {};
  void* pointers[] = {x, y};
  int64_t integers[] = {3, 1, 1};
  library.value()->kernel(0)(pointers, integers, 0, 3);
  EXPECT_EQ(y[2], clusters[0].nodes[1].op == PointwiseOp::kSqrt ? 3 : -9);
  return stats.numKernelCacheHits;
}

TEST_F(KernelCacheTest, ASecondProcessCompilesNothing) {
  std::vector<Cluster> clusters = {makeCluster(PointwiseOp::kSqrt), makeCluster(PointwiseOp::kNeg),
                                   makeCluster(PointwiseOp::kSqrt)};
  EXPECT_EQ(exitCode(inChild([&] { return cacheHits(folder_, clusters); })), 0);
  EXPECT_EQ(cacheHits(folder_, clusters), 2);
}

TEST_F(KernelCacheTest, OptionsThatChangeCodeArePartOfTheKey) {
  std::vector<Cluster> clusters = {makeCluster(PointwiseOp::kSqrt)};
  EXPECT_EQ(cacheHits(folder_, clusters), 0);
  EXPECT_EQ(cacheHits(folder_, clusters, {"expand-math"}), 0);
  EXPECT_EQ(cacheHits(folder_, clusters), 1);
}

TEST_F(KernelCacheTest, ADamagedObjectIsCompiledAgain) {
  std::vector<Cluster> clusters = {makeCluster(PointwiseOp::kNeg)};
  cacheHits(folder_, clusters);
  for (const auto& file : fs::directory_iterator(folder_)) fs::resize_file(file.path(), file.file_size() - 1);
  EXPECT_EQ(cacheHits(folder_, clusters), 0);
  EXPECT_EQ(cacheHits(folder_, clusters), 1);
}

}  // namespace
}  // namespace agspeed::compiler::testing
