// The event loop in C++, over the arrays that simpar/engine/compiled/events.py gets: what a machine can do at most.
// The arithmetic is that of the kernel, to the bit; compile with -ffp-contract=off, so that none of it is fused.
#include <algorithm>
#include <cstdint>
#include <limits>

namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;

constexpr u32 NONE = 0xffffffff;
constexpr u32 NEXT_STEP = 1u << 31;  // of Op::next and a need: the op of the step behind, or before
constexpr u32 SEVERAL = 1u << 30;    // of Op::need: a place in the list of needs, where their count stands
constexpr u32 COMPUTES = NONE, CHAINED = NONE - 1;  // of Op::meeting
constexpr double ROUND = 4096.0;     // added and taken away again, it rounds a lesser time to the grid of 2^-40 s
constexpr int PLANNED = 16;          // ops of one plan

struct Op {
    double seconds, beside;
    u32 need, next, meeting, waiter;
};
struct Meeting {
    double alpha;
    u32 op, lead, load, first, members, missing;
};
struct Device {
    u32 computing, communicating, transferring, first_compute, first_communication, end;
};
enum State : u8 { IDLE, ISSUED, MEETS, LATENT, TRANSFERS, BEGUN, RUNS };
struct Stream {
    double since, remaining, speed;
    u32 op, last, step, place, lead, behind, slowing, device;
    u8 state, slowed, computing, marked;
    u32 checked;
};
struct Event {
    double time;
    u32 stream, free;
};
struct Flow {
    double top, speed;
    u32 links, solved;
};
struct Entry {
    double demand;
    u32 link, before, behind, stream;
};
struct Link {
    double left, share, demand;
    u32 head, seen;
};
struct Lengths {
    double now;
    u32 size, ready, begun, touched, over, free;
};
// The fields of World in records.py.
struct World {
    i64 steps, per_step, waiting_slows, widest;
    Op *ops;
    Meeting *meetings;
    const u32 *members, *needs;
    const i64 *load_start;
    const u32 *load_link;
    const double *load_demand;
    Device *devices;
    const u32 *beside;
    const double *issued;
    double *end;
    Stream *streams;
    Event *heap;
    Flow *flows;
    Entry *entries;
    Link *links;
    u32 *ready, *begun, *touched, *flowing, *found;
    Lengths *lengths;
};

double rounded(double time) { return time + ROUND - ROUND; }

struct Loop : World {
    u32 size, ready_count, begun_count = 0, touched_count = 0, over = 0;
    double now = 0.0;

    explicit Loop(const World &world) : World(world), size(world.lengths->size), ready_count(world.lengths->ready) {}

    void rise(u32 at, Event event) {
        while (at > 0) {
            u32 above = (at - 1) >> 1;
            if (heap[above].time <= event.time) break;
            heap[at] = heap[above];
            streams[heap[at].stream].place = at;
            at = above;
        }
        heap[at] = event;
        streams[event.stream].place = at;
    }
    void sink(u32 at, Event event) {
        // Behind the last event stands one that never comes, so that every event has two below it.
        heap[size].time = std::numeric_limits<double>::infinity();
        for (;;) {
            u32 below = 2 * at + 1;
            if (below >= size) break;
            below += heap[below + 1].time < heap[below].time;
            if (heap[below].time >= event.time) break;
            heap[at] = heap[below];
            streams[heap[at].stream].place = at;
            at = below;
        }
        heap[at] = event;
        streams[event.stream].place = at;
    }
    void push(u32 stream, double time) {
        u32 at = streams[stream].place;
        if (at == NONE) rise(size++, {time, stream, 0});
        else if (time < heap[at].time) rise(at, {time, stream, 0});
        else sink(at, {time, stream, 0});
    }
    u32 pop() {
        u32 stream = heap[0].stream;
        streams[stream].place = NONE;
        Event last = heap[--size];
        if (size) sink(0, last);
        return stream;
    }
    void touch(u32 stream) {
        if (!streams[stream].marked) {
            streams[stream].marked = 1;
            touched[touched_count++] = stream;
        }
    }
    void touch_computing(const Device &device) {
        for (u32 at = device.first_compute; at < device.first_communication; at++)
            if (streams[beside[at]].computing) touch(beside[at]);
    }
    void occupy(u32 number) {
        if (++devices[number].communicating == 1) touch_computing(devices[number]);
    }
    // Whether a need of the op that heads a stream has not ended; then the stream waits for it.
    bool blocked(u32 number, u32 need) {
        Stream &stream = streams[number];
        i64 step = stream.step;
        if (need & NEXT_STEP) step--;
        if (step < 0) return false;
        need &= ~NEXT_STEP;
        if (end[step * per_step + need] >= 0.0) return false;
        stream.behind = ops[need].waiter;
        ops[need].waiter = number;
        return true;
    }
    bool blocked_by_any(u32 number, u32 need) {
        if (!(need & SEVERAL)) return blocked(number, need);
        u32 at = need & ~SEVERAL;
        for (u32 &done = streams[number].checked; done < needs[at]; done++)
            if (blocked(number, needs[at + 1 + done])) return true;
        streams[number].checked = 0;
        return false;
    }
    void finish(u32 op, u32 step) {
        end[step * per_step + op] = now;
        for (u32 stream = ops[op].waiter; stream != NONE; stream = streams[stream].behind) ready[ready_count++] = stream;
        ops[op].waiter = NONE;
    }
    // Let the next op head a stream; returns whether there is one.
    bool go_on(Stream &stream, u32 next) {
        stream.state = IDLE;
        stream.op = next & ~NEXT_STEP;
        if (next & NEXT_STEP) stream.step++;
        if (stream.step < steps) return true;
        over++;
        return false;
    }
    void advance(u32 number) {
        Stream &stream = streams[number];
        for (;;) {
            const Op &op = ops[stream.op];
            if (op.need != NONE && blocked_by_any(number, op.need)) return;
            double issue = issued[stream.step * per_step + stream.op];
            if (issue > now) {
                stream.state = ISSUED;
                push(number, issue);
                return;
            }
            if (!start(number)) return;
        }
    }
    // Start the op that heads a stream; returns whether it took no time and another heads the stream.
    bool start(u32 number) {
        Stream &stream = streams[number];
        const Op &op = ops[stream.op];
        if (op.meeting < CHAINED) {
            meet(number, op.meeting);
            return false;
        }
        if (op.seconds == 0.0) {
            finish(stream.op, stream.step);
            return go_on(stream, op.next);
        }
        if (!stream.computing) {
            stream.computing = 1;
            Device &device = devices[stream.device];
            if (++device.computing == 1 && device.transferring) slow_transfers(device);
        }
        stream.remaining = op.seconds;
        stream.state = BEGUN;
        begun[begun_count++] = number;
        return false;
    }
    void slow_transfers(const Device &device) {
        for (u32 at = device.first_communication; at < device.end; at++) {
            u32 lead = streams[beside[at]].lead;
            if (lead != NONE && ++streams[lead].slowing == 1) touch(lead);
        }
    }
    void free_transfers(const Device &device) {
        for (u32 at = device.first_communication; at < device.end; at++) {
            u32 lead = streams[beside[at]].lead;
            if (lead != NONE && --streams[lead].slowing == 0) touch(lead);
        }
    }
    void meet(u32 number, u32 which) {
        Meeting &meeting = meetings[which];
        streams[number].state = MEETS;
        if (waiting_slows) occupy(streams[number].device);
        if (--meeting.missing) return;
        meeting.missing = meeting.members;
        if (!waiting_slows)
            for (u32 i = 0; i < meeting.members; i++) occupy(streams[members[meeting.first + i]].device);
        Stream &lead = streams[meeting.lead];
        const Op &op = ops[meeting.op];
        lead.since = now + meeting.alpha;
        lead.remaining = op.seconds;
        lead.speed = 0.0;
        lead.state = TRANSFERS;
        if (op.seconds == 0.0) {
            push(meeting.lead, lead.since);
        } else if (meeting.load != NONE && lead.since > now) {
            lead.state = LATENT;
            push(meeting.lead, lead.since);
        } else {
            transfer(meeting.lead, meeting);
        }
    }
    void transfer(u32 number, const Meeting &meeting) {
        Stream &lead = streams[number];
        lead.state = TRANSFERS;
        lead.slowing = 0;
        if (meeting.load != NONE) join_links(number, meeting.load);
        if (ops[meeting.op].beside < 1.0)
            for (u32 i = 0; i < meeting.members; i++) {
                Stream &member = streams[members[meeting.first + i]];
                member.lead = number;
                devices[member.device].transferring++;
                lead.slowing += devices[member.device].computing > 0;
            }
        touch(number);
    }
    void join_links(u32 number, u32 load) {
        flows[number].top = 0.0;
        flows[number].links = static_cast<u32>(load_start[load + 1] - load_start[load]);
        i64 at = number * widest;
        for (i64 i = load_start[load]; i < load_start[load + 1]; i++, at++) {
            Link &link = links[load_link[i]];
            entries[at] = {load_demand[i], load_link[i], NONE, link.head, number};
            if (link.head != NONE) entries[link.head].before = static_cast<u32>(at);
            link.head = static_cast<u32>(at);
        }
    }
    void leave_links(u32 number) {
        for (i64 at = number * widest; at < number * widest + flows[number].links; at++) {
            const Entry &entry = entries[at];
            Link &link = links[entry.link];
            if (entry.before != NONE) entries[entry.before].behind = entry.behind;
            else link.head = entry.behind;
            if (entry.behind != NONE) entries[entry.behind].before = entry.before;
            // Their ceilings are as before, but their shares are not.
            for (u32 other = link.head; other != NONE; other = entries[other].behind) {
                flows[entries[other].stream].top = 0.0;
                touch(entries[other].stream);
            }
        }
        flows[number].links = 0;
    }
    void end_run(u32 number) {
        Stream &stream = streams[number];
        finish(stream.last, stream.step);
        if (go_on(stream, ops[stream.last].next)) advance(number);
        // What follows on the stream has started, so that op after op does not look like a change to the device.
        if (stream.state != BEGUN) {
            stream.computing = 0;
            Device &device = devices[stream.device];
            if (--device.computing == 0 && device.transferring) free_transfers(device);
        }
    }
    void end_meeting(u32 number) {
        Stream &lead = streams[number];
        const Meeting &meeting = meetings[ops[lead.op].meeting];
        finish(lead.op, lead.step);
        if (flows[number].links) leave_links(number);
        for (u32 i = 0; i < meeting.members; i++) {
            u32 one = members[meeting.first + i];
            Stream &member = streams[one];
            Device &device = devices[member.device];
            if (member.lead != NONE) {
                member.lead = NONE;
                device.transferring--;
            }
            if (--device.communicating == 0) touch_computing(device);
            if (go_on(member, ops[member.op].next)) ready[ready_count++] = one;
        }
    }
    void happen(u32 number) {
        Stream &stream = streams[number];
        if (stream.state == RUNS) end_run(number);
        else if (stream.state == TRANSFERS) end_meeting(number);
        else if (stream.state == LATENT) transfer(number, meetings[ops[stream.op].meeting]);
        else if (start(number)) advance(number);
    }
    // Work out when the ops of a run end, from the one in progress on, and when the last of them does.
    void plan(u32 number, bool slow) {
        Stream &stream = streams[number];
        stream.slowed = slow;
        stream.since = now;
        u32 op = stream.op;
        double *ends = end + stream.step * per_step;
        const double *issues = issued + stream.step * per_step;
        double time = rounded(now + (slow ? stream.remaining / ops[op].beside : stream.remaining));
        for (int more = 1; ops[op].meeting == CHAINED && more < PLANNED; more++) {
            u32 next = ops[op].next;
            if (issues[next] > time) break;
            ends[op] = time;
            op = next;
            time = rounded(time + (slow ? ops[op].seconds / ops[op].beside : ops[op].seconds));
        }
        stream.last = op;
        push(number, time);
    }
    void replan(u32 number) {
        Stream &stream = streams[number];
        bool slow = devices[stream.device].communicating > 0;
        if (slow == stream.slowed) return;
        const double *ends = end + stream.step * per_step;
        while (stream.op != stream.last && ends[stream.op] <= now) {
            stream.since = ends[stream.op];
            stream.op = ops[stream.op].next;
            stream.remaining = ops[stream.op].seconds;
        }
        settle(stream, slow ? 1.0 : ops[stream.op].beside);
        plan(number, slow);
    }
    void settle(Stream &stream, double speed) {
        stream.remaining = std::max(stream.remaining - speed * (now - stream.since), 0.0);
        stream.since = now;
    }
    void set_speed(u32 number, double speed) {
        Stream &stream = streams[number];
        if (speed == stream.speed) return;
        if (now > stream.since) settle(stream, stream.speed);
        stream.speed = speed;
        push(number, rounded(stream.since + stream.remaining / speed));
    }
    void solve() {
        for (u32 i = 0; i < begun_count; i++) {
            u32 number = begun[i];
            streams[number].state = RUNS;
            plan(number, devices[streams[number].device].communicating > 0);
        }
        begun_count = 0;
        u32 count = 0;
        for (u32 i = 0; i < touched_count; i++) {
            u32 number = touched[i];
            Stream &stream = streams[number];
            stream.marked = 0;
            if (stream.state == RUNS) {
                replan(number);
            } else if (stream.state == TRANSFERS && ops[stream.op].seconds > 0.0) {
                double ceiling = stream.slowing ? ops[stream.op].beside : 1.0;
                if (!flows[number].links) {
                    set_speed(number, ceiling);
                } else if (ceiling != flows[number].top) {
                    flows[number].top = ceiling;
                    flowing[count++] = number;
                }
            }
        }
        touched_count = 0;
        if (count == 1 && is_alone(flowing[0])) set_speed(flowing[0], alone(flowing[0]));
        else if (count) share_links(count);
    }
    bool is_alone(u32 number) const {
        for (i64 at = number * widest; at < number * widest + flows[number].links; at++)
            if (entries[at].before != NONE || entries[at].behind != NONE) return false;
        return true;
    }
    double alone(u32 number) const {
        double speed = flows[number].top;
        for (i64 at = number * widest; at < number * widest + flows[number].links; at++)
            speed = std::min(speed, 1.0 / entries[at].demand);
        return speed;
    }
    // Max-min fair speeds of the first flows in the list, and of all that share links with them.
    void share_links(u32 count) {
        u32 found_count = 0;
        for (u32 i = 0; i < count; i++) flows[flowing[i]].solved = 1;
        // The list grows while it is walked: a breadth-first search.
        for (u32 i = 0; i < count; i++) {
            u32 number = flowing[i];
            for (i64 at = number * widest; at < number * widest + flows[number].links; at++) {
                Link &link = links[entries[at].link];
                if (link.seen) continue;
                link.seen = 1;
                link.left = 1.0;
                found[found_count++] = entries[at].link;
                for (u32 other = link.head; other != NONE; other = entries[other].behind) {
                    u32 neighbour = entries[other].stream;
                    if (!flows[neighbour].solved) {
                        flows[neighbour].solved = 1;
                        flowing[count++] = neighbour;
                    }
                }
            }
        }
        for (u32 i = 0; i < found_count; i++) links[found[i]].seen = 0;
        for (u32 rising = count; rising;) rising = fix(rising, found_count);
        for (u32 i = 0; i < count; i++) {
            flows[flowing[i]].solved = 0;
            set_speed(flowing[i], flows[flowing[i]].speed);
        }
    }
    // Let flows rise until one meets its top or a link is full; returns how many rise on.
    u32 fix(u32 rising, u32 found_count) {
        for (u32 i = 0; i < found_count; i++) links[found[i]].demand = 0.0;
        double level = std::numeric_limits<double>::infinity();
        for (u32 i = 0; i < rising; i++) {
            level = std::min(level, flows[flowing[i]].top);
            demand(flowing[i]);
        }
        for (u32 i = 0; i < found_count; i++) {
            Link &link = links[found[i]];
            link.share = link.demand > 0.0 ? link.left / link.demand : std::numeric_limits<double>::infinity();
            level = std::min(level, link.share);
            link.demand = 0.0;
        }
        u32 kept = 0;
        for (u32 i = 0; i < rising; i++) {
            u32 number = flowing[i];
            if (is_fixed(number, level)) {
                flows[number].speed = level;
                demand(number);
            } else {
                std::swap(flowing[i], flowing[kept++]);
            }
        }
        for (u32 i = 0; i < found_count; i++) {
            Link &link = links[found[i]];
            if (link.demand > 0.0) link.left -= level * link.demand;
        }
        return kept;
    }
    void demand(u32 number) {
        for (i64 at = number * widest; at < number * widest + flows[number].links; at++)
            links[entries[at].link].demand += entries[at].demand;
    }
    bool is_fixed(u32 number, double level) const {
        if (flows[number].top <= level) return true;
        for (i64 at = number * widest; at < number * widest + flows[number].links; at++)
            if (links[entries[at].link].share <= level) return true;
        return false;
    }
    void run() {
        for (;;) {
            // Everything of this instant, and then the speeds: what ends and begins at once must not look like a change.
            for (;;) {
                if (ready_count) {
                    advance(ready[--ready_count]);
                } else if (size && heap[0].time == now) {
                    happen(pop());
                } else {
                    break;
                }
            }
            solve();
            if (!size) return;
            now = heap[0].time;
        }
    }
};

}  // namespace

extern "C" i64 events(const World *world) {
    Loop loop(*world);
    loop.run();
    return loop.over;
}
