// kvscout bench: how long the operations take on a shape, beside a streaming read of the same keys.
//
// The operations take turns and each keeps its best round. On a GPU a time is that of a call and
// the wait for it, as an engine without a CUDA graph sees it.
#include <algorithm>
#include <deque>
#include <memory>
#include <thread>

#include "cases/data.h"
#include "harness.h"
#include "json.h"
#include "kvscout/scale_layout.h"
#include "machine.h"
#include "placed.h"
#include "progress.h"
#include "shape.h"
#include "text.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

struct BenchOptions {
  Shape shape;
  std::string backend;
  std::int64_t topk = 16, rounds = 7;
  int threads = 0;
  bool json = false;
};

struct Line {
  std::string what;
  std::int64_t bytes;  // that the work must read and write at least once
};

// The back end that answers: by name, or the first of the host.
BackendInfo chosen_backend(const std::string& name) {
  for (const BackendInfo& b : backends())
    if (name.empty() ? b.available && b.device == Device::cpu : b.name == name) return b;
  throw Failure(kNoBackend, formatted("--backend: '{}' is not built in (see kvscout info)", name));
}

class Bench {
 public:
  explicit Bench(const BenchOptions& o)
      : backend_(chosen_backend(o.backend)),
        memory_(device_memory(backend_.device)),
        o_(o),
        problem_(o.shape) {
    options_.backend = backend_.name.c_str();
    options_.threads = o.threads;
    problem_.fill();
    const Shape& s = o.shape;
    const std::int64_t tokens = s.tokens(), key_rows = s.keys * s.k_heads;
    const std::int64_t key_bytes = key_rows * s.batch * 72, q_bytes = tokens * s.q_heads * 72;
    const std::int64_t ids = tokens * s.q_heads * o.topk * 4;
    add_ceiling();

    ScoreFp4Args score = problem_.args;
    score.output = host(DType::f32, {s.q_heads, s.blocks(), tokens});
    const std::int64_t score_bytes = score.output.count() * 4;
    run_operation(score, options_);  // selection sees scores
    SelectArgs select;
    select.max_score = score.output, select.topk = static_cast<int>(o.topk);
    select.output = host(DType::i32, {tokens, s.q_heads, o.topk});
    IndexArgs index;
    index.score = problem_.args, index.topk = static_cast<int>(o.topk);
    index.output = host(DType::i32, {tokens, s.q_heads, o.topk});

    QuantizeArgs quantize;
    quantize.a = rows({key_rows, kHeadDim});
    quantize.a_global_sf.value = 448;
    quantize.codes = host(DType::u8, {key_rows, 64});
    quantize.scales = host(DType::u8, {scale_layout::bytes(quantize.layout, key_rows, 8)});
    AppendArgs append;  // the newest keys of every request
    append.k = rows({tokens, s.k_heads, kHeadDim});
    append.k_cache_fp4 = problem_.args.k_fp4, append.k_cache_scale = problem_.args.k_scale;
    append.slot_mapping = host(DType::i64, {tokens});
    append.global_scale.value = 448;
    for (std::int64_t t = 0; t < tokens; ++t)
      static_cast<std::int64_t*>(append.slot_mapping.data)[t] = t * 37 % (s.blocks() * kBlock);

    add("score", score, score.output, key_bytes + q_bytes + score_bytes);
    add("select", select, select.output, score_bytes + ids);
    add("index", index, index.output, key_bytes + q_bytes + ids);
    add("quantize", quantize, quantize.codes, key_rows * (256 + 72));
    add("append", append, append.k_cache_fp4, tokens * s.k_heads * (256 + 72));
  }

  int run() {
    {
      const Progress progress("bench");
      const bench::OtherLoad others;
      bench::race(contenders_, static_cast<int>(o_.rounds));
      others_ = others.share();
    }
    return o_.json ? report_json() : report();
  }

 private:
  Tensor host(DType type, const std::vector<std::int64_t>& shape) {
    Tensor t = dense(nullptr, type, shape);
    t.data =
        owned_.emplace_back(static_cast<std::size_t>(t.count() * bytes_of(type)) / 8 + 1).data();
    return t;
  }
  Tensor rows(const std::vector<std::int64_t>& shape) {  // bf16 in [-2, 2)
    Tensor t = host(DType::bf16, shape);
    cases::Random random(2);
    auto* to = static_cast<std::uint16_t*>(t.data);
    for (std::int64_t i = 0; i < t.count(); ++i)
      to[i] = static_cast<std::uint16_t>(0x3F00 | (random.next() & 0x80FF));
    return t;
  }

  void add_ceiling() {
    const std::size_t bytes = problem_.k.size() + problem_.k_scale.size();
    if (memory_) {
      void *from = memory_->allocate(bytes), *to = memory_->allocate(bytes);
      lines_.push_back({"copy of the keys", static_cast<std::int64_t>(2 * bytes)});
      contenders_.push_back({lines_.back().what, [=] { copy_in_device(to, from, bytes); }});
      return;
    }
    int threads = o_.threads ? o_.threads : static_cast<int>(std::thread::hardware_concurrency());
    if (threads < 1 || bytes < 4 << 20)
      threads = 1;  // a thread takes as long to start as 1 MB to read
    lines_.push_back({"read of the keys", static_cast<std::int64_t>(bytes)});
    contenders_.push_back({lines_.back().what, [this, threads] {
                             bench::stream_read(problem_.k.data(), problem_.k.size(), threads);
                             bench::stream_read(problem_.k_scale.data(), problem_.k_scale.size(),
                                                threads);
                           }});
  }

  // `written`: a tensor whose first bytes are read to wait for a GPU.
  template <class Args>
  void add(const char* name, const Args& args, const Tensor& written, std::int64_t bytes) {
    auto placed = std::make_shared<Placed<Args>>(args, memory_.get());
    const Options options = placed->with_workspace(options_);
    const void* there = placed->there(written.data);
    lines_.push_back({name, bytes});
    contenders_.push_back({name, [this, placed, options, there] {
                             cases::run(placed->args, options);
                             char byte;
                             if (memory_) memory_->read(&byte, there, 1);
                           }});
  }

  double rate(std::size_t i) const {
    return static_cast<double>(lines_[i].bytes) / contenders_[i].seconds;
  }

  int report() const {
    const Shape& s = o_.shape;
    print("kvscout {} bench: {}, {}\n{} ({}): {}\n", version(), processor(), system_name(),
          backend_.name, backend_.built_for, backend_.status);
    print(
        "{} requests x {} queries x {} heads, {} keys x {} heads, topk {}; best of {}; other "
        "processes took "
        "{:.0f} % of the machine\n",
        s.batch, s.queries, s.q_heads, s.keys, s.k_heads, o_.topk, o_.rounds, 100 * others_);
    for (std::size_t i = 0; i < lines_.size(); ++i)
      print("{:<18}{:>12.3f} ms{:>12.3f} MB{:>10.2f} GB/s{}\n", lines_[i].what,
            contenders_[i].seconds * 1e3, static_cast<double>(lines_[i].bytes) * 1e-6,
            rate(i) * 1e-9,
            i ? formatted("{:>8.1f} % of the {}", 100 * rate(i) / rate(0), lines_[0].what) : "");
    return kOk;
  }

  int report_json() const {
    const Shape& s = o_.shape;
    Json::Array all;
    for (std::size_t i = 0; i < lines_.size(); ++i)
      all.push_back(Json::Object{{"what", lines_[i].what},
                                 {"seconds", contenders_[i].seconds},
                                 {"bytes", lines_[i].bytes},
                                 {"of_ceiling", rate(i) / rate(0)}});
    const Json report(Json::Object{{"version", version()},
                                   {"system", system_name()},
                                   {"processor", processor()},
                                   {"backend", backend_.name},
                                   {"status", backend_.status},
                                   {"threads", o_.threads},
                                   {"batch", s.batch},
                                   {"queries", s.queries},
                                   {"keys", s.keys},
                                   {"q_heads", s.q_heads},
                                   {"k_heads", s.k_heads},
                                   {"topk", o_.topk},
                                   {"best_of", o_.rounds},
                                   {"other_load", others_},
                                   {"times", std::move(all)}});
    print("{}\n", report.text(2));
    return kOk;
  }

  BackendInfo backend_;
  std::unique_ptr<cases::Memory> memory_;
  BenchOptions o_;
  Options options_;
  ShapedProblem problem_;
  std::deque<std::vector<std::uint64_t>> owned_;
  std::vector<Line> lines_;
  std::vector<bench::Contender> contenders_;
  double others_ = 0;  // what other processes took of the machine meanwhile
};

}  // namespace

void add_bench(CommandLine& line) {
  Verb verb =
      line.verb("bench", "time the operations on a shape, beside a streaming read of the keys",
                "The keys are paged and random. A time is the best of all rounds.\n"
                "Example: kvscout bench --queries 4 --keys 1000000 --q-heads 8 --backend cpu");
  auto o = std::make_shared<BenchOptions>();
  o->shape.add_to(verb);
  verb.count("--topk", o->topk, 1, kMaxTopk, "blocks to choose (default: 16)");
  verb.count("--rounds", o->rounds, 1, 1000, "rounds (default: 7)");
  verb.backend(o->backend, "a name that 'kvscout info' lists (default: the first of the host)");
  verb.threads(o->threads);
  verb.json(o->json);
  verb.run([o] { return Bench(*o).run(); });
}

}  // namespace kvscout::tool
