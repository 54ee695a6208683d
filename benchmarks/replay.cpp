// The recurrence of replay in C++, over the arrays that simpar/engine/compiled/order.py gets: what a machine can do.
#include <algorithm>
#include <cstdint>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 LIST = 1u << 31;  // added to the place of a list, where its length stands

extern "C" void recurrence(
    u64 nodes, const u32 *order, const u32 *first, const u32 *second, const u32 *more, const double *lasts,
    u64 per_step, u64 steps, double *time) {
    for (u64 step = 0; step < steps; step++) {
        // Before the first step everything has ended; unsigned numbers wrap around.
        const u64 begin = step * per_step, before = begin - per_step, known = step ? 0 : per_step;
        for (u64 place = 0; place < nodes; place++) {
            double latest = time[begin + order[place]];
            const u32 one = first[place], other = second[place];
            if (one >= known) latest = std::max(latest, time[before + one]);
            if (other < LIST) {
                if (other >= known) latest = std::max(latest, time[before + other]);
            } else {
                const u32 *list = more + (other - LIST);
                for (u32 index = 1; index <= list[0]; index++)
                    if (list[index] >= known) latest = std::max(latest, time[before + list[index]]);
            }
            time[begin + order[place]] = latest + lasts[order[place]];
        }
    }
}
