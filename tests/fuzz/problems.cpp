// Problems are small: plain loops answer most of them in 0.1 ms, so that millions can be asked.
#include "problems.h"

#include <algorithm>
#include <functional>

#include "cases.h"

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
  std::string line() {
    std::string text;
    for (std::uint8_t c; left() && (c = next()) != '\n';) text += static_cast<char>(c);
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, place_ = 0;
};

// Fewer queries, heads and keys in turn, until plain loops are done soon.
void shrink(ScoreSpec& s, std::int64_t products) {
  const auto halve = [](std::vector<std::int32_t>& lengths) {
    for (std::int32_t& n : lengths) n /= 2;
  };
  for (int turn = 0; row_products(s) > products; ++turn) {
    if (turn % 3 == 0) halve(s.q_lengths);
    if (turn % 3 == 1) s.q_heads = s.k_heads * std::max<std::int64_t>(1, s.q_heads / s.k_heads / 2);
    if (turn % 3 == 2) halve(s.k_lengths);
  }
}

ScoreSpec any_score(Bytes& in) {
  ScoreSpec s;
  const std::int64_t types = in.below(13);  // NVFP4 more often
  s.types = static_cast<Types>(types < 8 ? types : types % 2);
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
  shrink(s, in.below(64) == 0 ? 10000 : 120);
  return s;
}

IndexSpec any_index(Bytes& in) {
  IndexSpec s;
  s.score = any_score(in);
  s.score.types = static_cast<Types>(static_cast<int>(s.score.types) % 3);
  s.topk = 1 + static_cast<int>(in.below(64));
  s.force_begin = static_cast<int>(in.below(s.topk + 1));
  s.force_end = static_cast<int>(in.below(s.topk - s.force_begin + 1));
  s.with_scores = in.flag(), s.strided_output = in.flag();
  return s;
}

SelectSpec any_select(Bytes& in) {
  SelectSpec s;
  s.heads = 1 + in.below(2), s.tiles = in.length(511), s.tokens = in.below(10);
  if (in.below(8) != 0) s.tiles /= 4;
  s.topk = 1 + static_cast<int>(in.below(64));
  s.force_begin = static_cast<int>(in.below(s.topk + 1));
  s.force_end = static_cast<int>(in.below(s.topk - s.force_begin + 1));
  s.skip_masked = in.flag(), s.heads_first = in.flag();
  s.valid = static_cast<Offset>(in.below(3)), s.valid_number = in.next() - 10;
  s.strides = static_cast<OutputStrides>(in.below(3));
  s.scores = static_cast<SelectSpec::Scores>(in.below(6));
  s.seed = 1 + in.next();
  return s;
}

QuantizeSpec any_quantize(Bytes& in) {
  QuantizeSpec s;
  const Element types[] = {Element::bf16, Element::f16, Element::f32};
  s.type = types[in.below(3)];
  s.rows = in.length(140);
  if (in.below(32) != 0) s.rows %= 6;
  s.columns = 16 * (1 + in.below(9)), s.row_gap = in.below(5);
  s.layout = static_cast<SfLayout>(in.below(3));
  s.input = static_cast<QuantizeSpec::Input>(in.below(7));
  s.first_pattern = 256 * in.next(), s.scale_pointer = in.flag();
  s.seed = 1 + in.next();
  return s;
}

AppendSpec any_append(Bytes& in) {
  AppendSpec s;
  s.heads = 1 + in.below(2), s.pages = 1 + in.below(2), s.tokens = in.below(6);
  s.slots.clear();
  for (std::int64_t n = in.below(s.tokens + 1); n > 0;
       --n) {  // distinct: equal slots are unspecified
    const std::int64_t slot = (in.next() << 2 | static_cast<int>(n % 4)) - 8;
    if (std::find(s.slots.begin(), s.slots.end(), slot) == s.slots.end()) s.slots.push_back(slot);
  }
  s.strides = in.flag() ? Strides::interleaved : Strides::dense;
  s.misaligned = in.flag(), s.scale_pointer = in.flag();
  s.seed = 1 + in.next();
  return s;
}

// The small cases of the list. The pairs are left to the conformance test: any_score draws the
// same.
const std::vector<const Case*>& named_cases() {
  static const std::vector<const Case*> list = [] {
    std::vector<const Case*> l;
    for (const Case& c : all())
      if (c.small && c.name.find("/pair_") == std::string::npos) l.push_back(&c);
    return l;
  }();
  return list;
}

// By its name; any other text stands for some case.
const Case& named_case(const std::string& name) {
  const auto& list = named_cases();
  for (const Case* c : list)
    if (c->name == name) return *c;
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619u;
  return *list[hash % list.size()];
}

// Overwrites words of lengths, tables and offsets, and bytes of anything else that is read.
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
  const auto owned = [&](const std::uint8_t* to, std::int64_t bytes) {
    return std::any_of(p.buffers.begin(), p.buffers.end(), [&](const Buffer& b) {
      const std::uint8_t* begin = b.bytes.data();
      return !std::less<>()(to, begin) && !std::less<>()(begin + b.bytes.size(), to + bytes);
    });
  };
  while (in.left()) {
    const Tensor& t =
        tensors[static_cast<std::size_t>(in.below(static_cast<std::int64_t>(tensors.size())))];
    std::int64_t i[4] = {};
    for (int d = 0; d < t.rank; ++d) i[d] = (in.next() * 7 + (d == 0 ? in.next() : 0)) % t.shape[d];
    std::uint8_t* to = at(t, i[0], i[1], i[2], i[3]);
    if (!owned(to, bytes_of(t.dtype))) continue;
    if (t.dtype == DType::i32) {
      const std::uint8_t kind = in.next();
      const std::int32_t wild[] = {-1, INT32_MAX, INT32_MIN, kind * 16, -kind};
      std::memcpy(to, &wild[kind % 5], 4);
    } else {
      for (int b = 0; b < bytes_of(t.dtype); ++b) to[b] = in.next();
    }
  }
}

// Requests that share query rows write the same rows.
bool rows_overlap(const Problem& p) {
  const Tensor* cu = nullptr;
  if (const auto* a = std::get_if<ScoreFp4Args>(&p.args)) cu = &a->cu_seqlens_q;
  if (const auto* a = std::get_if<ScoreArgs>(&p.args)) cu = &a->cu_seqlens_q;
  if (const auto* a = std::get_if<IndexArgs>(&p.args)) cu = &a->score.cu_seqlens_q;
  for (std::int64_t b = 1; cu && b < cu->size(0); ++b)
    if (element<std::int32_t>(*cu, b) < element<std::int32_t>(*cu, b - 1)) return true;
  return false;
}

template <class Score>
std::int64_t products(const Score& a, const Tensor& q) {
  return q.shape[0] * q.shape[1] * a.max_k_tiles * kBlock;
}

std::int64_t work_of(const Args& args) {
  struct Visit {
    std::int64_t operator()(const QuantizeArgs& a) const { return a.a.count() / 8; }
    std::int64_t operator()(const ScoreFp4Args& a) const { return products(a, a.q_fp4); }
    std::int64_t operator()(const ScoreArgs& a) const { return products(a, a.q); }
    std::int64_t operator()(const SelectArgs& a) const { return a.max_score.count() / 8; }
    std::int64_t operator()(const IndexArgs& a) const { return products(a.score, a.score.q_fp4); }
    std::int64_t operator()(const AppendArgs& a) const {
      return (a.k.count() + a.k_cache_fp4.count()) / 8;
    }
  };
  return std::visit(Visit{}, args);
}

Problem drawn_problem(int kind, Bytes& in) {
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return build_score(any_score(in));
    case 3:
      return build_index(any_index(in));
    case 4:
      return build_select(any_select(in));
    case 5:
      return build_quantize(any_quantize(in));
    default:
      return build_append(any_append(in));
  }
}

constexpr char kNamed = 31;  // of the 32 kinds; the others are drawn

}  // namespace

FuzzProblem fuzz_problem(const std::uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  FuzzProblem f;
  const int kind = static_cast<int>(in.below(kNamed + 1));
  const std::uint8_t mode = in.next();
  f.threads = mode % 8 == 1 ? 2 : 1;
  f.check = mode / 8 % 4 == 1;
  if (kind == kNamed) {
    const Case& c = named_case(in.line());
    f.problem = c.build();
    f.legal = c.legal;
    if (!c.legal) return f;
    scribble(f.problem, in);
    f.specified = !c.unspecified && !rows_overlap(f.problem);
    f.work = work_of(f.problem.args);
    return f;
  }
  f.problem = drawn_problem(kind % 7, in);
  scribble(f.problem, in);
  f.specified = !rows_overlap(f.problem);
  f.work = work_of(f.problem.args);
  return f;
}

std::string seed_of(const std::string& case_name) {
  return std::string{kNamed, 0} + case_name + "\n";
}

}  // namespace kvscout::cases
