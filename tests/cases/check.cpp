#include "check.h"

#include <cstring>
#include <limits>

namespace kvscout::cases {

std::string wrong_message(const std::string& message, const std::vector<std::string>& parts) {
  if (message.find('\n') != std::string::npos)
    return "the message has more than one line: " + message;
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos)
      return "no '" + part + "' in the message: " + message;
  }
  return "";
}

Checker::Checker(const Case& c) : case_(c), problem_(c.build()) {
  if (const auto* index = std::get_if<IndexArgs>(&problem_.args); index && c.legal) {
    // Defined as the selection of the scores: the case gets a buffer for them.
    scores_of_index_ = index->score;
    const std::int64_t heads =
        index->score.reduce_heads == Reduce::none  ? index->score.q_fp4.size(1)
        : index->score.reduce_heads == Reduce::all ? 1
                                                   : index->score.k_fp4.size(1);
    const std::int64_t tokens = index->score.q_fp4.size(0), tiles = index->score.max_k_tiles;
    scores_of_index_.output =
        Tensor(problem_.add_output(4 * heads * tiles * tokens), DType::f32, {heads, tiles, tokens});
  }
  before_ = problem_.buffers;
}

// Runs and copies back. Returns the message of the error that was thrown, if any.
std::string Checker::call(const Options& given, Memory* memory, Verdict* verdict) {
  for (std::size_t i = 0; i < before_.size();
       ++i) {  // views point into the buffers: copy, never replace
    std::memcpy(problem_.buffers[i].bytes.data(), before_[i].bytes.data(), before_[i].bytes.size());
  }
  std::unique_ptr<Placed> placed;
  if (memory) placed = std::make_unique<Placed>(problem_, *memory);
  const auto run_one = [&](const Args& args) {
    if (!case_.legal) return cases::run(args, given);
    if (!memory) return run_with_workspace(args, given);
    Options options = given;
    const std::vector<std::uint8_t> junk(workspace_bytes(args, options), 0xA5);
    if (!junk.empty()) {
      options.workspace = memory->allocate(junk.size());
      options.workspace_bytes = junk.size();
      memory->write(options.workspace, junk.data(), junk.size());
    }
    cases::run(args, options);
  };
  std::string error;
  try {
    run_one(placed ? placed->args : problem_.args);
    if (scores_of_index_.output.defined) {
      run_one(placed ? placed->place(scores_of_index_) : Args(scores_of_index_));
    }
  } catch (const Error& e) {
    if (e.code() == Error::unsupported)
      verdict->not_run = e.what();
    else if (e.code() == Error::device_failure)
      verdict->failure = std::string("device failure: ") + e.what();
    else
      error = e.what();
  }
  if (placed) placed->download();
  return error;
}

std::string Checker::compare_with_answer(double tolerance, Verdict* verdict) {
  if (case_.unspecified) return "";
  if (const auto* a = std::get_if<ScoreFp4Args>(&problem_.args)) {
    if (!has_answer_) score_ = score_answer(*a);
    has_answer_ = true;
    return compare(score_, a->output, tolerance, &verdict->worst);
  }
  if (const auto* a = std::get_if<ScoreArgs>(&problem_.args)) {
    if (!has_answer_) score_ = score_answer(*a);
    has_answer_ = true;
    return compare(score_, a->output, tolerance, &verdict->worst);
  }
  const auto first_difference = [&](const std::vector<std::uint32_t>& expected,
                                    const char* what) -> std::string {
    if (verdict->words.size() != expected.size())
      return "the oracle has another number of elements";
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (verdict->words[i] == expected[i]) continue;
      return std::string(what) + " " + std::to_string(i) + ": got " +
             std::to_string(static_cast<std::int32_t>(verdict->words[i])) + ", expected " +
             std::to_string(static_cast<std::int32_t>(expected[i]));
    }
    return "";
  };
  if (const auto* a = std::get_if<QuantizeArgs>(&problem_.args)) {
    if (!has_answer_) words_ = quantize_answer(*a);
    has_answer_ = true;
    return first_difference(words_, "byte (codes, then scales)");
  }
  if (auto* a = std::get_if<AppendArgs>(&problem_.args)) {
    if (!has_answer_) {  // in the same buffers, from the same bytes
      for (std::size_t i = 0; i < before_.size(); ++i) {
        std::memcpy(problem_.buffers[i].bytes.data(), before_[i].bytes.data(),
                    before_[i].bytes.size());
      }
      append_answer(*a);
      words_ = written_words(problem_);
    }
    has_answer_ = true;
    return first_difference(words_, "byte of the cache (codes, then scales)");
  }
  if (const auto* a = std::get_if<SelectArgs>(&problem_.args)) {
    const std::vector<std::int32_t> ids = select_answer(*a);
    return first_difference({ids.begin(), ids.end()}, "id");
  }
  // The index: to the bit the selection of this back end's own scores.
  auto& a = std::get<IndexArgs>(problem_.args);
  std::vector<std::int32_t> valid = visible_columns(a.score);
  SelectArgs select;
  select.max_score = scores_of_index_.output;
  select.topk = a.topk;
  select.force_begin_blocks = a.force_begin_blocks;
  select.force_end_blocks = a.force_end_blocks;
  select.num_valid_pages_tensor =
      Tensor(valid.data(), DType::i32, {static_cast<std::int64_t>(valid.size())});
  const std::vector<std::int32_t> ids = select_answer(select);
  std::vector<std::uint32_t> expected(ids.begin(), ids.end());
  if (a.scores.defined) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / a.topk, heads = a.output.size(1);
      float score = -std::numeric_limits<float>::infinity();
      if (ids[i] >= 0) score = element<float>(select.max_score, row % heads, ids[i], row / heads);
      std::uint32_t bits;
      std::memcpy(&bits, &score, 4);
      expected.push_back(score != score ? 0x7FC00000u : bits);
    }
  }
  return first_difference(expected, "word (ids, then scores)");
}

Verdict Checker::run(const Options& options, double tolerance, Memory* memory) {
  Verdict v;
  const std::string error = call(options, memory, &v);
  if (!v.failure.empty() || !v.not_run.empty()) return v;
  if (!case_.legal) {
    if (error.empty())
      v.failure = "accepted, and is not a legal question";
    else
      v.failure = wrong_message(error, case_.error);
    for (std::size_t i = 0; i < before_.size(); ++i) {
      if (problem_.buffers[i].bytes != before_[i].bytes)
        v.failure += " (something was written before the error)";
    }
    return v;
  }
  if (!error.empty()) {
    v.failure = "refused: " + error;
    return v;
  }
  v.words = written_words(problem_);
  // The extra scores of an index case are the library's to write.
  std::vector<Buffer> before = before_;
  if (scores_of_index_.output.defined) before.back().bytes = problem_.buffers.back().bytes;
  v.failure = untouched_elsewhere(problem_, before);
  if (v.failure.empty()) v.failure = compare_with_answer(tolerance, &v);
  return v;
}

Verdict Checker::run_checked(Options options, double tolerance, Memory* memory) {
  options.check = true;
  if (case_.checked_error.empty()) return run(options, tolerance, memory);
  Verdict v;
  const std::string error = call(options, memory, &v);
  if (!v.failure.empty() || !v.not_run.empty()) return v;
  if (error.empty())
    v.failure = "accepted by checked mode";
  else
    v.failure = wrong_message(error, case_.checked_error);
  return v;
}

}  // namespace kvscout::cases
