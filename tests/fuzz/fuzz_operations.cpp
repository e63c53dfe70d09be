// Bytes -> a problem -> every host back end: none crashes, all agree to the bit, or all refuse
// alike.
//
// The first bytes choose operation and shape; the rest overwrite lengths, page tables, codes,
// scales and numbers, so that what validation lets through has no meaning at all.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cases/build.h"
#include "registry.h"

namespace kvscout::cases {
namespace {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t next() { return place_ < size_ ? data_[place_++] : 0; }
  std::int64_t below(std::int64_t n) { return next() % n; }
  bool flag() { return next() & 1; }
  bool left() const { return place_ < size_; }
  // Lengths around the interesting ones: 0, 1, a block and its neighbours.
  std::int32_t length(std::int64_t most) {
    const std::int64_t x = next() + 256 * static_cast<std::int64_t>(next() & 1);
    return static_cast<std::int32_t>(std::min(x, most));
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, place_ = 0;
};

ScoreSpec any_score(Bytes& in) {
  ScoreSpec s;
  s.types = static_cast<Types>(in.below(8));
  s.k_heads = 1 + in.below(3);
  s.q_heads = s.k_heads * (1 + in.below(5));
  s.q_lengths.clear(), s.k_lengths.clear();
  for (std::int64_t b = in.below(4); b >= 0; --b) {
    s.q_lengths.push_back(in.length(9));
    s.k_lengths.push_back(in.length(400));
  }
  const std::uint8_t bits = in.next(), more = in.next();
  s.paged = bits & 1, s.causal = bits & 2, s.misaligned = bits & 4, s.scale_pointers = bits & 8;
  s.values = bits & 16 ? Values::raw : Values::plain;
  s.strides = bits & 32 ? Strides::interleaved : Strides::dense;
  s.rows_before = bits >> 6 & 1, s.rows_after = bits >> 7;
  s.offset = static_cast<Offset>(more % 3), s.reduce = static_cast<Reduce>(more / 3 % 3);
  s.output = static_cast<OutputStrides>(more / 9 % 3), s.tiles = static_cast<Tiles>(more / 27 % 3);
  s.pages = static_cast<Pages>(in.below(3));
  s.block_start = in.below(3), s.block_step = 1 + in.below(3);
  s.seed = 1 + in.next();
  return s;
}

Problem any_problem(Bytes& in) {
  switch (in.below(6)) {
    case 0:
    case 1:
      return build_score(any_score(in));
    case 2: {
      IndexSpec s;
      s.score = any_score(in);
      s.score.types = static_cast<Types>(static_cast<int>(s.score.types) % 3);
      s.topk = 1 + static_cast<int>(in.below(64));
      s.force_begin = static_cast<int>(in.below(s.topk + 1));
      s.force_end = static_cast<int>(in.below(s.topk - s.force_begin + 1));
      s.with_scores = in.flag(), s.strided_output = in.flag();
      return build_index(s);
    }
    case 3: {
      SelectSpec s;
      s.heads = 1 + in.below(3), s.tiles = in.length(511), s.tokens = in.below(4);
      s.topk = 1 + static_cast<int>(in.below(64));
      s.force_begin = static_cast<int>(in.below(s.topk + 1));
      s.force_end = static_cast<int>(in.below(s.topk - s.force_begin + 1));
      s.skip_masked = in.flag(), s.heads_first = in.flag();
      s.valid = static_cast<Offset>(in.below(3)), s.valid_number = in.next() - 10;
      s.strides = static_cast<OutputStrides>(in.below(3));
      s.scores = static_cast<SelectSpec::Scores>(in.below(6));
      s.seed = 1 + in.next();
      return build_select(s);
    }
    case 4: {
      QuantizeSpec s;
      const Element types[] = {Element::bf16, Element::f16, Element::f32};
      s.type = types[in.below(3)];
      s.rows = in.length(140), s.columns = 16 * (1 + in.below(9)), s.row_gap = in.below(5);
      s.layout = static_cast<SfLayout>(in.below(3));
      s.input = static_cast<QuantizeSpec::Input>(in.below(7));
      s.first_pattern = 256 * in.next(), s.scale_pointer = in.flag();
      s.seed = 1 + in.next();
      return build_quantize(s);
    }
    default: {
      AppendSpec s;
      s.heads = 1 + in.below(3), s.pages = 1 + in.below(4), s.tokens = in.below(9);
      s.slots.clear();
      for (std::int64_t n = in.below(s.tokens + 1); n > 0;
           --n) {  // distinct: equal slots are unspecified
        const std::int64_t slot = (in.next() << 2 | static_cast<int>(n % 4)) - 8;
        if (std::find(s.slots.begin(), s.slots.end(), slot) == s.slots.end())
          s.slots.push_back(slot);
      }
      s.strides = in.flag() ? Strides::interleaved : Strides::dense;
      s.misaligned = in.flag(), s.scale_pointer = in.flag();
      s.seed = 1 + in.next();
      return build_append(s);
    }
  }
}

// Overwrites words of lengths, tables and offsets, and bytes of anything that is read.
void scribble(Problem& p, Bytes& in) {
  std::vector<Tensor> tensors;
  std::visit(
      [&](auto& a) {
        for_each_view(
            a,
            [&](const char* name, Tensor& t, bool written) {
              if (t.defined && !written && t.count() > 0 && std::string(name) != "slot_mapping")
                tensors.push_back(t);
            },
            [](const float*) {});
      },
      p.args);
  if (tensors.empty()) return;
  while (in.left()) {
    const Tensor& t =
        tensors[static_cast<std::size_t>(in.below(static_cast<std::int64_t>(tensors.size())))];
    std::int64_t i[4] = {};
    for (int d = 0; d < t.rank; ++d) i[d] = (in.next() * 7 + (d == 0 ? in.next() : 0)) % t.shape[d];
    std::uint8_t* to = at(t, i[0], i[1], i[2], i[3]);
    if (t.dtype == DType::i32) {
      const std::uint8_t kind = in.next();
      const std::int32_t wild[] = {-1, INT32_MAX, INT32_MIN, kind * 16, -kind};
      std::memcpy(to, &wild[kind % 5], 4);
    } else {
      for (int b = 0; b < bytes_of(t.dtype); ++b) to[b] = in.next();
    }
  }
}

// Requests that share query rows write the same rows: their values are not specified.
bool rows_overlap(const Problem& p) {
  const Tensor* cu = nullptr;
  if (const auto* a = std::get_if<ScoreFp4Args>(&p.args)) cu = &a->cu_seqlens_q;
  if (const auto* a = std::get_if<ScoreArgs>(&p.args)) cu = &a->cu_seqlens_q;
  if (const auto* a = std::get_if<IndexArgs>(&p.args)) cu = &a->score.cu_seqlens_q;
  for (std::int64_t b = 1; cu && b < cu->size(0); ++b) {
    if (element<std::int32_t>(*cu, b) < element<std::int32_t>(*cu, b - 1)) return true;
  }
  return false;
}

void one(const std::uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  Problem p = any_problem(in);
  scribble(p, in);
  const bool compared = !rows_overlap(p);
  const std::vector<Buffer> before = p.buffers;
  std::vector<std::uint32_t> first;
  std::string first_error;
  const char* first_name = nullptr;
  for (const Backend* backend : all_backends()) {
    std::string why;
    if (backend->device != Device::cpu || !backend->runs_on(0, &why)) continue;
    for (std::size_t i = 0; i < before.size(); ++i) {
      std::copy(before[i].bytes.begin(), before[i].bytes.end(), p.buffers[i].bytes.begin());
    }
    Options options;
    options.backend = backend->name;
    std::string error;
    try {
      run_with_workspace(p.args, options);
    } catch (const Error& e) {
      error = e.what();
    }
    const auto words = written_words(p);
    const std::string elsewhere = untouched_elsewhere(p, before);
    if (!first_name) first = words, first_error = error, first_name = backend->name;
    if (elsewhere.empty() && error == first_error && (!compared || words == first)) continue;
    std::fprintf(stderr, "%s: %s against %s: %s '%s' '%s'\n", operation_of(p.args), backend->name,
                 first_name, elsewhere.c_str(), error.c_str(), first_error.c_str());
    std::abort();
  }
}

}  // namespace
}  // namespace kvscout::cases

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvscout::cases::one(data, size);
  return 0;
}

#ifdef KVSCOUT_REPLAY
// Without libFuzzer: the seeds of the corpus folder, then as many random inputs as asked for.
#include <filesystem>
#include <fstream>
#include <iterator>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++seeds;
  }
  kvscout::cases::Random random(5);
  const int count = std::atoi(argv[2]);
  for (int n = 0; n < count; ++n) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(20 + random.below(120)));
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random.next());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%d seeds and %d random inputs\n", seeds, count);
  return seeds > 0 ? 0 : 1;
}
#endif
