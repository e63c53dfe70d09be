// The measuring side of the CPU benchmarks: time, interleaved rounds, ceilings of the machine.
//
// A neighbour on the machine disturbs any single run, so contenders take turns and each keeps its
// best round; what counts is ratios of one run, never absolute numbers of two.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

// CPU time of the calling thread instead of the clock on the wall: for one thread on a machine that
// is not idle.
inline bool cpu_time = false;

inline double now() {
  if (cpu_time) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Contender {
  std::string name;
  std::function<void()> run;
  double seconds = 1e30;  // the best round
};

// Every contender once a round, after one round that does not count.
inline void race(std::vector<Contender>& all, int rounds) {
  for (int r = 0; r <= rounds; ++r)
    for (Contender& c : all) {
      const double start = now();
      c.run();
      const double seconds = now() - start;
      if (r > 0 && seconds < c.seconds) c.seconds = seconds;
    }
}

// ---- ceilings ----------------------------------------------------------------------------------

// Floating-point operations that `loops` rounds of the register-only instruction mix of one scored
// (vector, key, group) stand for; 0 where the CPU lacks the instructions.
double avx2_mix(std::int64_t loops);
double vnni_mix(std::int64_t loops);   // scales multiplied
double table_mix(std::int64_t loops);  // scales through a permutation
// Float additions and multiplications of an fma loop.
double fma_loop(std::int64_t loops);

// Reads all bytes, on `threads` threads.
void stream_read(const void* data, std::size_t bytes, int threads);
void stream_copy(void* to, const void* from, std::size_t bytes, int threads);

}  // namespace bench
