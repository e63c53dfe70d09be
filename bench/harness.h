// The measuring side of the CPU benchmarks: time, interleaved rounds, ceilings of the machine.
//
// A neighbour on the machine disturbs any single run, so contenders take turns and each keeps its
// best round; what counts is ratios of one run, never absolute numbers of two.
#pragma once

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
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

// Every contender once a round, after one round that does not count; short ones for more rounds.
inline void race(std::vector<Contender>& all, int rounds) {
  constexpr double kLeast = 0.7;  // seconds
  constexpr int kMostRounds = 60;
  double spent = 0;
  for (int r = 0; r <= rounds || (spent < kLeast && r < kMostRounds); ++r)
    for (Contender& c : all) {
      const double start = now();
      c.run();
      const double seconds = now() - start;
      if (r > 0 && seconds < c.seconds) c.seconds = seconds;
      spent += seconds;
    }
}

// One line of the table of bars (run.sh gathers them): what the project asks of itself, beside what
// was measured. `must` and `goal` are in the unit of `ratio`; smaller is better if `goal` < `must`.
struct Bar {
  std::string what;
  int threads;
  std::string ceiling, peer, ours;
  double ratio;
  const char* unit;
  double must, goal;
};
inline void report(const Bar& b) {
  const bool met = b.goal < b.must ? b.ratio <= b.must : b.ratio >= b.must;
  std::printf("bar | %s | %d | %s | %s | %s | %.4g%s | %.4g%s | %.4g%s | %s\n", b.what.c_str(),
              b.threads, b.ceiling.c_str(), b.peer.c_str(), b.ours.c_str(), b.ratio, b.unit, b.must,
              b.unit, b.goal, b.unit, met ? "met" : "short");
}
// A number and its unit, for a cell of that table.
inline std::string cell(const char* name, double number, const char* unit) {
  char text[96];
  std::snprintf(text, sizeof text, "%s %.4g %s", name, number, unit);
  return text;
}

// What other processes took of the machine's processors since construction, 0 to 1.
class OtherLoad {
 public:
  OtherLoad() : start_(read()) {}
  double share() const {
    const Times now = read();
    const double all = now.all - start_.all;
    return all > 0 ? std::max(0.0, (now.busy - start_.busy - (now.own - start_.own)) / all) : 0;
  }

 private:
  struct Times {
    double all = 0, busy = 0, own = 0;  // seconds of processors
  };
  static Times read() {
    Times t;
    const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
    std::ifstream file("/proc/stat");
    std::string word;
    file >> word;
    for (int i = 0; i < 8; ++i) {  // user nice system idle iowait irq softirq steal
      double x = 0;
      file >> x;
      t.all += x * tick;
      if (i != 3 && i != 4) t.busy += x * tick;
    }
    rusage own;
    getrusage(RUSAGE_SELF, &own);
    for (const timeval& v : {own.ru_utime, own.ru_stime})
      t.own += static_cast<double>(v.tv_sec) + 1e-6 * static_cast<double>(v.tv_usec);
    return t;
  }
  Times start_;
};

// ---- ceilings ----------------------------------------------------------------------------------

// Floating-point operations that `loops` rounds of the register-only instruction mix of one scored
// (vector, key, group) stand for; 0 where the CPU lacks the instructions.
double avx2_mix(std::int64_t loops);
double vnni_mix(std::int64_t loops);      // scales multiplied
double fused_mix(std::int64_t loops);     // conversion and scales in two fma
double table_mix(std::int64_t loops);     // scales through a permutation
double amx_mix(std::int64_t loops);       // tile products: scales are in the data
double amx_bf16_mix(std::int64_t loops);  // of bf16 queries
// Float additions and multiplications of an fma loop, of 256 and of 512 bits.
double fma_loop(std::int64_t loops);
double wide_fma_loop(std::int64_t loops);

// Reads all bytes, on `threads` threads.
void stream_read(const void* data, std::size_t bytes, int threads);
void stream_copy(void* to, const void* from, std::size_t bytes, int threads);

}  // namespace bench
