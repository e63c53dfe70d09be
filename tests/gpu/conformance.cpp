// Every case on every back end that serves CUDA memory and runs here, against the oracle; what has
// one right answer (quantize, append, select) to the bit. KVSCOUT_BACKEND=name asks one back end.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "cases.h"
#include "cases/check.h"
#include "memory.h"
#include "registry.h"

namespace kvscout::gpu {
namespace {

using namespace kvscout::cases;

constexpr double kTolerance = 1e-6;  // fp16 tensor cores on this list; docs, Numerics

struct Count {
  int passed = 0, failed = 0, not_run = 0;
  double worst = 0;
  std::string why;
};
std::map<std::string, Count>& counts() {
  static std::map<std::string, Count> map;
  return map;
}

class CaseTest : public testing::Test {
 public:
  CaseTest(const Case& c, const Backend& b, bool checked)
      : case_(c), backend_(b), checked_(checked) {}

  void TestBody() override {
    Count& count = counts()[backend_.name];
    std::string why;
    if (!backend_.runs_on(0, &why)) {
      ++count.not_run;
      count.why = why;
      GTEST_SKIP() << backend_.name << " " << why;
    }
    GpuMemory memory;
    Checker checker(case_);
    Options options;
    options.backend = backend_.name;
    const Verdict v = checked_ ? checker.run_checked(options, kTolerance, &memory)
                               : checker.run(options, kTolerance, &memory);
    if (!v.not_run.empty()) {
      ++count.not_run;
      count.why = v.not_run;
      GTEST_SKIP() << v.not_run;
    }
    count.worst = std::max(count.worst, v.worst);
    ++(v.failure.empty() ? count.passed : count.failed);
    EXPECT_EQ(v.failure, "");
  }

 private:
  const Case& case_;
  const Backend& backend_;
  bool checked_;
};

void add(const char* suite, const Case& c, const Backend& b, bool checked) {
  testing::RegisterTest((std::string(b.name) + "_" + suite).c_str(), c.name.c_str(), nullptr,
                        nullptr, __FILE__, __LINE__,
                        [&c, &b, checked]() -> CaseTest* { return new CaseTest(c, b, checked); });
}

}  // namespace

void add_conformance_tests() {
  const char* forced = std::getenv("KVSCOUT_BACKEND");
  for (const Backend* b : all_backends()) {
    if (b->device != Device::cuda || (forced && *forced && std::strcmp(forced, b->name) != 0))
      continue;
    for (const Case& c : cases::all()) {
      // An error where lengths lie in host memory; here a test of its own (streams_test.cpp).
      if (c.name == "illegal/bound_below_the_lengths") continue;
      add(c.small ? "small" : "large", c, *b, false);
      const bool reads_values =
          c.name.find("score") == 0 || c.name.find("index") == 0 || c.name.find("append") == 0;
      if (c.legal && c.small && reads_values) add("checked", c, *b, true);
    }
  }
}

void print_conformance() {
  for (const auto& [name, c] : counts())
    std::printf(
        "conformance: %-6s %4d passed %3d failed %4d not run%s%s; largest error %.2g of the "
        "magnitude\n",
        name.c_str(), c.passed, c.failed, c.not_run, c.why.empty() ? "" : ": ", c.why.c_str(),
        c.worst);
}

}  // namespace kvscout::gpu
