"""The diagrams of time and of reductions, each a function that returns an SVG. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from docs import data_flow
from docs.diagrams import COLOURS
from docs.drawing import BAND, GRADIENTS, INK, LINE, MARGIN, MEANS, SOFT, WEIGHTS, WIDTH, Box, Drawing
from variable_mgr.reductions.algorithms import find

_LANE, _LEFT, _TOP = 34, 116, 78
Block = tuple[int, float, float, str, str]  # lane, begin, end, text, fill


def _timeline(title: str, below: str, lanes: Sequence[str], blocks: Sequence[Block], facts: dict[str, str]) -> str:
    """Draws blocks in lanes; time goes to the right, in units of which the widest lane has as many as fit."""
    drawing = Drawing(title, below)
    unit = (WIDTH - MARGIN - _LEFT) / max(end for _, _, end, _, _ in blocks)
    for number, name in enumerate(lanes):
        y = _TOP + number * _LANE
        drawing.text(MARGIN, y + 19, name, size=13, anchor="start", bold=True)
        drawing.line([(_LEFT, y + _LANE - 3), (WIDTH - MARGIN, y + _LANE - 3)], arrow=False)
    for lane, begin, end, text, fill in blocks:
        box = Box(_LEFT + begin * unit + 1, _TOP + lane * _LANE, (end - begin) * unit - 2, _LANE - 8, "")
        drawing.rectangle(box, fill=fill, stroke=LINE if fill == BAND else fill)
        colour = INK if fill == BAND else "#fff"
        drawing.text(box.middle[0], box.top + 18, text, size=12, colour=colour)
    bottom = _TOP + len(lanes) * _LANE
    drawing.text(WIDTH - MARGIN, bottom + 13, "time \N{RIGHTWARDS ARROW}", size=12, colour=SOFT, anchor="end")
    return drawing.svg(drawing.facts(bottom + 34, facts))


def step_synchronous() -> str:
    """All wait for the mean."""
    blocks: list[Block] = []
    for step in range(3):
        begin = 5.2 * step
        for lane, seconds in ((0, 3.0), (1, 3.5)):
            blocks.append((lane, begin, begin + seconds, f"compute {step + 1}", BAND))
            blocks.append((lane, begin + 4.5, begin + 5.2, f"{step + 1}", MEANS))
        blocks.append((2, begin + 3.5, begin + 4.5, f"{step + 1}", GRADIENTS))
    facts = {
        "Orange": "the gradients of this step are exchanged, and every update waits for them",
        "Green": "update of the weights",
        "At step t": f"applies the gradient {data_flow.explained('replicated').applied}",
    }
    lanes = ("GPU 0", "GPU 1", "exchange")
    return _timeline(
        "Synchronous: a step waits for the slowest GPU and the exchange",
        "--variable_update=replicated",
        lanes,
        blocks,
        facts,
    )


def step_relaxed() -> str:
    """The exchange overlaps with the next step's computing."""
    blocks: list[Block] = []
    for step in range(4):
        begin = 4.1 * step
        for lane, seconds in ((0, 3.0), (1, 3.4)):
            blocks.append((lane, begin, begin + seconds, f"compute {step + 1}", BAND))
            if step:
                blocks.append((lane, begin + 3.4, begin + 4.1, f"{step}", MEANS))
        if step:
            blocks.append((2, begin, begin + 1.6, f"{step}", GRADIENTS))
    facts = {
        "Orange": "the gradients of the step before are exchanged while this step is computed",
        "Green": "update of the weights by the gradient of the step before",
        "At step t": f"applies the gradient {data_flow.explained('replicated', relaxed_consistency=True).applied}",
    }
    title = "Relaxed consistency: the exchange overlaps with computing"
    flags = "--variable_update=replicated --variable_consistency=relaxed"
    return _timeline(title, flags, ("GPU 0", "GPU 1", "exchange"), blocks, facts)


def step_staged() -> str:
    """Fetching weights overlaps with computing."""
    blocks: list[Block] = []
    for step in range(4):
        begin = 3.8 * step
        blocks.append((0, begin, begin + 1.7, f"for {step + 2}", WEIGHTS))
        blocks.append((1, begin, begin + 3.4, f"compute {step + 1}", BAND))
        if step:
            blocks.append((2, begin + 1.7, begin + 3.0, f"of {step}", MEANS))
    facts = {
        "Blue": "weights are fetched for the next step while this one is computed",
        "Green": "the gradient of the step before updates the weights, after they have been fetched",
        "At step t": f"applies the gradient {data_flow.explained('parameter_server', staged_vars=True).applied}",
    }
    title = "Staged variables: fetching weights overlaps with computing"
    flags = "--variable_update=parameter_server --staged_vars"
    return _timeline(title, flags, ("fetch", "all GPUs", "update"), blocks, facts)


def step_asynchronous() -> str:
    """Every GPU at its own pace, with the staleness of each update."""
    seconds, end = (2.6, 3.1, 4.3), 13.5
    steps = [(gpu, n * own, (n + 1) * own) for gpu, own in enumerate(seconds) for n in range(int(end / own))]
    blocks: list[Block] = []
    for gpu, begin, finished in steps:
        stale = sum(begin < other < finished for its, _, other in steps if its != gpu)
        blocks += [(gpu, begin, finished - 0.45, "compute", BAND), (gpu, finished - 0.45, finished, f"{stale}", MEANS)]
    facts = {
        "Green": "the GPU updates the shared weights; the number is the staleness of its gradient: how many updates by "
        "other GPUs came between its reading of the weights and its own update",
        "At step t": f"applies the gradient {data_flow.explained('parameter_server', asynchronous=True).applied}",
    }
    title = "Asynchronous: no GPU waits for another"
    flags = "--variable_update=parameter_server --cross_replica_sync=false"
    return _timeline(title, flags, ("GPU 0", "GPU 1", "GPU 2"), blocks, facts)


def step_local_sgd() -> str:
    """Steps alone, then the mean of the weights."""
    blocks: list[Block] = []
    for turn in range(2):
        begin = turn * 10.4
        for lane, seconds in ((0, 2.1), (1, 2.25)):
            for step in range(4):
                start = begin + step * seconds
                blocks.append((lane, start, start + seconds - 0.5, f"{4 * turn + step + 1}", BAND))
                blocks.append((lane, start + seconds - 0.5, start + seconds, "", MEANS))
        blocks.append((2, begin + 9.0, begin + 10.4, f"{4 * turn + 4}", WEIGHTS))
    facts = {
        "Green": "each GPU updates its own copy by its own gradient",
        "Blue": "the mean of the weights of all GPUs replaces every copy",
        "Arithmetic": data_flow.explained("local_sgd", local_sgd_steps=4).deviation,
    }
    flags = "--variable_update=local_sgd --local_sgd_steps=4"
    return _timeline(
        "Local SGD: GPUs exchange only every K steps", flags, ("GPU 0", "GPU 1", "exchange"), blocks, facts
    )


def reductions() -> str:
    """Which GPU sends to which, for each algorithm."""
    drawing = Drawing("Reductions: which device sends to which, for one tensor on 4 GPUs")
    width, height = (WIDTH - 2 * MARGIN - 20) / 3, 262
    for number, name in enumerate(("pscpu", "psgpu", "hierarchical", "xring", "rechd", "pscpu/xring")):
        panel = Box(MARGIN + number % 3 * (width + 10), 50 + number // 3 * (height + 10), width, height, name)
        _reduction(drawing, panel)
    colours = [(GRADIENTS, "gradients and sums of them"), (MEANS, "means")]
    drawing.legend(50 + 2 * (height + 10) + 20, colours)
    return drawing.svg(50 + 2 * (height + 10) + 36)


def _reduction(drawing: Drawing, panel: Box) -> None:
    """Draws one algorithm: the GPUs at the corners, a host in the middle, or one for each of two workers."""
    drawing.rectangle(panel, fill="#fff")
    drawing.text(panel.middle[0], panel.top + 22, panel.title, bold=True, mono=True)
    across = "/" in panel.title
    left, right, top, low = panel.left + 12, panel.left + panel.width - 68, panel.top + 42, panel.top + 192
    corners = ((left, top), (right, top), (left, low), (right, low))
    boxes: dict[str, Box] = {}
    for tower, corner in enumerate(corners if across else (*corners[:2], corners[3], corners[2])):
        gpu, worker = (tower % 2, f"worker {tower // 2}, ") if across else (tower, "")
        boxes[f"{worker}GPU {gpu}"] = Box(*corner, 56, 28, f"GPU {gpu}")
    sent = data_flow.of_reduction(panel.title, workers=2 if across else 1)
    named = {end for source, target, _ in sent for end in (source, target)}
    for host, y in (("host", 0.5), ("worker 0", 0.3), ("worker 1", 0.7)):
        if host in named:
            boxes[host] = Box(panel.middle[0] - 34, top + y * (low - top), 68, 28, host)
    for source, target, what in sorted(sent):
        aside = 9 if (source, target, "gradients") in sent and what == "means" else 4
        drawing.arrow(boxes[source], boxes[target], COLOURS[what], aside=aside)
    for box in boxes.values():
        drawing.rectangle(box)
        drawing.text(box.middle[0], box.middle[1] + 5, box.title, size=13)
    share = find(panel.title).sent
    known = "pscpu inside, xring across" if share is None else f"sent: {share(data_flow.GPUS):g} x the tensor in all"
    drawing.text(panel.middle[0], panel.top + panel.height - 16, known, size=13, colour=SOFT)


def _snapshots(title: str, below: str, states: Sequence[tuple[str, list[list[int]]]], facts: dict[str, str]) -> str:
    """Draws, for each state, the chunks of all GPUs: the number of gradients in each chunk's sum."""
    drawing = Drawing(title, below)
    gap = 16
    size = (WIDTH - 2 * MARGIN - 46 - gap * len(states)) / (len(states) * data_flow.GPUS)
    for column, (name, chunks) in enumerate(states):
        x = MARGIN + 56 + column * (data_flow.GPUS * size + gap)
        drawing.text(x + 2 * size, 84, name, size=12, colour=SOFT)
        for gpu, row in enumerate(chunks):
            y = 94 + gpu * 34
            if column == 0:
                drawing.text(MARGIN, y + 18, f"GPU {gpu}", size=13, bold=True, anchor="start")
            for chunk, count in enumerate(row):
                complete = count == data_flow.GPUS
                changed = column > 0 and states[column - 1][1][gpu][chunk] != count
                fill = MEANS if complete else "#fff" if not count else ("", "#fde8d7", "#f9c49a", "#ee9a56")[count]
                drawing.rectangle(
                    Box(x + chunk * size, y, size - 2, 26, ""), fill=fill, stroke=INK if changed else LINE
                )
                if count:
                    colour = "#fff" if complete else INK
                    drawing.text(x + (chunk + 0.5) * size - 1, y + 18, f"{count}", size=12, colour=colour, bold=changed)
    return drawing.svg(drawing.facts(258, facts))


def reduction_xring() -> str:
    """The chunks of a ring all-reduce, step by step."""
    gpus = data_flow.GPUS
    chunks = [[1] * gpus for _ in range(gpus)]
    states = [("start", [list(row) for row in chunks])]
    for step in range(1, 2 * gpus - 1):
        for chunk in range(gpus):
            source, target = (chunk + step) % gpus, (chunk + step + 1) % gpus
            if step < gpus:  # reduce-scatter: the sum of a chunk ends at the GPU of its number
                chunks[target][chunk], chunks[source][chunk] = chunks[source][chunk] + 1, 0
            else:  # all-gather: from there to all others
                chunks[target][chunk] = chunks[source][chunk]
        states.append((f"step {step}", [list(row) for row in chunks]))
    facts = {
        "Steps 1-3": "reduce-scatter: each GPU sends one chunk to the next, which adds its own",
        "Steps 4-6": "all-gather: the complete chunks go round once more",
        "Sent": "each GPU sends 6 chunks of 4 in all: 2(n-1)/n of the tensor on n GPUs",
    }
    below = "the number counts the gradients in the sum that a GPU holds of a chunk"
    return _snapshots("xring: ring all-reduce", below, states, facts)


def reduction_rechd() -> str:
    """The chunks of recursive halving and doubling, step by step."""
    gpus = data_flow.GPUS
    chunks = [[1] * gpus for _ in range(gpus)]
    states, step = [("start", [list(row) for row in chunks])], 0
    for distance in (2, 1, 1, 2):
        step += 1
        before = [list(row) for row in chunks]
        for gpu in range(gpus):
            other = before[gpu ^ distance]
            for chunk in range(gpus):
                if step > 2:
                    chunks[gpu][chunk] = max(before[gpu][chunk], other[chunk])
                elif before[gpu][chunk]:
                    keeps = bool(chunk & distance) == bool(gpu & distance)
                    chunks[gpu][chunk] = before[gpu][chunk] + other[chunk] if keeps else 0
        states.append((f"step {step}", [list(row) for row in chunks]))
    facts = {
        "Steps 1-2": "halving: each GPU exchanges half of its chunks with the GPU at distance 2, then 1, and adds",
        "Steps 3-4": "doubling: the complete chunks go back the same way",
        "Sent": "as much as a ring, in 2 log2(n) steps instead of 2(n-1); it needs 2, 4, 8 ... GPUs",
    }
    below = "the number counts the gradients in the sum that a GPU holds of a chunk"
    return _snapshots("rechd: recursive halving and doubling", below, states, facts)


DIAGRAMS = (
    step_synchronous,
    step_relaxed,
    step_staged,
    step_asynchronous,
    step_local_sgd,
    reductions,
    reduction_xring,
    reduction_rechd,
)
