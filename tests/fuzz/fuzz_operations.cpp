// Bytes -> a problem -> the reference and every instruction set of the back end `cpu`: none
// crashes, and all agree to the bit, or all refuse with the same words.
#include "fuzz_operations.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cpu/kernels.h"
#include "problems.h"

namespace kvscout::cases {

std::map<std::string, Outcomes>& outcomes() {
  static std::map<std::string, Outcomes> all;
  return all;
}

namespace {

// Products of floats are rounded twice without fma (SSE): docs/operations.md, Numerics.
bool needs_fma(const Args& args) {
  const auto is_float = [](const Tensor& q) { return bytes_of(q.dtype) == 2; };
  if (const auto* a = std::get_if<ScoreFp4Args>(&args)) return is_float(a->q_fp4);
  if (const auto* a = std::get_if<IndexArgs>(&args)) return is_float(a->score.q_fp4);
  return std::holds_alternative<ScoreArgs>(args);
}

bool same_bytes(const std::vector<Buffer>& a, const std::vector<Buffer>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const Buffer& x, const Buffer& y) { return x.bytes == y.bytes; });
}

// What the call refuses; empty: it answered.
std::string refusal(const FuzzProblem& f, const char* backend) {
  Options options;
  options.backend = backend;
  options.threads = f.threads;
  options.check = f.check;
  try {
    run_with_workspace(f.problem.args, options);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

[[noreturn]] void differ(const Problem& p, const char* target, const std::string& how) {
  std::fprintf(stderr, "%s: %s and the reference differ: %s\n", operation_of(p.args), target,
               how.c_str());
  std::abort();
}

void ask(FuzzProblem& f) {
  Problem& p = f.problem;
  const std::vector<Buffer> before = p.buffers;
  const std::string error = refusal(f, "reference");
  const std::vector<Buffer> wanted = p.buffers;
  if (!f.legal && (error.empty() || !same_bytes(before, wanted)))
    differ(p, "reference", "an illegal question was answered");
  const auto wanted_words = f.legal ? written_words(p) : std::vector<std::uint32_t>();
  const std::string written = f.legal ? untouched_elsewhere(p, before) : "";
  if (!written.empty()) differ(p, "reference", written);
  Outcomes& count = outcomes()[operation_of(p.args)];
  ++(error.empty() ? count.answered : count.refused);

  for (const cpu::Kernels* target : cpu::available_kernels()) {
    setenv("KVSCOUT_CPU_TARGET", target->name, 1);
    for (std::size_t i = 0; i < before.size(); ++i)
      std::copy(before[i].bytes.begin(), before[i].bytes.end(), p.buffers[i].bytes.begin());
    const std::string theirs = refusal(f, "cpu");
    if (theirs != error) differ(p, target->name, "'" + theirs + "' against '" + error + "'");
    if (same_bytes(p.buffers, wanted)) continue;
    if (!f.legal) differ(p, target->name, "an illegal question was answered");
    if (const std::string what = untouched_elsewhere(p, before); !what.empty())
      differ(p, target->name, what);
    const bool comparable = f.specified && !(needs_fma(p.args) && std::strstr(target->name, "sse"));
    if (comparable && written_words(p) != wanted_words) differ(p, target->name, "other bits");
  }
}

}  // namespace

void ask(const std::uint8_t* data, std::size_t size, std::int64_t most_work) {
  FuzzProblem f = fuzz_problem(data, size);
  if (f.work <= most_work) ask(f);
}

}  // namespace kvscout::cases

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvscout::cases::ask(data, size, kvscout::cases::kWorkUnderSanitizers);
  return 0;
}
