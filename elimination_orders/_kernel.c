/* Inner loops of the planner: elimination on bit sets, annealing, subset dynamic programming.
 *
 * Every function mirrors one in Python (bitgraph.py, search/annealer.py, search/subset_dp.py) and
 * gives the same result to the last bit: costs are integers, random numbers come from one 64-bit
 * congruential generator, and the few floating-point operations are single IEEE ones (compile with
 * -ffp-contract=off).  Change the two together.
 *
 * A state is one block of 64-bit words: rows of successors, rows of predecessors and, where the
 * kinds of edges count, rows of unit and of unit-or-constant successors; every row has `width` words.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t word;

typedef struct {
    int n, size, width, tracks;
    int64_t w_all, w_variable, w_add;
    word *kept;  /* row of eliminable outputs, whose incoming edges stay */
    word *start; /* state in which nothing is eliminated */
    size_t words;

    /* annealing */
    int *order, *best_order, *segment, *moved;
    int64_t *costs;  /* of every step of `order` */
    word **states;   /* states[i]: before step i of `order` */
    word *scratch;
    int64_t cost, best;
    uint64_t rng;
    int64_t evaluations;
    double surprise[1024];
} Planner;

#define ROW(base, i) ((base) + (size_t)(i) * W)
#define HAS(row, j) ((row)[(j) >> 6] >> ((j) & 63) & 1)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE int count(const word *row, const int W) {
    int total = 0;
    for (int k = 0; k < W; k++) total += __builtin_popcountll(row[k]);
    return total;
}

ALWAYS_INLINE int64_t step_cost(const Planner *P, const word *state, int v, const int W) {
    const size_t block = (size_t)P->size * W;
    const word *succ = state, *pred = state + block;
    const word *before = ROW(pred, v), *after = ROW(succ, v);
    int64_t result = P->w_all * count(before, W) * count(after, W);
    if (P->w_variable) {
        const word *unit = state + 2 * block, *constant = state + 3 * block;
        int s_plain = 0, s_constant = 0, p_plain = 0, p_constant = 0;
        for (int k = 0; k < W; k++) {
            s_plain += __builtin_popcountll(after[k] & ~ROW(unit, v)[k]);
            s_constant += __builtin_popcountll(ROW(constant, v)[k] & ~ROW(unit, v)[k]);
        }
        for (int k = 0; k < W; k++)
            for (word rest = before[k]; rest; rest &= rest - 1) {
                int p = k * 64 + __builtin_ctzll(rest);
                if (!HAS(ROW(unit, p), v)) {
                    p_plain++;
                    p_constant += (int)HAS(ROW(constant, p), v);
                }
            }
        result += P->w_variable * ((int64_t)p_plain * s_plain - (int64_t)p_constant * s_constant);
    }
    if (P->w_add) {
        int64_t sums = 0;
        for (int k = 0; k < W; k++)
            for (word rest = before[k]; rest; rest &= rest - 1) {
                const word *row = ROW(succ, k * 64 + __builtin_ctzll(rest));
                for (int l = 0; l < W; l++) sums += __builtin_popcountll(row[l] & after[l]);
            }
        result += P->w_add * sums;
    }
    return result;
}

ALWAYS_INLINE int64_t eliminate(const Planner *P, word *state, int v, const int W) {
    const size_t block = (size_t)P->size * W;
    word *succ = state, *pred = state + block;
    word before[W], after[W];
    memcpy(before, ROW(pred, v), W * sizeof(word));
    memcpy(after, ROW(succ, v), W * sizeof(word));
    const int64_t result = step_cost(P, state, v, W);
    const int keep = (int)HAS(P->kept, v);
    const word bit = (word)1 << (v & 63);
    const int at = v >> 6;
    if (P->tracks) {
        word *kinds[2] = {state + 2 * block, state + 3 * block};
        for (int k = 0; k < W; k++)
            for (word rest = before[k]; rest; rest &= rest - 1) {
                int p = k * 64 + __builtin_ctzll(rest);
                for (int t = 0; t < 2; t++) {
                    word *row = ROW(kinds[t], p);
                    const word *own = ROW(kinds[t], v), *there = ROW(succ, p);
                    const int through = (int)HAS(row, v);
                    for (int l = 0; l < W; l++) {
                        word fresh = through ? own[l] & after[l] & ~there[l] : 0;
                        row[l] = (row[l] & ~after[l]) | fresh;
                    }
                    if (!keep) row[at] &= ~bit;
                }
            }
        memset(ROW(kinds[0], v), 0, W * sizeof(word));
        memset(ROW(kinds[1], v), 0, W * sizeof(word));
    }
    for (int k = 0; k < W; k++)
        for (word rest = before[k]; rest; rest &= rest - 1) {
            word *row = ROW(succ, k * 64 + __builtin_ctzll(rest));
            for (int l = 0; l < W; l++) row[l] |= after[l];
            if (!keep) row[at] ^= bit;
        }
    for (int k = 0; k < W; k++)
        for (word rest = after[k]; rest; rest &= rest - 1) {
            word *row = ROW(pred, k * 64 + __builtin_ctzll(rest));
            row[at] ^= bit;
            for (int l = 0; l < W; l++) row[l] |= before[l];
        }
    memset(ROW(succ, v), 0, W * sizeof(word));
    if (!keep) memset(ROW(pred, v), 0, W * sizeof(word));
    return result;
}

/* -- annealing -------------------------------------------------------------------------------- */

ALWAYS_INLINE uint32_t draw(uint64_t *rng) {
    *rng = *rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*rng >> 33);
}

ALWAYS_INLINE int below(uint64_t *rng, int bound) {
    return (int)((uint64_t)draw(rng) * (uint64_t)bound >> 31);
}

ALWAYS_INLINE void set_order(Planner *P, const int *order, const int W) {
    memcpy(P->order, order, P->n * sizeof(int));
    memcpy(P->scratch, P->start, P->words * sizeof(word));
    P->cost = 0;
    for (int i = 0; i < P->n; i++) {
        memcpy(P->states[i], P->scratch, P->words * sizeof(word));
        P->costs[i] = eliminate(P, P->scratch, order[i], W);
        P->cost += P->costs[i];
    }
}

ALWAYS_INLINE void run(Planner *P, double temperature, int64_t moves, const int W) {
    const int n = P->n;
    int *order = P->order, *segment = P->segment;
    int64_t *costs = P->costs;
    uint64_t rng = P->rng;
    for (int64_t move = 0; move < moves; move++) {
        const int kind = below(&rng, 24);
        const int i = below(&rng, n);
        int lo, hi;
        if (kind < 12) { /* relocate one vertex */
            int j;
            if (kind < 6) {
                const int d = below(&rng, 16) - 8;
                j = i + d + (d >= 0);
                if (j < 0 || j >= n) continue;
            } else {
                j = below(&rng, n);
                if (i == j) continue;
            }
            if (i < j) {
                lo = i, hi = j;
                memcpy(segment, order + i + 1, (j - i) * sizeof(int));
                segment[j - i] = order[i];
            } else {
                lo = j, hi = i;
                segment[0] = order[i];
                memcpy(segment + 1, order + j, (i - j) * sizeof(int));
            }
        } else if (kind < 16) { /* swap two vertices */
            const int j = below(&rng, n);
            if (i == j) continue;
            lo = i < j ? i : j, hi = i < j ? j : i;
            memcpy(segment, order + lo, (hi - lo + 1) * sizeof(int));
            segment[0] = order[hi];
            segment[hi - lo] = order[lo];
        } else if (kind < 20) { /* move a block, perhaps reversed */
            const int length = 2 + below(&rng, 6);
            if (i + length > n) continue;
            const int j = below(&rng, n - length + 1);
            if (i == j) continue;
            const int backwards = below(&rng, 3) == 0;
            lo = i < j ? i : j, hi = (i < j ? j : i) + length - 1;
            const int at = j < i ? 0 : j - i;
            if (j < i) memcpy(segment + length, order + j, (i - j) * sizeof(int));
            else memcpy(segment, order + i + length, (j - i) * sizeof(int));
            for (int k = 0; k < length; k++)
                segment[at + k] = order[backwards ? i + length - 1 - k : i + k];
        } else { /* gather vertices that are neighbours in topological order */
            const int length = 2 + below(&rng, n);
            if (i + length > n) continue;
            int j = below(&rng, n - length + 1);
            const int arrangement = below(&rng, 3);
            if (below(&rng, 2)) j = below(&rng, 2) ? 0 : n - length;
            int *moved = P->moved;
            for (int k = 0, inside = j, outside = 0; k < n; k++) {
                const int v = order[k];
                if (v >= i && v < i + length) {
                    if (arrangement == 0) moved[inside++] = v;
                    else moved[j + (arrangement == 1 ? v - i : i + length - 1 - v)] = v;
                } else {
                    moved[outside < j ? outside : outside + length] = v;
                    outside++;
                }
            }
            for (lo = 0; lo < n && moved[lo] == order[lo];) lo++;
            if (lo == n) continue;
            for (hi = n - 1; moved[hi] == order[hi];) hi--;
            memcpy(segment, moved + lo, (hi - lo + 1) * sizeof(int));
        }
        int64_t old = 0, total = 0;
        for (int k = lo; k <= hi; k++) old += costs[k];
        const double slack = temperature * P->surprise[draw(&rng) >> 21];
        const double bound = (double)old + slack;
        P->evaluations++;
        memcpy(P->scratch, P->states[lo], P->words * sizeof(word));
        int k = 0;
        for (; k <= hi - lo; k++) {
            total += eliminate(P, P->scratch, segment[k], W);
            if ((double)total > bound) break;
        }
        if (k <= hi - lo) continue;
        P->cost += total - old;
        memcpy(order + lo, segment, (hi - lo + 1) * sizeof(int));
        for (k = lo; k < hi; k++) {
            memcpy(P->states[k + 1], P->states[k], P->words * sizeof(word));
            costs[k] = eliminate(P, P->states[k + 1], order[k], W);
            total -= costs[k];
        }
        costs[hi] = total;
        if (P->cost < P->best) {
            P->best = P->cost;
            memcpy(P->best_order, order, n * sizeof(int));
        }
    }
    P->rng = rng;
}

/* -- subset dynamic programming ----------------------------------------------------------------- */

typedef struct {
    const Planner *P;
    const int *members;
    int k;
    int64_t *best;       /* least cost of eliminating the subset */
    unsigned char *last; /* vertex eliminated last in an optimal order of the subset */
    word *stack;         /* one state per level of the recursion */
} Subsets;

/* Visits the subsets that contain `chosen` and differ in members below `level`, in increasing
 * order, so that every subset of a subset is final before it is visited itself. */
ALWAYS_INLINE void visit(Subsets *D, uint32_t chosen, const word *state, const int W) {
    for (int v = 0; v < D->k; v++) {
        if (chosen >> v & 1) continue;
        const uint32_t next = chosen | (uint32_t)1 << v;
        const int64_t cost = D->best[chosen] + step_cost(D->P, state, D->members[v], W);
        if (cost < D->best[next]) {
            D->best[next] = cost;
            D->last[next] = (unsigned char)v;
        }
    }
}

ALWAYS_INLINE void subsets(Subsets *D, const int W) {
    /* The recursion over members from the highest to the lowest, unrolled: subset m is the state of
     * m without its lowest member, after eliminating that one; it is kept on the level of that
     * member, where only subsets with a higher lowest member can have been before. */
    const size_t words = D->P->words;
    const uint32_t count = (uint32_t)1 << D->k;
    visit(D, 0, D->stack + (size_t)D->k * words, W);
    for (uint32_t m = 1; m < count; m++) {
        const int low = __builtin_ctz(m);
        const uint32_t parent = m & (m - 1);
        const int level = parent ? __builtin_ctz(parent) : D->k;
        word *state = D->stack + (size_t)low * words;
        memcpy(state, D->stack + (size_t)level * words, words * sizeof(word));
        eliminate(D->P, state, D->members[low], W);
        visit(D, m, state, W);
    }
}

/* -- what Python calls ---------------------------------------------------------------------------- */

#define DISPATCH(call)                      \
    switch (P->width) {                     \
        case 1: { enum { W = 1 }; call; break; } \
        case 2: { enum { W = 2 }; call; break; } \
        case 3: { enum { W = 3 }; call; break; } \
        case 4: { enum { W = 4 }; call; break; } \
        default: { const int W = P->width; call; } \
    }

void planner_free(Planner *P) {
    if (!P) return;
    if (P->states)
        for (int i = 0; i < P->n; i++) free(P->states[i]);
    free(P->states);
    free(P->kept);
    free(P->start);
    free(P->scratch);
    free(P->order);
    free(P->best_order);
    free(P->segment);
    free(P->moved);
    free(P->costs);
    free(P);
}

Planner *planner_new(int n, int size, int width, int tracks, const int64_t *weights,
                     const word *kept, const word *start) {
    Planner *P = calloc(1, sizeof(Planner));
    if (!P) return NULL;
    P->n = n, P->size = size, P->width = width, P->tracks = tracks;
    P->w_all = weights[0], P->w_variable = weights[1], P->w_add = weights[2];
    P->words = (size_t)size * width * (tracks ? 4 : 2);
    P->kept = malloc(width * sizeof(word));
    P->start = malloc(P->words * sizeof(word) + 1);
    P->scratch = malloc(P->words * sizeof(word) + 1);
    if (!P->kept || !P->start || !P->scratch) {
        planner_free(P);
        return NULL;
    }
    memcpy(P->kept, kept, width * sizeof(word));
    memcpy(P->start, start, P->words * sizeof(word));
    return P;
}

int64_t planner_evaluate(Planner *P, const int *order, int length) {
    int64_t total = 0;
    memcpy(P->scratch, P->start, P->words * sizeof(word));
    DISPATCH(for (int i = 0; i < length; i++) total += eliminate(P, P->scratch, order[i], W))
    return total;
}

/* Returns 0 when memory is short. */
int anneal_begin(Planner *P, const int *order, uint64_t rng, const double *surprise) {
    const int n = P->n;
    if (!P->states) {
        P->order = malloc((n + 1) * sizeof(int));
        P->best_order = malloc((n + 1) * sizeof(int));
        P->moved = malloc((n + 1) * sizeof(int));
        P->segment = malloc((n + 8) * sizeof(int));
        P->costs = malloc((n + 1) * sizeof(int64_t));
        P->states = calloc(n + 1, sizeof(word *));
        if (!P->order || !P->best_order || !P->segment || !P->moved || !P->costs || !P->states) return 0;
        for (int i = 0; i < n; i++)
            if (!(P->states[i] = malloc(P->words * sizeof(word) + 1))) return 0;
    }
    memcpy(P->surprise, surprise, sizeof P->surprise);
    DISPATCH(set_order(P, order, W))
    P->best = P->cost;
    memcpy(P->best_order, order, n * sizeof(int));
    P->rng = rng;
    P->evaluations = 0;
    return 1;
}

void anneal_set_order(Planner *P, const int *order) {
    DISPATCH(set_order(P, order, W))
    if (P->cost < P->best) {
        P->best = P->cost;
        memcpy(P->best_order, order, P->n * sizeof(int));
    }
}

void anneal_run(Planner *P, double temperature, int64_t moves) {
    DISPATCH(run(P, temperature, moves, W))
}

int64_t anneal_cost(const Planner *P) { return P->cost; }
int64_t anneal_evaluations(const Planner *P) { return P->evaluations; }

int64_t anneal_best(const Planner *P, int *order) {
    memcpy(order, P->best_order, P->n * sizeof(int));
    return P->best;
}

/* Optimal order of `members` after `prefix`; returns its cost, or -1 when memory is short. */
int64_t subset_dp(Planner *P, const int *prefix, int prefix_length, const int *members, int k,
                  int *order) {
    const uint32_t count = (uint32_t)1 << k;
    Subsets D = {.P = P, .members = members, .k = k};
    D.best = malloc(count * sizeof(int64_t));
    D.last = malloc(count);
    D.stack = malloc((size_t)(k + 1) * P->words * sizeof(word) + 1);
    int64_t result = -1;
    if (D.best && D.last && D.stack) {
        word *first = D.stack + (size_t)k * P->words;
        memcpy(first, P->start, P->words * sizeof(word));
        DISPATCH(for (int i = 0; i < prefix_length; i++) eliminate(P, first, prefix[i], W))
        for (uint32_t m = 0; m < count; m++) D.best[m] = INT64_MAX;
        D.best[0] = 0;
        DISPATCH(subsets(&D, W))
        result = D.best[count - 1];
        uint32_t m = count - 1;
        for (int i = k - 1; i >= 0; i--) {
            order[i] = members[D.last[m]];
            m &= ~((uint32_t)1 << D.last[m]);
        }
    }
    free(D.best);
    free(D.last);
    free(D.stack);
    return result;
}
