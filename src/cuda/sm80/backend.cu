// SM80 (Ampere; by the same instructions also the data centre's Blackwell and, as PTX, what comes).
#include "cuda/table.h"

KVSCOUT_CUDA_BACKEND(sm80, false)
