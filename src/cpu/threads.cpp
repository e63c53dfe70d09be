#include "cpu/threads.h"

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>

#include "ieee_floats.h"

#ifdef KVSCOUT_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace kvscout::cpu {
namespace {

// ThreadSanitizer does not see how oneTBB hands work from thread to thread: it is told here, and
// this file is built without it.
#ifdef KVSCOUT_THREAD_SANITIZER
void give(void* context) { __tsan_release(context); }
void take(void* context) { __tsan_acquire(context); }
#else
void give(void*) {}
void take(void*) {}
#endif

}  // namespace

int thread_count(int limit) {
  const int arena = std::max(1, tbb::this_task_arena::max_concurrency());
  return limit > 0 ? std::min(limit, arena) : arena;
}

int most_threads(int limit) {
  const int machine = std::max(1, tbb::info::default_concurrency());
  return limit > 0 ? std::min(limit, machine) : machine;
}

void run_workers(int workers, void (*body)(int, void*), void* context) {
  give(context);
  tbb::parallel_for(
      0, workers, 1,
      [=](int worker) {
        take(context);
        const IeeeFloats ieee;
        body(worker, context);
        give(context);
      },
      tbb::simple_partitioner());
  take(context);
}

}  // namespace kvscout::cpu
