// kvscout check: the whole case list of the tests on the back ends of this machine, against the
// float64 oracle and, on the CPU, to the bit against each other, as a report to send back.
#include "cases/check.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "cases.h"
#include "json.h"
#include "machine.h"
#include "placed.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

struct CheckOptions {
  std::string backend, filter;
  int threads = 0;
  bool json = false, small = false, list = false;
};

struct Count {
  int passed = 0, failed = 0, not_run = 0;
  double worst = 0, seconds = 0;
  std::vector<std::string> failures;
  std::map<std::string, int> reasons;  // of what was not run

  void skip(const std::string& reason) { ++not_run, ++reasons[reason]; }
};

// What the first CPU back end wrote, for the others to be compared with.
struct Words {
  std::string backend;
  std::vector<std::uint32_t> words;
};

// docs/operations.md, Numerics: CPU back ends, and tensor cores on this list.
double tolerance_of(const BackendInfo& b) { return b.device == Device::cpu ? 5e-7 : 1e-6; }

void run_case(cases::Checker& checker, const cases::Case& c, const BackendInfo& b,
              const CheckOptions& o, Words& first, Count& count) {
  Options options;
  options.backend = b.name.c_str();
  options.threads = o.threads;
  const auto start = std::chrono::steady_clock::now();
  cases::Verdict v;
  try {
    const std::unique_ptr<cases::Memory> memory = device_memory(b.device);
    v = checker.run(options, tolerance_of(b), memory.get());
  } catch (const std::exception& error) {
    v.failure = error.what();
  }
  count.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  count.worst = std::max(count.worst, v.worst);
  if (!v.not_run.empty()) return count.skip(v.not_run);
  if (v.ok() && c.legal && !c.unspecified && b.device == Device::cpu) {
    if (first.backend.empty())
      first = {b.name, v.words};
    else if (first.words != v.words)
      v.failure = "other bits than " + first.backend;
  }
  if (v.ok())
    ++count.passed;
  else
    ++count.failed, count.failures.push_back(c.name + ": " + v.failure);
}

std::string report_of(const BackendInfo& b, const Count& c) {
  std::string text =
      formatted("{} ({}; {})\n  {} passed, {} failed, {} not run; {:.1f} s\n", b.name, b.built_for,
                b.status, c.passed, c.failed, c.not_run, c.seconds);
  if (c.passed + c.failed)
    text +=
        formatted("  largest error of a score: {:.1e} of the products' magnitude, {:.0e} allowed\n",
                  c.worst, tolerance_of(b));
  for (const auto& [reason, times] : c.reasons)
    text += formatted("  not run, {} cases: {}\n", times, reason);
  for (const std::string& line : c.failures) text += formatted("  FAILED {}\n", line);
  return text;
}

Json json_of(const BackendInfo& b, const Count& c) {
  Json::Object reasons;
  for (const auto& [reason, times] : c.reasons) reasons.emplace_back(reason, times);
  return Json::Object{{"name", b.name},
                      {"built_for", b.built_for},
                      {"status", b.status},
                      {"passed", c.passed},
                      {"failed", c.failed},
                      {"not_run", c.not_run},
                      {"reasons", reasons},
                      {"worst", c.worst},
                      {"allowed", tolerance_of(b)},
                      {"seconds", c.seconds},
                      {"failures", Json::list(c.failures)}};
}

int run_check(const CheckOptions& o) {
  std::vector<const cases::Case*> chosen;
  for (const cases::Case& c : cases::all())
    if ((!o.small || c.small) && c.name.find(o.filter) != c.name.npos) chosen.push_back(&c);
  if (chosen.empty())
    throw Failure(kUsage, formatted("--filter: no case has '{}' in its name", o.filter));
  if (o.list) {
    for (const cases::Case* c : chosen) print("{}\n", c->name);
    return kOk;
  }
  std::vector<BackendInfo> all;
  std::vector<std::string> left_out;  // what this run says nothing about
  bool any_gpu = false;
  for (const BackendInfo& b : backends()) {
    any_gpu |= b.device != Device::cpu;
    if (o.backend.empty() || b.name == o.backend)
      all.push_back(b);
    else
      left_out.push_back(b.name);
  }
  if (!any_gpu) left_out.push_back("GPU back ends (none in this build)");
  if (all.empty())
    throw Failure(kNoBackend,
                  formatted("--backend: '{}' is not built in (see kvscout info)", o.backend));

  std::vector<Count> counts(all.size());
  {
    Progress progress("check");
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      progress.say(formatted("case {} of {}: {}", i + 1, chosen.size(), chosen[i]->name));
      cases::Checker checker(*chosen[i]);
      Words first;
      for (std::size_t b = 0; b < all.size(); ++b) {
        if (all[b].available)
          run_case(checker, *chosen[i], all[b], o, first, counts[b]);
        else
          counts[b].skip(all[b].status);
      }
    }
  }
  int passed = 0, failed = 0, not_run = 0;
  Json::Array of_backends;
  std::string text = formatted("kvscout {} check: {} of {} cases\n{}\n{}, {} hardware threads\n",
                               version(), chosen.size(), cases::all().size(), system_name(),
                               processor(), std::thread::hardware_concurrency());
  for (std::size_t b = 0; b < all.size(); ++b) {
    passed += counts[b].passed, failed += counts[b].failed, not_run += counts[b].not_run;
    text += report_of(all[b], counts[b]);
    of_backends.push_back(json_of(all[b], counts[b]));
  }
  for (const std::string& other : left_out) text += formatted("{}: not run\n", other);
  const char* verdict = failed ? "FAILED" : passed ? "passed" : "NOT RUN";
  const Json report(Json::Object{{"version", version()},
                                 {"system", system_name()},
                                 {"processor", processor()},
                                 {"cases", chosen.size()},
                                 {"backends", std::move(of_backends)},
                                 {"left_out", Json::list(left_out)},
                                 {"verdict", verdict},
                                 {"passed", passed},
                                 {"failed", failed},
                                 {"not_run", not_run}});
  if (o.json)
    print("{}\n", report.text(2));
  else
    print("{}check {}: {} passed, {} failed, {} not run\n", text, verdict, passed, failed, not_run);
  return failed ? kMismatch : passed ? kOk : kNoBackend;
}

}  // namespace

void add_check(CommandLine& line) {
  Verb verb = line.verb("check", "run the case list on this machine: a report to send back",
                        "Example: kvscout check --backend reference --small");
  auto o = std::make_shared<CheckOptions>();
  verb.backend(o->backend, "only this back end (default: every one that runs here)");
  verb.text("--filter", "TEXT", o->filter, "only cases with this text in their name");
  verb.threads(o->threads);
  verb.flag("--small", o->small, "only the small cases");
  verb.flag("--list", o->list, "print the names of the cases");
  verb.json(o->json);
  verb.run([o] { return run_check(*o); });
}

}  // namespace kvscout::tool
