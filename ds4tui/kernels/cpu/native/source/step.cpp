// A whole step of a dense decoder: rows in, logits out, in one call. What is computed is defined
// by the plain-MLX reference (kernels/block.py, kernels/decoder.py).

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "attention.h"
#include "delta.h"
#include "pool.h"

namespace {

// Of many gate, up and down matrices each row takes a few: those of the next expert begin so many
// bytes behind those of the last.
struct Experts {
  Matrix router;
  int64_t gate_bytes, up_bytes, down_bytes;
  int32_t count, used;
};

struct Layer {
  Matrix q, k, v, output, gate, up, down;
  const Experts* experts;                        // or null
  const float *attn_norm, *ffn_norm;
  const float *q_norm, *k_norm;                  // of each head, or null
  const float *attn_post_norm, *ffn_post_norm;   // before the residual is added, or null
  int32_t window;                                // rows that a query sees, 0 for all
  int32_t turn;                                  // which of Step.turns
};

struct Model {
  const Layer* layers;
  Matrix embedding, head;
  const float* output_norm;
  int32_t blocks, width, inner, heads, kv_heads, key_size, value_size;
  int32_t is_gelu, experts;  // the most of a layer
  float norm_epsilon, score_scale, embedding_scale;
};

struct Cache {
  float *keys, *values;  // [kv_heads, key_size, capacity], [kv_heads, capacity, value_size]
  int64_t capacity;
  int64_t base;          // rows of the sequence before the first one here
};

struct Step {
  const int64_t* ids;      // [rows], or null for
  const float* embedded;   // [rows, width]
  const float* turns[2];   // [rows, pairs, 2]: cosine and sine
  const Cache* caches;     // one a layer
  float* logits;           // [logit_rows, vocab]: of the last rows
  const float* added;      // [added_blocks, rows, width]: added to the rows behind each first block
  const int32_t* sight;    // [rows]: up to which of this step's rows each query sees, or null for itself
  int32_t rows, first, logit_rows, pairs[2];  // pairs of each of `turns`
  int32_t added_blocks;
};

constexpr int MANY = 12;  // from so many rows on, decoding into panels pays
constexpr int ROWS_AT_A_TIME = 16;
constexpr int PART = 512;  // rows of keys and values that one chunk of a decode step looks at

Pool* pool = nullptr;

int chunks_of(int count, int size) { return (count + size - 1) / size; }

// -- memory of a step: kept from step to step, as it grew --------------------------------------

struct Space {
  char* at = nullptr;
  size_t bytes = 0;
  float* floats(size_t count) {
    if (count * sizeof(float) > bytes) {
      std::free(at);
      bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
      at = static_cast<char*>(std::aligned_alloc(4096, bytes));
      if (!at) {
        bytes = 0;
        throw std::bad_alloc();
      }
      std::memset(at, 0, bytes);
    }
    return reinterpret_cast<float*>(at);
  }
};

// Padded with zeros to whole GROUPs, and off the multiples of a page, whose rows would share cache
// lines.
int64_t stride_of(int columns) { return (columns + GROUP - 1) / GROUP * GROUP + 16; }

struct ThreadSpace {
  PanelSpace panel;
  Space scores, edge;
  ~ThreadSpace() {
    std::free(scores.at);
    std::free(edge.at);
  }
};

ThreadSpace* threads_space = nullptr;
Space step_space, parts_space, product_space;

// -- products, shared by the threads -----------------------------------------------------------

int rows_of_chunk(int out) {
  const int share = out / (4 * pool->threads());
  const int rows = share < 16 ? 16 : share > 512 ? 512 : share;
  return (rows + 15) / 16 * 16;
}

struct Product {
  const Matrix* matrix;
  Rows y;
};

// Several products of the same x, one job. `after(first, end, index)` runs when columns of the
// product `index` are there.
template <int N, class After>
void multiply(const Product (&products)[N], Rows x, int count, bool add, After after) {
  const bool many = count >= MANY;
  int sizes[N], starts[N + 1] = {0};
  for (int i = 0; i < N; i++) {
    sizes[i] = many ? PANEL : rows_of_chunk(products[i].matrix->out);
    starts[i + 1] = starts[i] + chunks_of(products[i].matrix->out, sizes[i]);
  }
  pool->each(starts[N], [&](int chunk, int thread) {
    int i = 0;
    while (chunk >= starts[i + 1]) i++;
    const Matrix& m = *products[i].matrix;
    const int first = (chunk - starts[i]) * sizes[i];
    const int end = first + sizes[i] < m.out ? first + sizes[i] : m.out;
    if (many)
      many_rows(m, first, x, count, products[i].y, add, threads_space[thread].panel);
    else
      few_rows(m, first, end, x, count, products[i].y, add);
    after(first, end);
  });
}

template <int N>
void multiply(const Product (&products)[N], Rows x, int count, bool add) {
  multiply(products, x, count, add, [](int, int) {});
}

// -- the small operations ----------------------------------------------------------------------

// to may be x.
void normed(const float* x, const float* weight, int size, float epsilon, float* to) {
  F squares = {};
  int i = 0;
  for (; i + W <= size; i += W) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (; i < size; i++) total += x[i] * x[i];
  const float scale = 1 / std::sqrt(total / size + epsilon);
  for (i = 0; i + W <= size; i += W) store(to + i, load(x + i) * all(scale) * load(weight + i));
  for (; i < size; i++) to[i] = x[i] * scale * weight[i];
}

// Values 2j and 2j + 1 as one complex number.
void turn(float* x, const float* factors, int pairs) {
  for (int j = 0; j < pairs; j++, x += 2, factors += 2) {
    const float real = x[0] * factors[0] - x[1] * factors[1];
    x[1] = x[0] * factors[1] + x[1] * factors[0];
    x[0] = real;
  }
}

// gate = act(gate) * up
void gated(float* gate, const float* up, int count, bool is_gelu) {
  int i = 0;
  for (; i + W <= count; i += W) {
    const F g = load(gate + i);
    store(gate + i, (is_gelu ? gelu(g) : silu(g)) * load(up + i));
  }
  for (; i < count; i++) {
    const F g = all(gate[i]);
    gate[i] = (is_gelu ? gelu(g) : silu(g))[0] * up[i];
  }
}

// -- one step ----------------------------------------------------------------------------------

class Run {
 public:
  Run(const Model& model, const Step& step, Space& space) : m_(model), s_(step) {
    const int64_t sizes[] = {m_.width, larger_of(m_.width, m_.heads * m_.value_size),
                             (int64_t)m_.heads * m_.key_size, (int64_t)m_.kv_heads * m_.key_size,
                             (int64_t)m_.kv_heads * m_.value_size, m_.inner, m_.inner, m_.width,
                             m_.experts, m_.width, m_.width};
    Rows* rows[] = {&x_, &n_, &q_, &k_, &v_, &gate_, &up_, &result_, &scores_, &taken_, &given_};
    size_t total = 0;
    for (int64_t size : sizes) total += (size_t)stride_of((int)size) * s_.rows;
    float* at = space.floats(total);
    std::memset(at, 0, total * sizeof(float));  // padding must be zeros
    for (int i = 0; i < 11; i++) {
      *rows[i] = {at, stride_of((int)sizes[i])};
      at += rows[i]->stride * s_.rows;
    }
  }

  void operator()() {
    embed();
    for (int i = 0; i < m_.blocks; i++) {
      block(m_.layers[i], s_.caches[i]);
      if (i < s_.added_blocks) add(s_.added + (int64_t)i * s_.rows * m_.width);
    }
    if (s_.logit_rows) head();
  }

 private:
  const Model& m_;
  const Step& s_;
  Rows x_, n_, q_, k_, v_, gate_, up_, result_, scores_, taken_, given_;

  static int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

  template <class Fn>
  void each_row(int count, Fn fn) {  // fn(t)
    pool->each(chunks_of(count, ROWS_AT_A_TIME), [&](int chunk, int) {
      const int end = (chunk + 1) * ROWS_AT_A_TIME;
      for (int t = chunk * ROWS_AT_A_TIME; t < end && t < count; t++) fn(t);
    });
  }

  void embed() {
    const Matrix& e = m_.embedding;
    each_row(s_.rows, [&](int t) {
      float* to = x_.row(t);
      if (s_.ids)
        decode(e.type, e.row(s_.ids[t]), m_.width, to);
      else
        std::memcpy(to, s_.embedded + (int64_t)t * m_.width, m_.width * sizeof(float));
      if (s_.ids && m_.embedding_scale != 1)
        for (int i = 0; i < m_.width; i++) to[i] *= m_.embedding_scale;
    });
  }

  void add(const float* rows) {
    each_row(s_.rows, [&](int t) {
      for (int i = 0; i < m_.width; i++) x_.row(t)[i] += rows[(int64_t)t * m_.width + i];
    });
  }

  void block(const Layer& w, const Cache& cache) {
    norm(x_, w.attn_norm, n_, s_.rows);
    multiply<3>({{&w.q, q_}, {&w.k, k_}, {&w.v, v_}}, n_, s_.rows, false);
    each_row(s_.rows, [&](int t) { place(w, cache, t); });
    attend_all(w, cache);
    project(w.output, n_, w.attn_post_norm);
    norm(x_, w.ffn_norm, n_, s_.rows);
    feed_forward(w);
  }

  void norm(Rows from, const float* weight, Rows to, int count) {
    each_row(count, [&](int t) { normed(from.row(t), weight, m_.width, m_.norm_epsilon, to.row(t)); });
  }

  // x += input W^T, or its norm
  void project(const Matrix& w, Rows input, const float* post_norm) {
    if (!post_norm) return multiply<1>({{&w, x_}}, input, s_.rows, true);
    multiply<1>({{&w, result_}}, input, s_.rows, false);
    add_result(post_norm);
  }

  // x += result, or its norm
  void add_result(const float* post_norm) {
    each_row(s_.rows, [&](int t) {
      float* r = result_.row(t);
      if (post_norm) normed(r, post_norm, m_.width, m_.norm_epsilon, r);
      for (int i = 0; i < m_.width; i++) x_.row(t)[i] += r[i];
    });
  }

  // Norm and turn the heads of row t; keep its keys and values.
  void place(const Layer& w, const Cache& cache, int t) {
    const float* factors = s_.turns[w.turn] + (int64_t)t * s_.pairs[w.turn] * 2;
    const int64_t at = s_.first + t - cache.base;
    for (int h = 0; h < m_.heads; h++) {
      float* q = q_.row(t) + h * m_.key_size;
      if (w.q_norm) normed(q, w.q_norm, m_.key_size, m_.norm_epsilon, q);
      turn(q, factors, s_.pairs[w.turn]);
      for (int i = 0; i < m_.key_size; i++) q[i] *= m_.score_scale;
    }
    for (int h = 0; h < m_.kv_heads; h++) {
      float* k = k_.row(t) + h * m_.key_size;
      if (w.k_norm) normed(k, w.k_norm, m_.key_size, m_.norm_epsilon, k);
      turn(k, factors, s_.pairs[w.turn]);
      float* keys = cache.keys + h * m_.key_size * cache.capacity + at;
      for (int i = 0; i < m_.key_size; i++) keys[i * cache.capacity] = k[i];
      std::memcpy(cache.values + (h * cache.capacity + at) * m_.value_size,
                  v_.row(t) + h * m_.value_size, m_.value_size * sizeof(float));
    }
  }

  // n_ = the mixed values.
  void attend_all(const Layer& w, const Cache& cache) {
    const size_t edge = (size_t)m_.key_size * PANEL;
    const int64_t stride = stride_of(s_.rows == 1 ? PART + 2 * PANEL : s_.first + s_.rows + 2 * PANEL);
    for (int i = 0; i < pool->threads(); i++) {  // a thread must not fail to get memory
      threads_space[i].scores.floats(stride * TILE);
      threads_space[i].edge.floats(edge);
    }
    s_.rows == 1 ? attend_one(w, cache, stride) : attend_many(w, cache, stride);
  }

  HeadRows rows_of(const Cache& cache, int kv_head) const {
    return {cache.keys + kv_head * m_.key_size * cache.capacity,
            cache.values + kv_head * cache.capacity * m_.value_size, cache.capacity, m_.key_size, m_.value_size};
  }

  // Tiles of rows of one head, the last ones first: they have the most keys to look at.
  void attend_many(const Layer& w, const Cache& cache, int64_t stride) {
    const int tiles = chunks_of(s_.rows, TILE);
    pool->each(tiles * m_.heads, [&](int chunk, int thread) {
      const int head = chunk % m_.heads, begin = (tiles - 1 - chunk / m_.heads) * TILE;
      const int n = s_.rows - begin < TILE ? s_.rows - begin : TILE;
      int from[TILE], seen[TILE], end = 0;  // rows of the buffers
      for (int i = 0; i < n; i++) {
        seen[i] = s_.first - (int)cache.base + begin + i + 1;
        from[i] = w.window && seen[i] > w.window ? seen[i] - w.window : 0;
        if (s_.sight) seen[i] = s_.first - (int)cache.base + s_.sight[begin + i];
        end = seen[i] > end ? seen[i] : end;
      }
      ThreadSpace& own = threads_space[thread];
      const Rows out = {n_.row(begin) + head * m_.value_size, n_.stride};
      const Tile t = {n, {q_.row(begin) + head * m_.key_size, q_.stride}, from, seen, 0, end};
      Weight weights[TILE];
      attend(t, rows_of(cache, head / (m_.heads / m_.kv_heads)), {own.scores.floats(0), stride}, own.edge.floats(0),
             out, weights);
      for (int i = 0; i < n; i++)
        for (int j = 0; j < m_.value_size; j++) out.row(i)[j] /= weights[i].total;
    });
  }

  // A decode step: heads that share keys together, and PART rows of the sequence at a time.
  void attend_one(const Layer& w, const Cache& cache, int64_t stride) {
    const int seen = s_.first - (int)cache.base + 1, from = w.window && seen > w.window ? seen - w.window : 0;
    const int start = from / PANEL * PANEL, parts = chunks_of(seen - start, PART);
    const int share = m_.heads / m_.kv_heads, size = share < TILE ? share : TILE;
    const int tiles = chunks_of(share, size), values = m_.heads * m_.value_size;
    float* const mixed = parts_space.floats((size_t)parts * (values + 2 * m_.heads));
    Weight* const weights = reinterpret_cast<Weight*>(mixed + (size_t)parts * values);
    pool->each(parts * tiles * m_.kv_heads, [&](int chunk, int thread) {
      const int part = chunk % parts, kv_head = chunk / parts % m_.kv_heads;
      const int begin = chunk / parts / m_.kv_heads * size, head = kv_head * share + begin;
      const int n = share - begin < size ? share - begin : size;
      int froms[TILE], seens[TILE];
      for (int i = 0; i < n; i++) froms[i] = from, seens[i] = seen;
      ThreadSpace& own = threads_space[thread];
      const int first = start + part * PART;
      const Tile t = {n, {q_.at + head * m_.key_size, m_.key_size}, froms, seens, first, first + PART};
      attend(t, rows_of(cache, kv_head), {own.scores.floats(0), stride}, own.edge.floats(0),
             {mixed + (size_t)part * values + head * m_.value_size, m_.value_size}, weights + part * m_.heads + head);
    });
    for (int h = 0; h < m_.heads; h++)
      join(parts, mixed + h * m_.value_size, values, weights + h, m_.heads, m_.value_size, n_.at + h * m_.value_size);
  }

  void feed_forward(const Layer& w) {
    if (w.experts) return experts(w, *w.experts);
    gate_and_up(w.gate, w.up, n_, s_.rows);
    project(w.down, gate_, w.ffn_post_norm);
  }

  // gate_ = act(gate x) * (up x)
  void gate_and_up(const Matrix& gate, const Matrix& up, Rows x, int count) {
    if (count >= MANY) {
      multiply<2>({{&gate, gate_}, {&up, up_}}, x, count, false);
      each_row(count, [&](int t) { gated(gate_.row(t), up_.row(t), m_.inner, m_.is_gelu); });
      return;
    }
    const int size = rows_of_chunk(m_.inner);
    pool->each(chunks_of(m_.inner, size), [&](int chunk, int) {
      const int first = chunk * size, end = first + size < m_.inner ? first + size : m_.inner;
      few_rows(gate, first, end, x, count, gate_, false);
      few_rows(up, first, end, x, count, up_, false);
      for (int t = 0; t < count; t++)
        gated(gate_.row(t) + first, up_.row(t) + first, end - first, m_.is_gelu);
    });
  }

  // Each expert sees all of its rows at once.
  void experts(const Layer& w, const Experts& e) {
    multiply<1>({{&e.router, scores_}}, n_, s_.rows, false);
    std::vector<std::vector<Share>> shares(e.count);
    for (int t = 0; t < s_.rows; t++) {
      share_out(scores_.row(t), e, t, shares);
      std::memset(result_.row(t), 0, m_.width * sizeof(float));
    }
    for (int i = 0; i < e.count; i++) {
      const int count = (int)shares[i].size();
      if (!count) continue;
      for (int j = 0; j < count; j++)
        std::memcpy(taken_.row(j), n_.row(shares[i][j].row), m_.width * sizeof(float));
      Matrix gate = w.gate, up = w.up, down = w.down;
      gate.data += i * e.gate_bytes;
      up.data += i * e.up_bytes;
      down.data += i * e.down_bytes;
      gate_and_up(gate, up, taken_, count);
      multiply<1>({{&down, given_}}, gate_, count, false);
      for (int j = 0; j < count; j++)
        for (int k = 0; k < m_.width; k++)
          result_.row(shares[i][j].row)[k] += shares[i][j].share * given_.row(j)[k];
    }
    add_result(w.ffn_post_norm);
  }

  struct Share {
    int row;
    float share;
  };

  // The likeliest experts of softmax(scores), with probabilities scaled to a sum of 1.
  void share_out(float* scores, const Experts& e, int row, std::vector<std::vector<Share>>& shares) {
    std::vector<int> order(e.count);
    for (int i = 0; i < e.count; i++) order[i] = i;
    std::partial_sort(order.begin(), order.begin() + e.used, order.end(),
                      [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    float total = 0;
    const float most = scores[order[0]];
    for (int i = 0; i < e.used; i++) total += std::exp(scores[order[i]] - most);
    for (int i = 0; i < e.used; i++)
      shares[order[i]].push_back({row, std::exp(scores[order[i]] - most) / total});
  }

  void head() {
    const int from = s_.rows - s_.logit_rows;
    norm({x_.row(from), x_.stride}, m_.output_norm, n_, s_.logit_rows);
    multiply<1>({{&m_.head, {s_.logits, m_.head.out}}}, n_, s_.logit_rows, false);
  }
};

template <class Fn>
int guarded(Fn fn) {
  if (!pool) return 2;
  try {
    fn();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

extern "C" {

// Sizes of the structures, so that a binding can be refused that lays them out differently.
void ds4_sizes(int64_t* sizes) {
  sizes[0] = sizeof(Matrix);
  sizes[1] = sizeof(Layer);
  sizes[2] = sizeof(Model);
  sizes[3] = sizeof(Cache);
  sizes[4] = sizeof(Step);
  sizes[5] = sizeof(Experts);
  sizes[6] = sizeof(Delta);
}

// Ask the system to read these bytes of a mapped file soon.
void ds4_will_need(const void* data, int64_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
  const uintptr_t start = at / page * page;
  madvise((void*)start, (size_t)(at - start + (uintptr_t)bytes), MADV_WILLNEED);
}

// Start the threads, in place of those there were; 0, or 1 if they cannot be had.
int ds4_start(int threads) {
  if (pool && pool->threads() == threads) return 0;
  try {
    delete pool;
    pool = nullptr;
    delete[] threads_space;
    threads_space = nullptr;
    threads_space = new ThreadSpace[threads];
    pool = new Pool(threads);
    return 0;
  } catch (...) {
    return 1;
  }
}

// 0, 1 for no memory, 2 before ds4_start. One call at a time.
int ds4_step(const Model* model, const Step* step) {
  return guarded([&] { Run(*model, *step, step_space)(); });
}

// y [rows, out] = x [rows, in] W^T + b
int ds4_product(const Matrix* m, const float* x, float* y, int rows) {
  return guarded([&] {
    const int64_t stride = stride_of(m->in);
    float* padded = product_space.floats(stride * rows);
    for (int t = 0; t < rows; t++) {
      std::memcpy(padded + t * stride, x + (int64_t)t * m->in, m->in * sizeof(float));
      std::memset(padded + t * stride + m->in, 0, (stride - m->in) * sizeof(float));
    }
    multiply<1>({{m, {y, m->out}}}, {padded, stride}, rows, false);
  });
}

// The gated delta rule over all rows of `d`; 0, or 2 before ds4_start.
int ds4_delta(const Delta* d) {
  return guarded([&] { pool->each(delta_chunks(*d), [&](int chunk, int) { delta_chunk(*d, chunk); }); });
}

// Rows `ids` of the matrix to [count, in].
void ds4_rows(const Matrix* m, const int64_t* ids, int count, float* to) {
  float row[GROUP * 8 + 16];
  for (int t = 0; t < count; t++)
    for (int at = 0; at < m->in; at += 256) {
      const int n = m->in - at < 256 ? m->in - at : 256;
      decode(m->type, m->row(ids[t]) + bytes_before(m->type, at), n, row);
      std::memcpy(to + (int64_t)t * m->in + at, row, n * sizeof(float));
    }
}

}
