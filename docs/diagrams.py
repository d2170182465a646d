"""The diagrams of variable managers, each a function that returns an SVG. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from docs import data_flow
from docs.data_flow import Flow
from docs.drawing import GRADIENTS, LINE, MARGIN, MEANS, WEIGHTS, WIDTH, Box, Drawing
from variable_mgr.manager import Explanation

COLOURS = {"weights": WEIGHTS, "gradients": GRADIENTS, "means": MEANS}
_TOWERS_TOP, _TOWER_HEIGHT = 74, 78
_ONE_CLIENT = "the session of worker 0 (or --controller_host) builds the whole graph; the other workers only serve"
_MODEL = f"{data_flow.MODEL.upper().replace('VGG', 'VGG-')}"


def _facts(explained: Explanation, **more: str) -> dict[str, str]:
    """Returns the words of `explain` for below a diagram."""
    facts = {
        "Weights": explained.weights,
        "Gradients": explained.gradients,
        "At step t": f"applies the gradient {explained.applied}",
    }
    return facts | {name.replace("_", " "): fact for name, fact in more.items()}


def _towers(drawing: Drawing, flow: Flow) -> list[Box]:
    """Draws the GPUs of one host."""
    boxes = []
    width = (WIDTH - 2 * MARGIN - 3 * 20) / data_flow.GPUS
    for tower in range(data_flow.GPUS):
        box = Box(MARGIN + tower * (width + 20), _TOWERS_TOP, width, _TOWER_HEIGHT, f"GPU {tower}")
        held = flow.copies.get(box.title, ())
        drawing.box(box, held, note="compute, update" if held else "compute")
        boxes.append(box)
    return boxes


def _bytes(flow: Flow) -> str:
    """Returns the traffic of a step in one process, in words."""
    sent = flow.traffic
    assert sent is not None and sent.total_bytes is not None
    parts = {"weights read": sent.read_bytes, "gradients": sent.gradient_bytes, "weights averaged": sent.weight_bytes}
    named = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in parts.items() if size)
    return f"{_MODEL} on {data_flow.GPUS} GPUs, per step: {named or 'nothing'}"


def parameter_server() -> str:
    """One copy on the host."""
    flow = data_flow.in_one_process("parameter_server")
    drawing = Drawing(
        "parameter_server: one copy of the weights",
        "--variable_update=parameter_server --num_gpus=4 --local_parameter_device=cpu",
    )
    boxes = {box.title: box for box in _towers(drawing, flow)}
    host = Box(MARGIN, 236, WIDTH - 2 * MARGIN, 78, "host")
    drawing.box(host, flow.copies["host"], note="mean of the gradients, one update")
    for source, target, what in sorted(flow.sent):
        tower = boxes[source if target == "host" else target]
        below = Box(tower.left, host.top, tower.width, host.height, "")
        ends = (tower, below) if target == "host" else (below, tower)
        drawing.arrow(*ends, COLOURS[what])
    drawing.legend(342, [(WEIGHTS, "weights, to each GPU"), (GRADIENTS, "gradients, of each GPU")])
    return drawing.svg(drawing.facts(372, _facts(flow.explained, Sent=_bytes(flow))))


def _exchanging(title: str, flags: str, flow: Flow, bar: str, colour: str) -> str:
    """Copies on all GPUs, which exchange gradients or weights through what the bar names."""
    drawing = Drawing(title, flags)
    boxes = _towers(drawing, flow)
    if bar:
        exchange = Box(MARGIN, 216, WIDTH - 2 * MARGIN, 40, bar)
        drawing.rectangle(exchange, fill="#fff", stroke=colour)
        drawing.text(exchange.middle[0], exchange.middle[1] + 5, bar)
        for box in boxes:
            below = Box(box.left, exchange.top, box.width, exchange.height, "")
            drawing.arrow(box, below, colour)
            drawing.arrow(below, box, MEANS)
        meaning = "gradients" if colour == GRADIENTS else "weights"
        drawing.legend(284, [(colour, meaning), (MEANS, f"mean of the {meaning}, the same for all")])
    return drawing.svg(drawing.facts(314 if bar else 184, _facts(flow.explained, Sent=_bytes(flow))))


def replicated() -> str:
    """A copy per GPU; gradients are all-reduced."""
    return _exchanging(
        "replicated: a copy per GPU, gradients all-reduced",
        "--variable_update=replicated --num_gpus=4",
        data_flow.in_one_process("replicated", shared_on="gpu", all_reduce_spec="psgpu"),
        "all-reduce, every step: --all_reduce_spec chooses how",
        GRADIENTS,
    )


def local_sgd() -> str:
    """A copy per GPU; weights are averaged every few steps."""
    return _exchanging(
        "local_sgd: a copy per GPU, weights averaged every K steps",
        "--variable_update=local_sgd --local_sgd_steps=4 --num_gpus=4",
        data_flow.in_one_process("local_sgd", shared_on="gpu", local_sgd_steps=4),
        "all-reduce of the weights, only after every 4th step",
        WEIGHTS,
    )


def independent() -> str:
    """A copy per GPU, and nothing else."""
    return _exchanging(
        "independent: a copy per GPU, nothing exchanged",
        "--variable_update=independent --num_gpus=4",
        data_flow.in_one_process("independent"),
        "",
        LINE,
    )


def _workers(drawing: Drawing, copies: Callable[[str], Sequence[str]], note: str) -> tuple[list[Box], list[Box]]:
    """Draws two workers with two GPUs each, and returns the workers' boxes and the GPUs'."""
    workers, towers = [], []
    for number in range(2):
        worker = Box(MARGIN + number * 340, _TOWERS_TOP, 320, 114, f"worker {number}")
        drawing.rectangle(worker, fill="#fff")
        drawing.text(worker.middle[0], worker.top + 20, worker.title, bold=True)
        workers.append(worker)
        for gpu in range(2):
            tower = Box(worker.left + 10 + gpu * 155, worker.top + 30, 145, 74, f"GPU {gpu}")
            drawing.box(tower, copies(f"{worker.title}, {tower.title}"), note=note)
            towers.append(tower)
    return workers, towers


def _with_servers(manager: str, title: str, flow: Flow, **more: str) -> str:
    """Two workers and two parameter servers."""
    drawing = Drawing(title, f"--variable_update={manager} --local_cluster=ps:2,worker:2 --num_gpus=2")
    workers, _ = _workers(drawing, lambda name: ["weights"] if name in flow.copies else [], "compute")
    servers = [Box(MARGIN + 60 + number * 340, 330, 200, 74, f"ps {number}") for number in range(2)]
    for server in servers:
        drawing.box(server, flow.copies[server.title], note="mean over workers, update")
    boxes = {box.title: box for box in (*workers, *servers)}
    for source, target, what in sorted(flow.sent):
        size = f"{flow.links[source, target]:.0f} MB"
        colour = WEIGHTS if what == "weights" else GRADIENTS
        drawing.arrow(boxes[source], boxes[target], colour, size, at=0.3 if source[-1] == target[-1] else 0.72)
    sent = "new values of the weights" if flow.copies.keys() - {"ps 0", "ps 1"} else "weights, once per worker"
    drawing.legend(432, [(WEIGHTS, sent), (GRADIENTS, "mean of the gradients of a worker's GPUs")])
    sent = f"{_MODEL}, per step: {sum(flow.links.values()):.0f} MB between processes"
    return drawing.svg(drawing.facts(462, _facts(flow.explained, Sent=sent, **more)))


def parameter_server_cluster() -> str:
    """One copy, spread over parameter servers."""
    title = "parameter_server in a cluster: one copy, spread over the servers"
    return _with_servers("parameter_server", title, data_flow.across_processes("parameter_server", servers=2))


def distributed_replicated() -> str:
    """A copy per GPU and a master copy on parameter servers."""
    title = "distributed_replicated: a copy per GPU, master copies on servers"
    flow = data_flow.across_processes("distributed_replicated", servers=2)
    return _with_servers("distributed_replicated", title, flow)


def in_graph_parameter_server() -> str:
    """One copy, spread over parameter servers; one client drives the GPUs of all workers."""
    flow = data_flow.of_one_client("in_graph_parameter_server", servers=2)
    title = "in_graph_parameter_server: one copy, and one client for all workers"
    return _with_servers("in_graph_parameter_server", title, flow, Client=_ONE_CLIENT)


def collective_all_reduce() -> str:
    """A ring of all GPUs of all workers."""
    flow = data_flow.across_processes("collective_all_reduce", servers=0)
    drawing = Drawing(
        "collective_all_reduce: a ring of all GPUs, no server",
        "--variable_update=collective_all_reduce --local_cluster=worker:2 --num_gpus=2",
    )
    _, towers = _workers(drawing, lambda name: flow.copies[name], "compute, update")
    low, deep = 208.0, 236.0
    bottom = towers[0].top + towers[0].height
    for here, there, y in [*((a, b, low) for a, b in pairwise(towers)), (towers[-1], towers[0], deep)]:
        begin, end = here.middle[0] + 30, there.middle[0] - 30
        drawing.line([(begin, bottom), (begin, y), (end, y), (end, bottom)], GRADIENTS)
    for y, link in ((low, ("worker 0", "worker 1")), (deep, ("worker 1", "worker 0"))):
        drawing.text(WIDTH / 2, y + 4, f"{flow.links[link]:.0f} MB", size=13, colour=GRADIENTS, halo=True)
    drawing.legend(deep + 32, [(GRADIENTS, "chunks of gradients: sums once round, then their means once round")])
    facts = _facts(
        flow.explained, Sent=f"{_MODEL}, per step: {max(flow.links.values()):.0f} MB from each worker to the next"
    )
    return drawing.svg(drawing.facts(deep + 62, facts))


def distributed_all_reduce() -> str:
    """One client drives the GPUs of all workers."""
    explained = data_flow.of_one_client("distributed_all_reduce", servers=0).explained
    drawing = Drawing(
        "distributed_all_reduce: one client drives the GPUs of all workers",
        "--variable_update=distributed_all_reduce --local_cluster=worker:2 --num_gpus=2",
    )
    _, towers = _workers(drawing, lambda _: ["weights"], "compute, update")
    bar = Box(MARGIN, 238, WIDTH - 2 * MARGIN, 40, "")
    drawing.rectangle(bar, fill="#fff", stroke=GRADIENTS)
    drawing.text(WIDTH / 2, bar.middle[1] + 5, "all-reduce over all GPUs: --all_reduce_spec chooses how")
    for tower in towers:
        below = Box(tower.left, bar.top, tower.width, bar.height, "")
        drawing.arrow(tower, below, GRADIENTS)
        drawing.arrow(below, tower, MEANS)
    drawing.legend(306, [(GRADIENTS, "gradients"), (MEANS, "mean of the gradients, the same for all")])
    return drawing.svg(drawing.facts(336, _facts(explained, Client=_ONE_CLIENT)))


def fc_model_parallel() -> str:
    """Convolutions copied, dense layers divided by columns."""
    sent = data_flow.of_dense_layers(2, divided=True)
    whole = data_flow.of_dense_layers(2, divided=False)
    drawing = Drawing(
        "--fc_model_parallel: dense layers divided by columns",
        "--variable_update=replicated --fc_model_parallel --model=vgg16 --num_gpus=2",
    )
    parts = []
    for number, half in enumerate(("first", "second")):
        frame = Box(MARGIN + number * 440, _TOWERS_TOP, 220, 196, f"GPU {number}")
        drawing.rectangle(frame, fill="#fff")
        drawing.text(frame.middle[0], frame.top + 20, frame.title, bold=True)
        for title, held, top in (
            ("convolutions", "all weights", 110),
            ("dense layers", f"{half} half of columns", 200),
        ):
            parts.append(Box(frame.left + 10, top, 200, 60, title))
            drawing.box(parts[-1], [held])
    for left, right, colour in ((parts[0], parts[2], GRADIENTS), (parts[1], parts[3], MEANS)):
        drawing.arrow(left, right, colour)
        drawing.arrow(right, left, colour)
    assert sent.gradient_bytes is not None and whole.gradient_bytes is not None
    for y, text, colour in (
        (parts[0].top, f"gradients, {sent.gradient_bytes / 1e6:.0f} MB", GRADIENTS),
        (parts[1].top, f"activations, {sent.activation_bytes / 1e6:.0f} MB", MEANS),
    ):
        drawing.text(WIDTH / 2, y + 10, text, size=13, colour=colour, halo=True)
    facts = {
        "Dense": "each GPU computes its columns for the images of all GPUs; these gradients are not sent",
        "Sent": f"{_MODEL}, {data_flow.BATCH} images per GPU, per step: {sent.gradient_bytes / 1e6:.0f} MB of "
        f"gradients and {sent.activation_bytes / 1e6:.0f} MB of activations; without the flag "
        f"{whole.gradient_bytes / 1e6:.0f} MB of gradients",
    }
    return drawing.svg(drawing.facts(300, facts))


DIAGRAMS = (
    parameter_server,
    replicated,
    local_sgd,
    independent,
    parameter_server_cluster,
    distributed_replicated,
    in_graph_parameter_server,
    collective_all_reduce,
    distributed_all_reduce,
    fc_model_parallel,
)
