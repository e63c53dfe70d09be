// A problem that owns its memory: the arguments of one call, as views into buffers of the host, and
// the way to carry them into another memory (a GPU's), run the call there and bring everything
// back.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kvscout/kvscout.h"

namespace kvscout::cases {

using Args = std::variant<QuantizeArgs, ScoreFp4Args, ScoreArgs, SelectArgs, IndexArgs, AppendArgs>;
const char* operation_of(const Args&);

// Inputs end where their buffer ends, so that a sanitizer sees a read past them. Outputs stand
// between guards of 64 bytes and start out as 0xCD, so that a byte nobody may write shows.
struct Buffer {
  std::vector<std::uint8_t> bytes;
  bool written = false;
};

struct Problem {
  Args args;
  std::vector<Buffer> buffers;

  Problem() = default;
  Problem(Problem&&) = default;  // vectors move, views stay valid; a copy's views would not
  Problem& operator=(Problem&&) = default;

  // `bytes` bytes of 0xFF, `shift` bytes behind a 16-byte boundary.
  std::uint8_t* add_input(std::int64_t bytes, std::int64_t shift = 0);
  // Poisoned, guarded, and at least `bytes` bytes.
  std::uint8_t* add_output(std::int64_t bytes, std::int64_t shift = 0);
  Tensor add_i32(const std::vector<std::int32_t>& values);
  const float* add_float(float value);
};

// Calls visit(name, tensor, is_written) for every tensor of the arguments and pointer(float*&) for
// every global scale that lies in memory.
template <class Visit, class Pointer>
void for_each_view(QuantizeArgs& a, Visit visit, Pointer pointer) {
  visit("a", a.a, false);
  visit("codes", a.codes, true);
  visit("scales", a.scales, true);
  pointer(a.a_global_sf.pointer);
}
template <class Visit, class Pointer>
void for_each_view(ScoreFp4Args& a, Visit visit, Pointer pointer) {
  visit("q_fp4", a.q_fp4, false);
  visit("k_fp4", a.k_fp4, false);
  visit("q_scale", a.q_scale, false);
  visit("k_scale", a.k_scale, false);
  visit("cu_seqlens_q", a.cu_seqlens_q, false);
  visit("cu_seqlens_k", a.cu_seqlens_k, false);
  visit("page_table", a.page_table, false);
  visit("seqused_k", a.seqused_k, false);
  visit("q_offset", a.q_offsets, false);
  visit("output", a.output, true);
  pointer(a.q_global_scale.pointer);
  pointer(a.k_global_scale.pointer);
}
template <class Visit, class Pointer>
void for_each_view(ScoreArgs& a, Visit visit, Pointer) {
  visit("q", a.q, false);
  visit("k", a.k, false);
  visit("cu_seqlens_q", a.cu_seqlens_q, false);
  visit("cu_seqlens_k", a.cu_seqlens_k, false);
  visit("page_table", a.page_table, false);
  visit("seqused_k", a.seqused_k, false);
  visit("q_offset", a.q_offsets, false);
  visit("output", a.output, true);
}
template <class Visit, class Pointer>
void for_each_view(SelectArgs& a, Visit visit, Pointer) {
  visit("max_score", a.max_score, false);
  visit("num_valid_pages", a.num_valid_pages_tensor, false);
  visit("output", a.output, true);
}
template <class Visit, class Pointer>
void for_each_view(IndexArgs& a, Visit visit, Pointer pointer) {
  for_each_view(a.score, visit, pointer);
  visit("output", a.output, true);
  visit("scores", a.scores, true);
}
template <class Visit, class Pointer>
void for_each_view(AppendArgs& a, Visit visit, Pointer pointer) {
  visit("k", a.k, false);
  visit("k_cache_fp4", a.k_cache_fp4, true);
  visit("k_cache_scale", a.k_cache_scale, true);
  visit("slot_mapping", a.slot_mapping, false);
  pointer(a.global_scale.pointer);
}

// Calls the operation. Throws what it throws.
void run(const Args&, const Options& = {});
// What the operation asks for; 0 where there is no such question.
std::size_t workspace_bytes(const Args&, const Options& = {});
// Calls the operation on host memory with the workspace that it asks for, filled with junk.
void run_with_workspace(const Args&, const Options& = {});

// A memory that tensors can lie in. Allocations are aligned to 256 bytes and end with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void write(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual void read(void* to_host, const void* from, std::size_t bytes) = 0;
};

// The same problem in `memory`: every buffer copied, every view moved. (Host problems run where
// they are.)
class Placed {
 public:
  Placed(Problem& host, Memory& memory);
  Args args;
  Args place(const Args& host_args) const;  // other views into the same buffers, moved likewise
  void upload();                            // host buffers -> memory again, for a second run
  void download();                          // memory -> host buffers; waits

 private:
  Problem& host_;
  Memory& memory_;
  std::vector<void*> base_;
};

// The elements of every written tensor in row-major order, as 32-bit words or bytes widened to
// words; NaNs made equal. Two back ends agree to the bit where these agree.
std::vector<std::uint32_t> written_words(Problem&);

// Whether only elements of written tensors changed: the guards, the gaps between strides and the
// inputs are as they were in `before`. Empty, or what changed.
std::string untouched_elsewhere(Problem& after, const std::vector<Buffer>& before);

// Address of element (i, j, k, l) of a tensor.
inline std::uint8_t* at(const Tensor& t, std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0,
                        std::int64_t l = 0) {
  const std::int64_t step = i * t.stride[0] + j * t.stride[1] + k * t.stride[2] + l * t.stride[3];
  return static_cast<std::uint8_t*>(t.data) + step * bytes_of(t.dtype);
}
template <class T>
T& element(const Tensor& t, std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0,
           std::int64_t l = 0) {
  return *reinterpret_cast<T*>(at(t, i, j, k, l));
}

}  // namespace kvscout::cases
