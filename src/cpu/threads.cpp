#include "cpu/threads.h"

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>

#include "ieee_floats.h"

namespace kvscout::cpu {

int thread_count(int limit) {
  const int arena = std::max(1, tbb::this_task_arena::max_concurrency());
  return limit > 0 ? std::min(limit, arena) : arena;
}

int most_threads(int limit) {
  const int machine = std::max(1, tbb::info::default_concurrency());
  return limit > 0 ? std::min(limit, machine) : machine;
}

void run_workers(int workers, void (*body)(int, void*), void* context) {
  tbb::parallel_for(
      0, workers, 1,
      [=](int worker) {
        const IeeeFloats ieee;
        body(worker, context);
      },
      tbb::simple_partitioner());
}

}  // namespace kvscout::cpu
