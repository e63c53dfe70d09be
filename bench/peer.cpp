#include "peer.h"

#include <algorithm>
#include <random>

#ifdef KVSCOUT_OPENBLAS
#include <cblas.h>
extern "C" char* openblas_get_corename(void);
#endif

namespace bench {

#ifdef KVSCOUT_OPENBLAS

const char* peer_core() { return openblas_get_corename(); }

Peer::Peer(std::int64_t rows, std::int64_t keys, std::int64_t chunk)
    : rows_(rows), keys_(keys), step_(std::min(chunk, keys)) {
  std::minstd_rand random(1);
  const auto filled = [&](std::int64_t n) {
    std::unique_ptr<float[]> x(new float[static_cast<std::size_t>(n)]);
    for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(random() % 13) - 6;
    return x;
  };
  q_ = filled(rows * 128), k_ = filled(keys * 128), out_ = filled(rows * step_);
}

void Peer::run(int threads) const {
  openblas_set_num_threads(threads);
  for (std::int64_t t = 0; t < keys_; t += step_)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows_),
                static_cast<int>(std::min(step_, keys_ - t)), 128, 1, q_.get(), 128,
                k_.get() + t * 128, 128, 0, out_.get(), static_cast<int>(step_));
}

#else

const char* peer_core() { return nullptr; }
Peer::Peer(std::int64_t rows, std::int64_t keys, std::int64_t)
    : rows_(rows), keys_(keys), step_(0) {}
void Peer::run(int) const {}

#endif

Peer::~Peer() = default;

}  // namespace bench
