"""A clock of ticks for pipeline orders, written for the tests alone: slow, whole numbers, nothing clever."""


def ticks(order, seconds, steps=1):
    """Begin and end of each rank in each step: at every tick, each idle rank begins its next action if it can.

    Arguments: ``seconds``, whole ticks of F, I, W. Results are named with their step; B gives its gradient at its end.
    """
    seconds = {**seconds, 'B': seconds['I'] + seconds['W']}
    lists = [
        [(step, part) for step in range(steps) for action in row for part in action.parts] for row in order.actions
    ]
    done, begin, end = {}, {}, {}
    position, free, now = [0] * order.ranks, [0] * order.ranks, 0
    while any(at < len(todo) for at, todo in zip(position, lists, strict=True)):
        for rank, todo in enumerate(lists):
            while position[rank] < len(todo) and free[rank] <= now:
                step, action = todo[position[rank]]
                if any(done.get((step, *need), now + 1) > now for need in required(action, order.stages)):
                    break
                free[rank] = now + seconds[action.kind]
                begin.setdefault((rank, step), now)
                end[rank, step] = free[rank]
                done[step, 'F' if action.kind == 'F' else 'G', action.stage, action.micro_batch] = (
                    done.get((step, 'G', action.stage, action.micro_batch)) if action.kind == 'W' else free[rank]
                )
                position[rank] += 1
        now += 1
    return begin, end


def required(action, stages):
    s, m = action.stage, action.micro_batch
    if action.kind == 'F':
        return [('F', s - 1, m)] if s else []
    if action.kind == 'W':
        return [('G', s, m)]
    return [('F', s, m)] + ([('G', s + 1, m)] if s + 1 < stages else [])


def cold(order, **seconds):
    return max(ticks(order, seconds)[1].values())


def steady(order, **seconds):
    _, end = ticks(order, seconds, steps=3)
    return max(end[rank, 2] for rank in range(order.ranks)) - max(end[rank, 1] for rank in range(order.ranks))


def longest(order, **seconds):
    begin, end = ticks(order, seconds)
    return max(end[rank, 0] - begin[rank, 0] for rank in range(order.ranks))
