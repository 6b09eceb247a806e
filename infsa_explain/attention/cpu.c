/* Pure InfSA on a CPU: the passes of tiled.py, six rows of the graph A = relu(q k^T) at a time.

   16 columns of these rows are summed in registers, some more wait in the first cache; then they
   are used and forgotten. Arrays are dense and of floats: q (G, N, D), k (G, M, D), v (G, M, E),
   with D and E, multiples of 16, from the compiler's command line. "Panels" hold k or v in
   (G, ceil(M / 16), width, 16), zeros beyond M, so that 16 columns are read as they are needed.
   Vectors of eight floats, as GCC and Clang have them; graphs are shared among threads by OpenMP,
   PyTorch's own where the libraries have one name. */

#define ROWS 6
#define COLUMNS (D + E <= 64 ? 128 : 64)
#define INLINE static inline __attribute__((always_inline))
#define EACH_ROW _Pragma("GCC unroll 6") for (int i = 0; i < rows; i++)
#define EACH_HALF _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++)

typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
typedef int Bits __attribute__((vector_size(32)));
#define PADDED(tokens) (((tokens) + 15) / 16 * 16)

typedef float Tile[ROWS][COLUMNS];

INLINE Vector *at(const float *x) { return (Vector *)x; }
INLINE Vector where(Bits condition, Vector x) { return (Vector)((Bits)x & condition); }
INLINE Vector relu(Vector x) { return where(~(x < 0), x); } /* NaN stays */

/* Rows of x times one panel. */
INLINE void multiply(Vector sum[ROWS][2], const float *x, const float *panel, int width, int rows) {
  EACH_ROW EACH_HALF sum[i][h] = (Vector){0};
  for (int w = 0; w < width; w++, panel += 16) {
    Vector y[2] = {*at(panel), *at(panel + 8)};
    EACH_ROW EACH_HALF sum[i][h] += x[i * width + w] * y[h];
  }
}

/* out += tile y, a row of `out` for every row of the tile. */
INLINE void add_product(float *out, Tile tile, const float *y, int width, int rows, int columns) {
  for (int w = 0; w < width; w += 16) {
    Vector sum[ROWS][2];
    EACH_ROW EACH_HALF sum[i][h] = (Vector){0};
    for (int j = 0; j < columns; j++) {
      Vector y_j[2] = {*at(y + j * width + w), *at(y + j * width + w + 8)};
      EACH_ROW EACH_HALF sum[i][h] += tile[i][j] * y_j[h];
    }
    EACH_ROW EACH_HALF *at(out + i * width + w + 8 * h) += sum[i][h];
  }
}

/* out += tile^T x, a row of `out` for every column of the tile. */
INLINE void add_transposed(float *out, Tile tile, const float *x, int width, int rows,
                           int columns) {
  for (int w = 0; w < width; w += 16) {
    Vector x_i[ROWS][2];
    EACH_ROW EACH_HALF x_i[i][h] = *at(x + i * width + w + 8 * h);
    for (int j = 0; j < columns; j++) {
      Vector sum[2] = {{0}, {0}};
      EACH_ROW EACH_HALF sum[h] += tile[i][j] * x_i[i][h];
      EACH_HALF *at(out + j * width + w + 8 * h) += sum[h];
    }
  }
}

/* Adds a block of A times v to the product; returns the block's sum of squares. */
INLINE double forward_block(const float *q, const float *k_panels, const float *v, float *product,
                            int rows, int columns) {
  Tile tile;
  Vector squares = {0};
  for (int j = 0; j < columns; j += 16) {
    Vector a[ROWS][2];
    multiply(a, q, k_panels + j * D, D, rows);
    EACH_ROW EACH_HALF {
      a[i][h] = relu(a[i][h]);
      squares += a[i][h] * a[i][h];
      *at(&tile[i][j + 8 * h]) = a[i][h];
    }
  }
  add_product(product, tile, v, E, rows, columns);
  double sum = 0;
  for (int lane = 0; lane < 8; lane++) sum += squares[lane];
  return sum;
}

/* product (G, N, E), zeros before; squares (G,). */
void forward(const float *q, const float *k_panels, const float *v, float *product,
             double *squares, long G, long N, long M, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long graph = 0; graph < G; graph++) {
    const float *q_g = q + graph * N * D, *v_g = v + graph * M * E;
    const float *k_g = k_panels + graph * PADDED(M) * D;
    float *product_g = product + graph * N * E;
    double sum = 0;
    for (long j = 0; j < M; j += COLUMNS) {
      int columns = M - j < COLUMNS ? M - j : COLUMNS;
      for (long i = 0; i < N;) {
#define BLOCK(rows) \
  forward_block(q_g + i * D, k_g + j * D, v_g + j * E, product_g + i * E, rows, columns)
        if (i + ROWS <= N) sum += BLOCK(ROWS), i += ROWS;
        else sum += BLOCK(1), i += 1;
#undef BLOCK
      }
    }
    squares[graph] = sum;
  }
}

/* Adds what a block of A adds to the gradients; `share` is h / norm. */
INLINE void backward_block(const float *q, const float *k, const float *k_panels,
                           const float *v_panels, const float *g, float share, float *dq,
                           float *dk, float *dv, int rows, int columns) {
  Tile tile, towards;
  for (int j = 0; j < columns; j += 16) {
    Vector a[ROWS][2], t[ROWS][2];
    multiply(a, q, k_panels + j * D, D, rows);
    EACH_ROW EACH_HALF *at(&tile[i][j + 8 * h]) = relu(a[i][h]);
    multiply(t, g, v_panels + j * E, E, rows);
    EACH_ROW EACH_HALF {
      Vector positive = *at(&tile[i][j + 8 * h]);
      *at(&towards[i][j + 8 * h]) = where(~(positive <= 0), t[i][h] + share * positive);
    }
  }
  add_transposed(dv, tile, g, E, rows, columns);
  add_transposed(dk, towards, q, D, rows, columns);
  add_product(dq, towards, k, D, rows, columns);
}

/* g (G, N, E), share (G,); dq, dk and dv as q, k and v, zeros before. */
void backward(const float *q, const float *k, const float *k_panels, const float *v_panels,
              const float *g, const float *share, float *dq, float *dk, float *dv, long G, long N,
              long M, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long graph = 0; graph < G; graph++) {
    long nd = graph * N * D, md = graph * M * D, ne = graph * N * E, me = graph * M * E;
    const float *k_g = k_panels + graph * PADDED(M) * D, *v_g = v_panels + graph * PADDED(M) * E;
    for (long j = 0; j < M; j += COLUMNS) {
      int columns = M - j < COLUMNS ? M - j : COLUMNS;
      for (long i = 0; i < N;) {
#define BLOCK(rows)                                                                          \
  backward_block(q + nd + i * D, k + md + j * D, k_g + j * D, v_g + j * E, g + ne + i * E,   \
                 share[graph], dq + nd + i * D, dk + md + j * D, dv + me + j * E, rows, columns)
        if (i + ROWS <= N) BLOCK(ROWS), i += ROWS;
        else BLOCK(1), i += 1;
#undef BLOCK
      }
    }
  }
}
