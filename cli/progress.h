// A line on stderr while long work runs and a terminal watches; nothing otherwise, and nothing for
// work of less than a second.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace kvscout::tool {

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {
    if (::isatty(STDERR_FILENO)) thread_ = std::thread([this] { watch(); });
  }
  ~Progress() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }

 private:
  void watch() {
    using namespace std::chrono;
    const auto start = steady_clock::now();
    std::unique_lock lock(mutex_);
    bool shown = false;
    while (!wake_.wait_for(lock, milliseconds(shown ? 250 : 1000), [this] { return done_; })) {
      const auto elapsed = duration_cast<seconds>(steady_clock::now() - start).count();
      std::fprintf(stderr, "\r\033[K%s ... %lld s", what_.c_str(), static_cast<long long>(elapsed));
      shown = true;
    }
    if (shown) std::fprintf(stderr, "\r\033[K");
  }

  std::string what_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace kvscout::tool
