// Every case on every back end of this machine that serves host memory: against the oracle, and all
// of them to the bit against each other. Back ends for CUDA memory run the same list in tests/gpu.
// The last line counts.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "cases.h"
#include "cases/check.h"
#include "registry.h"

namespace kvscout::cases {
namespace {

constexpr double kTolerance = 5e-7;  // CPU; docs/operations.md, Numerics

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
  explicit CaseTest(const Case& c) : case_(c) {}

  void TestBody() override {
    Checker checker(case_);
    std::vector<std::uint32_t> first;
    const char* first_name = nullptr;
    bool ran = false;
    for (const Backend* backend : all_backends()) {
      Count& count = counts()[backend->name];
      std::string why;
      if (backend->device != Device::cpu || !backend->runs_on(0, &why)) {
        ++count.not_run;
        count.why = why.empty() ? "serves CUDA memory: tests/gpu runs it" : why;
        continue;
      }
      SCOPED_TRACE(backend->name);
      Options options;
      options.backend = backend->name;
      const Verdict v = checker.run(options, kTolerance);
      if (!v.not_run.empty()) {
        ++count.not_run;
        count.why = v.not_run;
        continue;
      }
      ran = true;
      bool same = true;
      if (v.failure.empty() && case_.legal && !case_.unspecified) {
        if (!first_name) first = v.words, first_name = backend->name;
        same = first == v.words;
        EXPECT_TRUE(same) << "other bits than " << first_name;
      }
      EXPECT_EQ(v.failure, "");
      count.worst = std::max(count.worst, v.worst);
      ++(v.failure.empty() && same ? count.passed : count.failed);
    }
    EXPECT_TRUE(ran) << "no back end ran this case";
  }

 private:
  const Case& case_;
};

class CheckedTest : public testing::Test {
 public:
  explicit CheckedTest(const Case& c) : case_(c) {}
  void TestBody() override {
    Options options;
    options.backend = "reference";
    EXPECT_EQ(Checker(case_).run_checked(options, kTolerance).failure, "");
  }

 private:
  const Case& case_;
};

void add_tests() {
  for (const Case& c : all()) {
    testing::RegisterTest(c.small ? "conformance_small" : "conformance_large", c.name.c_str(),
                          nullptr, nullptr, __FILE__, __LINE__,
                          [&c]() -> CaseTest* { return new CaseTest(c); });
    const bool reads_values =
        c.name.find("score") == 0 || c.name.find("index") == 0 || c.name.find("append") == 0;
    if (!c.legal || !c.small || !reads_values) continue;
    testing::RegisterTest("checked_small", c.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&c]() -> CheckedTest* { return new CheckedTest(c); });
  }
}

}  // namespace
}  // namespace kvscout::cases

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kvscout::cases::add_tests();
  const int result = RUN_ALL_TESTS();
  for (const auto& [name, c] : kvscout::cases::counts()) {
    std::printf(
        "conformance: %-10s %4d passed %3d failed %4d not run%s%s; largest error %.2g of the "
        "magnitude\n",
        name.c_str(), c.passed, c.failed, c.not_run, c.why.empty() ? "" : ": ", c.why.c_str(),
        c.worst);
  }
  return result;
}
