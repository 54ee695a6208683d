// The recurrence of replay in C++, over the arrays that simpar/engine/compiled/order.py gets: what a machine can do.
#include <algorithm>
#include <cstdint>

using i32 = std::int32_t;
using i64 = std::int64_t;

constexpr i32 LIST = 1 << 30;  // of second: the place of a list, where its length stands

extern "C" void recurrence(
    i64 nodes, const i32 *order, const i32 *first, const i32 *second, const i32 *more, const double *lasts,
    i64 per_step, i64 steps, double *time) {
    for (i64 base = 0; base < steps * per_step; base += per_step) {
        for (i64 place = 0; place < nodes; place++) {
            double latest = time[base + order[place]];
            // Before the first step everything has ended.
            i64 one = base + first[place], other = base + second[place];
            if (one >= 0) latest = std::max(latest, time[one]);
            if (second[place] < LIST) {
                if (other >= 0) latest = std::max(latest, time[other]);
            } else {
                const i32 *list = more + (second[place] - LIST);
                for (i32 index = 1; index <= list[0]; index++)
                    if (base + list[index] >= 0) latest = std::max(latest, time[base + list[index]]);
            }
            time[base + order[place]] = latest + lasts[order[place]];
        }
    }
}
