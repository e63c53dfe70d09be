#include "call.h"

#include <algorithm>
#include <chrono>

#include "json.h"
#include "progress.h"
#include "text.h"

namespace kvscout::tool {

void CallOptions::add_to(Verb& verb) {
  verb.files(files, ".safetensors files with the arguments");
  verb.text("-o,--output", "FILE", output, "write the results to this .safetensors file");
  verb.list("--compare", "[RESULT=]NAME", compare,
            "compare a result with the tensor NAME of the input");
  verb.use(use);
  verb.backend(backend);
  verb.threads(threads);
  verb.flag("--checked", checked, "also check the values of lengths, page ids and slots");
  verb.json(json);
  verb.scalar("--dtype", "{bf16,fp16}", given, "dtype", "the type of 16-bit integer patterns");
}

Call::Call(const char* operation, const CallOptions& asked, Inputs::Access access)
    : in(asked.files, asked.use, asked.given, access), operation_(operation), asked_(asked) {
  options.backend = asked_.backend.empty() ? nullptr : asked_.backend.c_str();
  options.threads = asked_.threads;
  options.check = asked_.checked;
  metadata = {{"operation", operation}, {"kvscout", version()}};
  if (!asked_.backend.empty()) metadata["backend"] = asked_.backend;
}

Tensor Call::result(const std::string& name, DType type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = bytes_of(type);
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes))
      throw Failure(kBadInput, formatted("{}: {} of an impossible size", operation_, name));
  Tensor t = dense(nullptr, type, shape);
  t.data = owned_.emplace_back(static_cast<std::size_t>(t.count() * bytes_of(type)) / 8 + 1).data();
  add_result(name, t);
  return t;
}

void Call::add_result(const std::string& name, const Tensor& t) { results_.push_back({name, t}); }

std::string Call::counterpart(const std::string& name) const {
  for (const std::string& entry : asked_.compare) {
    const std::size_t equals = entry.find('=');
    const bool plain = equals == entry.npos;  // belongs to the first result
    if (plain ? (results_.empty() || results_.front().name == name)
              : entry.substr(0, equals) == name)
      return plain ? entry : entry.substr(equals + 1);
  }
  return "";
}

Tensor Call::expected_for(const std::string& name) {
  const std::string other = counterpart(name);
  return other.empty() ? Tensor() : in.named(other);
}

void Call::timed(const std::function<void()>& work) {
  const Progress progress(operation_);
  const auto start = std::chrono::steady_clock::now();
  work();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Comparison Call::compare(const Result& r) {
  const std::string other = counterpart(r.name);
  const Tensor theirs = in.named(other);
  Comparison c;
  if (r.tensor.dtype == DType::f32 && theirs.dtype == DType::f32 && magnitudes) {
    const std::vector<float> m = magnitudes();
    c = compare_scores(r.tensor, theirs, m.data(), asked_.tolerance);
  } else {
    c = compare_exact(r.tensor, theirs);
  }
  c.ours = r.name;
  c.theirs = other;
  return c;
}

int Call::finish() {
  for (const std::string& entry : asked_.compare) {
    const std::size_t equals = entry.find('=');
    const auto is_named = [&](const Result& r) { return r.name == entry.substr(0, equals); };
    if (equals != entry.npos && std::none_of(results_.begin(), results_.end(), is_named))
      throw Failure(kUsage, formatted("--compare: {} has no result '{}'", operation_,
                                      entry.substr(0, equals)));
  }
  Json report;
  report.set("operation", operation_);
  report.set("seconds", seconds_);
  Json::Array results, all_comparisons;
  std::string text;
  safetensors::Contents contents{{}, metadata};
  for (const Result& r : results_) {
    const Tensor& t = r.tensor;
    std::vector<std::int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
    results.push_back(Json::Object{
        {"name", r.name}, {"dtype", file_dtype(t.dtype)}, {"shape", Json::list(shape)}});
    text += formatted(", {} {} {}", r.name, file_dtype(t.dtype), shape_text(t));
    contents.tensors[r.name] = {file_dtype(t.dtype), shape, static_cast<std::uint8_t*>(t.data),
                                static_cast<std::size_t>(t.count() * bytes_of(t.dtype))};
  }
  report.set("results", std::move(results));
  if (!asked_.output.empty()) {
    safetensors::write(asked_.output, contents);
    report.set("output", asked_.output);
    text += " -> " + asked_.output;
  }
  bool equal = true;
  std::string comparisons;
  for (const Result& r : results_) {
    if (counterpart(r.name).empty()) continue;
    const Comparison c = compare(r);
    equal &= c.equal;
    all_comparisons.push_back(Json::Object{{"result", c.ours},
                                           {"expected", c.theirs},
                                           {"equal", c.equal},
                                           {"values", c.values},
                                           {"differing", c.differing},
                                           {"worst", c.worst},
                                           {"detail", c.detail}});
    comparisons += formatted("{} {} {}: {}\n", c.ours, c.equal ? "=" : "!=", c.theirs, c.detail);
  }
  if (!all_comparisons.empty()) report.set("comparisons", std::move(all_comparisons));
  if (asked_.json) {
    print("{}\n", report.text());
  } else if (!comparisons.empty()) {
    print("{}", comparisons);
  } else {
    print("{}: {:.3g} s{}\n", operation_, seconds_, text);
  }
  return equal ? kOk : kMismatch;
}

}  // namespace kvscout::tool
