// Threads: oneTBB in the task arena of the caller, behind one function.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace kvscout::cpu {

// Threads that a call may use: those of the surrounding arena, at most `limit` (0: no further
// limit).
int thread_count(int limit);
// The same, whatever arena surrounds the call: what workspaces are sized for.
int most_threads(int limit);

// Runs body(worker, context) for worker = 0 .. workers-1, in parallel where threads are free.
void run_workers(int workers, void (*body)(int worker, void* context), void* context);

// Calls task(worker, index) once for each index in [0, count); whoever is free takes the next one.
template <class Task>
void for_each_task(int workers, std::int64_t count, const Task& task) {
  if (workers <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) task(0, i);
    return;
  }
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::int64_t count;
    const Task* task;
  } shared{{0}, count, &task};
  run_workers(
      static_cast<int>(workers < count ? workers : count),
      [](int worker, void* context) {
        auto& s = *static_cast<Shared*>(context);
        for (std::int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.count;)
          (*s.task)(worker, i);
      },
      &shared);
}

}  // namespace kvscout::cpu
