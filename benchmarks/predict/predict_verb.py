"""The verb `predict`: how fast would it be on hardware that is not here? Imports TensorFlow late."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.config.config import ANY_NUMBER_OF_GPUS, Config, resolve
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.variable_update import refuse_reference_loop
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.explain.known_gpus import gpu_of
from benchmarks.explain.step_balance import RATE_FLAGS, Balance, known_rates
from benchmarks.machine import hardware as machine
from benchmarks.option import Flag, Groups, only
from benchmarks.outside_text import counts
from benchmarks.predict import judge, outlook
from benchmarks.predict.hosts import (
    BETWEEN_GPUS,
    NETWORK_IN,
    NETWORK_OUT,
    SHIPPED_NAMES,
    Hardware,
    find_hardware,
    host_of,
)
from benchmarks.predict.outlook import Outlook
from benchmarks.predict.prediction import Subject
from benchmarks.predict.step_graph import Layout
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.sweep.grid import doublings
from results.environment import data_sheet
from results.summary import manager_of
from variable_mgr.catalog import MANAGERS, WorksIn, named

_DEFAULT_MANAGER = "collective_all_reduce"
# Of these and the one that is predicted, the fastest is named.
_COMPARED = ("collective_all_reduce", "distributed_replicated", "parameter_server", "replicated")
_MOST_DEVICES, _MOST_HOSTS = 1000, 1000
# What decides the rate of one device and of its links, besides the flags of rates.
_OF_RATE = ("model", "batch_size", "precision", "all_reduce_spec")


def _predict(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Prints the prediction for several numbers of devices, or judges predictions by published rates."""
    values = given.values
    if values["judge"]:
        if others := [name for name, value in values.items() if value is not None and name != "judge"]:
            raise UsageError(f"--judge predicts the published rates, and nothing else: leave --{others[0]} out.")
        return _judge()
    refuse_reference_loop("predict", values["variable_update"])
    if values["explain"] and values["output_format"] == "json":
        raise UsageError("--explain draws in text: leave it out with --output_format=json.")
    host = find_hardware(values["hardware"]) if values["hardware"] else _hardware_here()
    manager = values["variable_update"] or _DEFAULT_MANAGER
    layouts = _layouts(values, host, MANAGERS[named(manager)].processes)
    found = _outlooks(values, host, layouts, manager)
    say(*(outlook.as_json(found) if values["output_format"] == "json" else outlook.as_text(found)))
    if values["explain"]:
        say(*outlook.drawn_step(found.points[-1]))
    if values["plot"]:
        outlook.plot(found, values["plot"])
    if values["table"]:
        outlook.write_table(found, values["table"])
    return ExitStatus.OK


def _judge() -> ExitStatus:
    start(Runtime())
    rows = judge.judge()
    for title, table in judge.tables(rows).items():
        say(title, "", *table.text(), "")
    return ExitStatus.OK if all(target.is_met for target in judge.targets(rows)) else ExitStatus.RUN_FAILED


def _hardware_here() -> Hardware:
    """Returns the host that comes with the suite with the GPUs of this machine.

    Raises:
        UsageError: there is none.
    """
    names = {gpu.name for gpu in machine.gpu_inventory().gpus}
    if len(names) != 1:
        which = "several kinds of GPUs are" if names else "no GPU is"
        raise UsageError(
            f"predict needs to know the links of a host, and {which} here: pass --hardware=NAME or a TOML file, see "
            f"docs/prediction.md. Hosts: {', '.join(SHIPPED_NAMES)}."
        )
    name = names.pop()
    if not data_sheet(name):
        raise UsageError(
            f"The suite has no data sheet of {name}: describe this host in a TOML file with a GPU that it has, see "
            "docs/prediction.md, and pass its path as --hardware."
        )
    return host_of(gpu_of(name))


def _numbers(flag: str, text: str, most: int) -> list[int]:
    found = counts(text)
    if not found or found[-1] > most:
        raise UsageError(f"--{flag}={text}: give a number from 1 to {most:,}, or a list such as 1,2,4.")
    return found


def _layouts(values: Mapping[str, Any], host: Hardware, processes: WorksIn) -> list[Layout]:
    """Returns the numbers of devices and hosts: those that are named; else 1, 2, 4 ... up to 1,000 devices.

    `processes`: in which the manager works; in one process, there is one host.

    Raises:
        UsageError: a number is impossible.
    """
    num_gpus, hosts, num_ps = values["num_gpus"], values["hosts"], values["num_ps"]
    per_host = _numbers("num_gpus", num_gpus, host.gpus) if num_gpus else []
    if hosts and len(per_host) > 1:
        raise UsageError(f"--num_gpus={num_gpus}: with --hosts, all hosts have equally many GPUs: give one number.")
    if hosts:
        (each,) = per_host or [host.gpus]
        counted_hosts = _numbers("hosts", hosts, _MOST_HOSTS)
        if num_ps and (WorksIn.SERVERS not in processes or num_ps > counted_hosts[-1]):
            raise UsageError(
                f"--num_ps={num_ps}: so many of the hosts run a parameter server; there are at most "
                f"{counted_hosts[-1]} hosts, and --variable_update must be one that has servers."
            )
        return [Layout(each, count, min(count, num_ps or count)) for count in counted_hosts]
    if num_ps:
        raise UsageError(f"--num_ps={num_ps}: how many hosts run a parameter server; name the hosts, too: --hosts=1,2.")
    if per_host:
        return [Layout(count, 1, 1) for count in per_host]
    most = 1 if processes == WorksIn.ONE else max(1, _MOST_DEVICES // host.gpus)
    on_one = [Layout(count, 1, 1) for count in doublings(host.gpus)]
    return on_one + [Layout(host.gpus, n, n) for n in doublings(most) if n > 1]


def _config(values: Mapping[str, Any], host: Hardware, manager: str, layout: Layout) -> Config:
    """Returns the configuration of a worker; its cluster is the smallest that the manager works in.

    Raises:
        UsageError: the manager does not work so.
    """
    entry = MANAGERS[named(manager)]
    device = "gpu" if host.gpu else "cpu"
    chosen = {"variable_update": manager, "num_gpus": layout.devices, "device": device}
    settings = {**values, **chosen, "hosts": None, "num_ps": None}
    if layout.hosts > 1 or entry.smallest_cluster:
        if entry.processes == WorksIn.ONE:
            raise UsageError(f"--variable_update={manager} works on one host only: leave --hosts out, or name another.")
        servers = "ps:1," if WorksIn.SERVERS in entry.processes else ""
        settings["local_cluster"] = f"{servers}worker:2"
    link = host.gpu_link or host.pcie
    machine_there = gpu_of(host.gpu).machine(host.gpus, link.link) if link else None
    return resolve(settings, lambda: ANY_NUMBER_OF_GPUS, {}, assumed=machine_there)


def _outlooks(values: Mapping[str, Any], host: Hardware, layouts: Sequence[Layout], manager: str) -> Outlook:
    of_rate = {name: value if name in _OF_RATE else None for name, value in values.items()}
    first = _config(of_rate, host, "replicated", Layout(host.gpus))
    gpu = host.gpu if host.gpu and values["hardware"] and not values["peak_tflops"] else None
    rates = known_rates({**values, "gpu": gpu, "link": None}, first.devices, first.computing.precision)
    start(Runtime())
    from benchmarks.predict.exchange import exchange_of, model_parts

    model = model_parts(first.workload.model, first.workload.num_classes)
    balance = rates.balance(
        first, flops_per_image=model.flops_per_image, gradient_bytes=model.gradient_bytes, sent_bytes=None
    )
    rate = balance.images_per_sec
    if rate is None:
        raise UsageError(
            f"Nothing is known of the rate of one {host.gpu or 'CPU'} in {first.computing.precision}: pass "
            "--peak_tflops and --assumed_mfu, or --results with records of a run on one device."
        )
    measured = _measured_links(values, balance, is_from_records=balance.link_bytes_per_sec is not rates.link)

    def subject(name: str, layout: Layout) -> Subject:
        config, batch = _config(values, host, name, layout), first.workload.batch_per_device
        return Subject(
            parts=model.parts,
            hardware=host,
            batch_per_device=batch,
            exchange=exchange_of(config.variables, layout, model.variables, on_cpus=not host.gpu),
            step_seconds=batch / rate.value,
            layout=layout,
            measured=measured,
            uncertain=rate.factor,
        )

    points = []
    for layout in layouts:
        others = {name: functools.partial(subject, name, layout) for name in _COMPARED if name != manager}
        setting = manager_of(_config(values, host, manager, layout).to_dict())
        points.append(outlook.point(subject(manager, layout), manager, setting, others))
    return Outlook(
        hardware=host.title,
        model=first.workload.model,
        manager=manager,
        precision=first.computing.precision,
        images_per_sec_of_one=rate.value,
        source=rate.source,
        points=points,
    )


def _measured_links(values: Mapping[str, Any], balance: Balance, *, is_from_records: bool) -> dict[str, float]:
    """Returns the bytes/s of links that flags or records of all-reduce give."""
    measured = {}
    if balance.link_bytes_per_sec and (is_from_records or values["link_gbytes_per_second"]):
        measured[BETWEEN_GPUS] = balance.link_bytes_per_sec.value
    if values["network_gbytes_per_second"]:
        measured |= dict.fromkeys((NETWORK_IN, NETWORK_OUT), 1e9 * values["network_gbytes_per_second"])
    return measured


_FLAGS: Groups = {
    "Where": (
        Flag(
            "hardware",
            str,
            "host to predict for: one that comes with the suite, a GPU of one, or a TOML file",
            default="that of the GPUs here, with rates from records",
            known=SHIPPED_NAMES,
        ),
        Flag("num_gpus", str, "GPUs per host, or a list such as 1,2,4", default="all of the host"),
        Flag("hosts", str, "number of hosts, or a list such as 1,2,4,8", default="1, 2, 4 ... up to 1,000 devices"),
        Flag("num_ps", int, "how many of the hosts also run a parameter server", default="all", at_least=1),
        Flag(
            "network_gbytes_per_second",
            float,
            "1e9 bytes/s that a host sends, as doctor measures it with a cluster",
            default="a share of the data sheet",
            above=0,
            at_most=10**6,
        ),
    ),
    "What": (
        *only(RUN_FLAGS["What is trained"], "model", "batch_size", "precision"),
        *only(
            RUN_FLAGS["Variables and gradients"],
            *("variable_update", "local_parameter_device", "cross_replica_sync", "staged_vars", "variable_consistency"),
            *("all_reduce_spec", "gradient_repacking", "compact_gradient_transfer", "local_sgd_steps"),
        ),
    ),
    "Rates": only(RATE_FLAGS, "results", "link_gbytes_per_second", "peak_tflops", "assumed_mfu"),
    "Output": (
        Flag("judge", bool, "predict the published rates of several devices from those of one, and print the errors"),
        Flag("explain", bool, "draw the time line of a step on the largest number of devices"),
        Flag("plot", str, "write a plot of rates and intervals, as .svg and .png", path="file"),
        Flag("table", str, "write the predictions as CSV that the flag --against of report reads", path="file"),
        *only(RUN_FLAGS["Output"], "output_format"),
    ),
}
VERB = Verb(
    "predict",
    _FLAGS,
    _predict,
    details="Simulates a step from published or recorded rates of one device, and the data sheets of links. It needs "
    "no devices. --judge prints how far predictions are from published rates, and exits with 4 if they miss a target.",
    examples=(
        "predict --model=resnet50 --hardware=H100 --precision=bf16",
        "predict --model=vgg16 --hardware=dgx-1-p100 --variable_update=replicated --num_gpus=1,2,4,8",
        "predict --model=resnet50 --hardware=ec2-p2.8xlarge --variable_update=distributed_replicated --hosts=1,8,64",
        "predict --judge",
    ),
)
