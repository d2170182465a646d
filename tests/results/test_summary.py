from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from results.environment import data_sheet_peak, published_table
from results.intervals import Interval
from results.measurement import Measurement
from results.record import STEPS_PER_SLICE, Record, Status
from results.report import headline
from results.report.anomalies import anomalies, warnings_of
from results.report.contents import Report
from results.report.plots import where_time_goes
from results.report.ranking import ranking_groups
from results.summary import Row, Siblings, manager_of, summarize
from tests.support.records import fake_run


def test_repeats_are_one_row_and_their_rate_is_the_geometric_mean() -> None:
    (row,) = summarize([fake_run(step_seconds=0.1), fake_run(step_seconds=0.3), fake_run(status=Status.CRASH)])
    assert len(row.records) == 3 and len(row.valid) == 2
    assert row.rate == pytest.approx(32 / math.sqrt(0.1 * 0.3))
    assert row.status == "2 ok, 1 crash"
    assert row.tflops == pytest.approx(3 * 7.7e9 * row.rate / 1e12)
    (inference,) = summarize([fake_run(forward_only=True)])
    assert inference.tflops == pytest.approx(7.7e9 * inference.rate / 1e12)


def test_a_rate_lies_in_its_interval_whatever_the_lengths_of_the_repeats() -> None:
    runs = [fake_run(step_seconds=[0.1] * 1000), *(fake_run(step_seconds=[seconds] * 10) for seconds in (0.112, 0.113))]
    (row,) = summarize(runs)
    assert row.measured.low < row.rate < row.measured.high


@pytest.mark.parametrize("step", [1, -1])
def test_a_speed_up_is_over_the_one_device_that_is_most_alike_in_whatever_order(step: int) -> None:
    cluster = {"cluster": {"ps": ["a"], "worker": ["b"]}}
    runs = [
        fake_run(step_seconds=0.05),
        fake_run(step_seconds=0.1, **cluster, num_ps=1),
        fake_run(step_seconds=0.09, **cluster, num_ps=3),
        *(
            fake_run(step_seconds=0.1 + 0.01 * servers, **cluster, num_ps=servers, num_workers=2)
            for servers in (1, 2, 3)
        ),
    ]
    of = {row.records[0].identity.run_id: row for row in summarize(runs[::step])}
    alone, one, three, *both = (of[run.identity.run_id] for run in runs)
    assert [each.speed_up.bounded for each in (alone, one, three)] == [Interval(1.0, 1.0, 1.0)] * 3
    # With as many servers; else in a cluster, the fastest.
    for row, base in zip(both, (one, three, three), strict=True):
        assert row.speed_up.value == pytest.approx(row.rate / base.rate)


def test_a_speed_up_has_an_interval_that_includes_how_processes_differ() -> None:
    one, two = summarize([fake_run(), fake_run(num_devices=2)])
    assert one.speed_up.value == 1.0 and not one.speed_up.is_known
    assert two.speed_up is not None
    assert two.speed_up.log_half_width == pytest.approx(0.2 * math.sqrt(2), rel=1e-3), "10 % each are assumed"


def test_how_processes_differ_on_one_machine_shows_nothing_of_another() -> None:
    quiet = [fake_run(num_devices=devices, hardware="quiet") for devices in (1, 1, 1, 2)]
    *_, once, noisy = summarize([*quiet, fake_run()])
    assert once.among_processes.log_half_width < 0.1
    assert noisy.among_processes.log_half_width == pytest.approx(0.2, rel=1e-2), "10 % are assumed"


def _also(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.distinct.items() if value)


def test_differences_between_rows_of_a_model_are_named() -> None:
    runs = [fake_run(optimizer="sgd"), fake_run(optimizer="adam"), fake_run(model="vgg16", optimizer="sgd")]
    assert [_also(row) for row in summarize(runs)] == ["optimizer sgd", "optimizer adam", ""]


def test_options_of_the_input_tell_rows_apart_only_from_others_that_read_images() -> None:
    def reads(crop: str) -> Record:
        return fake_run(data_name="imagenet", data_set="2 files", input={"crop": crop, "distortions": False})

    synthetic = fake_run(data_set=None, input=None, pipelined_input=False)
    assert [_also(row) for row in summarize([synthetic, reads("central")])] == ["", ""]
    waits = [fake_run(data_name="imagenet", input={"crop": "random"}, pipelined_input=on) for on in (True, False)]
    assert [_also(row) for row in summarize([*waits, synthetic])] == [
        "pipelined_input True",
        "pipelined_input False",
        "",
    ]
    assert [_also(row) for row in summarize([synthetic, reads("central"), reads("distorted")])] == [
        "",
        "crop central",
        "crop distorted",
    ]


def _mfu(*gpus: str, variables: dict[str, str] | None = None, **config: Any) -> float | None:
    """Returns the peak in TFLOP/s to which the MFU of a run on these GPUs refers."""
    run = replace(fake_run(**config), environment={"gpus": list(gpus), "variables": variables or {}})
    (row,) = summarize([run])
    return row.mfu and row.tflops / row.mfu


def test_mfu_is_of_the_physical_gpus_by_their_data_sheet() -> None:
    assert _mfu("NVIDIA H100 80GB HBM3 80 GiB", "NVIDIA H100 80GB HBM3 80 GiB", num_devices=4, virtual_gpus=2) == (
        pytest.approx(2 * 67)
    )
    used, *_ = both = ("NVIDIA H100 80GB HBM3 80 GiB", "NVIDIA A100-SXM4-80GB 80 GiB")
    assert _mfu(*both) == _mfu(used) and _mfu(*both, num_devices=2) is None, "the run used the first of two GPUs"
    assert _mfu(*both, visible_gpus=[1]) == _mfu(*both, visible_gpus=[1, 0]) == 19.5
    assert _mfu(*both, cluster="one host", num_workers=2) is None, "each worker may have used another one"
    assert _mfu() is None, "no GPU is known"


def test_a_run_that_exceeds_the_data_sheet_has_no_mfu_but_a_reason() -> None:
    of = {"gpus": ["NVIDIA H100 PCIe 80 GiB"]}
    at_peak, above = (replace(fake_run(step_seconds=s), environment=of) for s in (0.0145, 0.0144))  # 51.0 and 51.3
    row, impossible = (summarize([run])[0] for run in (at_peak, above))
    assert row.mfu == pytest.approx(1.0, abs=0.001) and impossible.mfu is None
    table = headline.table([row])
    assert dict(zip(table.columns, table.rows[0], strict=True))["MFU %"] == "100"
    assert impossible.data_sheet.text.startswith(
        "unknown: 51.3 TFLOP/s are more than the peak (51.0 TFLOP/s, fp32, NVIDIA H100 data sheet): "
    )
    assert any(f"MFU {impossible.data_sheet.text}." in sentence for sentence in anomalies([impossible]))


def test_mfu_in_fp32_is_of_the_cuda_cores_and_in_tf32_of_the_tensor_cores() -> None:
    peaks = {name: _mfu("NVIDIA A100-SXM4-80GB 80 GiB", precision=name) for name in ("fp32", "tf32", "bf16", "fp16")}
    assert peaks == pytest.approx({"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312})


def test_gpus_of_different_peaks_and_mig_instances_have_no_mfu() -> None:
    assert _mfu("NVIDIA H100 PCIe 80 GiB", "NVIDIA H100 NVL 94 GiB", num_devices=2) is None
    assert _mfu("NVIDIA A100-SXM4-40GB 40 GiB", "NVIDIA A100-SXM4-80GB 80 GiB") == pytest.approx(19.5)
    assert _mfu("NVIDIA A100-SXM4-80GB 80 GiB", variables={"CUDA_VISIBLE_DEVICES": "MIG-c7e5f2"}) is None


@pytest.mark.parametrize(
    ("name", "fp32", "fp16"),
    [
        ("NVIDIA H100 80GB HBM3", 67, 989.5),
        ("NVIDIA H100 PCIe", 51, 756.5),
        ("A100-SXM4-40GB", 19.5, 312),
        ("NVIDIA A100 80GB PCIe", 19.5, 312),
        ("Tesla V100-SXM2-16GB", 15.7, 125),
        ("Tesla V100-PCIE-32GB", 14, 112),
        ("Tesla P100-PCIE-16GB", 9.3, None),
        ("NVIDIA GeForce RTX 2080 Ti", 13.4, 53.8),
    ],
)
def test_the_driver_s_name_finds_the_peak_of_its_form_factor(name: str, fp32: float, fp16: float | None) -> None:
    assert (data_sheet_peak(name, "fp32"), data_sheet_peak(f"{name} 80 GiB", "fp16")) == (fp32, fp16)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A1000 Laptop GPU",
        "Quadro P1000",
        "NVIDIA L400",
        "NVIDIA A100X",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "GRID A100-40C",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_a_name_that_only_resembles_one_of_the_table_has_no_peak(name: str) -> None:
    assert data_sheet_peak(name, "fp32") is None and data_sheet_peak(f"{name} 80 GiB", "fp32") is None


def test_the_table_of_peaks_has_a_source_for_each_and_no_rate_below_that_of_fp32() -> None:
    table = published_table("peaks")
    assert len({row["gpu"] for row in table}) == len(table)
    for row in table:
        rates = {name: float(rate) for name, rate in row.items() if name.endswith("_tflops") and rate}
        assert min(rates, key=rates.__getitem__) == "fp32_tflops" and row["source"].startswith("NVIDIA "), row
        # NVIDIA's tensor cores multiply 16-bit factors twice as fast as TF32, and both 16-bit types alike.
        if "tf32_tflops" in rates:
            assert rates["bf16_tflops"] == rates["fp16_tflops"] == pytest.approx(2 * rates["tf32_tflops"], rel=0.02)


def test_speed_up_is_over_one_device_that_is_alike() -> None:
    rows = summarize(
        [
            fake_run(),
            fake_run(variable_update="independent", step_seconds=0.08),
            fake_run(num_devices=4, step_seconds=0.125),
            fake_run(num_devices=4, variable_update="parameter_server", step_seconds=0.1),
            fake_run(num_devices=4, model="vgg16"),
            fake_run(num_devices=4, hardware="another"),
        ]
    )
    assert rows[2].speed_up.value == pytest.approx(4 * 0.1 / 0.125), "one device under the same manager"
    assert rows[3].speed_up.value == pytest.approx(4 * 0.08 / 0.1), "the fastest, as its manager was not run there"
    assert rows[4].speed_up is None and rows[5].speed_up is None


def test_a_reference_loop_is_no_base_of_a_variable_manager_and_has_none_of_them() -> None:
    rows = summarize(
        [
            fake_run(variable_update="keras_fit"),
            fake_run(variable_update="independent", num_devices=4, step_seconds=0.1),
            fake_run(variable_update="mirrored_strategy", num_devices=4, step_seconds=0.2),
        ]
    )
    assert [row.speed_up and row.speed_up.value for row in rows] == [1.0, None, None]
    assert where_time_goes(rows[2], Siblings(rows)) is None, "its exchange is not known"


def test_a_row_without_a_valid_repeat_has_no_rate() -> None:
    (row,) = summarize([fake_run(status=Status.TIMEOUT, reason="Not done.")])
    assert row.images_per_sec is None and row.status == "timeout" and row.reason == "Not done."
    with pytest.raises(ValueError, match="valid"):
        row.rate  # noqa: B018 - raises


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"variable_update": "replicated", "modifiers": {"all_reduce_spec": "xring#2"}}, "replicated xring#2"),
        ({"variable_update": "parameter_server", "shared_on": "cpu"}, "parameter_server on cpu"),
        (
            {"variable_update": "parameter_server", "shared_on": "gpu", "modifiers": {"asynchronous": True}},
            "parameter_server on gpu async",
        ),
        ({"modifiers": {"all_reduce_spec": "psgpu", "compact_gradient_transfer": True}}, "psgpu compact"),
        ({"variable_update": "local_sgd", "modifiers": {"local_sgd_steps": 4}}, "local_sgd every 4"),
        (
            {"variable_update": "parameter_server", "pipeline": {"stages": 4, "micro_batches": 16}},
            "pipeline of 4, 16 micro-batches",
        ),
        ({}, ""),
    ],
)
def test_managers_in_few_words(config: dict, words: str) -> None:
    assert manager_of(config) == words


def test_anomalies_are_sentences(everything: list[Record]) -> None:
    found = "\n".join(anomalies(summarize(everything)))
    assert "resnet50, parameter_server on gpu, 4 GPUs, batch 32 and 1 more: scales to 53% of 4 devices" in found
    assert "real data reach 82% of synthetic" in found
    assert "fp16 is slower than fp32 (0.850 x)" in found
    assert "no valid result (oom). Out of memory" in found
    assert "trivial, replicated psgpu, 1 GPU, batch 32: 1 ok, 1 crash. Ended by a | b." in found
    assert "independent" not in found.replace("--variable_update=independent", "")
    scaled = fake_run(precision="fp16", loss_scaling={"initial": 128.0}, data_format="NHWC", step_seconds=0.12)
    assert "fp16 is slower than fp32" in anomalies(summarize([fake_run(data_format="NCHW"), scaled] * 2))[0]
    assert not anomalies(summarize([fake_run(data_format="NCHW"), scaled])), "processes may differ by that much"
    assert "fp16 is slower than tf32" in anomalies(summarize([fake_run(precision="tf32"), scaled] * 2))[0]
    many = [fake_run(step_seconds=seconds) for seconds in (0.1, 0.1, 0.1, 0.15)]
    assert "one of 4 repeats is 33% below their median" in anomalies(summarize(many))[0]
    slower = [fake_run(), fake_run(num_devices=2, step_seconds=0.25)]
    assert "slower than one device (0.800 x)" in anomalies(summarize(slower * 2))[0]
    assert "scales to 40% of 2 devices" in anomalies(summarize(slower))[0], "processes may differ by that much"
    alone = [fake_run(variable_update="independent", num_devices=n, step_seconds=s) for n, s in ((1, 0.1), (2, 0.25))]
    assert anomalies(summarize(alone * 2))[0].endswith(
        "40% of 2 devices. It exchanges nothing, so the input or the host is the bottleneck."
    )
    split = [fake_run(virtual_gpus=2), fake_run(num_devices=2, virtual_gpus=2, step_seconds=0.25)]
    assert anomalies(summarize(split)) == [], "virtual GPUs share a GPU"
    cpu = [fake_run(device="cpu"), fake_run(device="cpu", num_devices=2, step_seconds=0.25)]
    assert anomalies(summarize(cpu)) == [], "logical CPU devices share the cores"


def test_repeats_of_several_commits_are_noted() -> None:
    runs = [fake_run() for _ in range(3)]
    assert not anomalies(summarize(runs))
    runs[0] = replace(runs[0], identity=replace(runs[0].identity, suite_commit="def"))
    (note,) = anomalies(summarize(runs))
    assert "its repeats are of 2 commits of the suite" in note


def test_repeats_of_much_unlike_lengths_are_noted() -> None:
    assert not anomalies(summarize([fake_run(step_seconds=[0.1] * steps) for steps in (10, 99)]))
    (note,) = anomalies(summarize([fake_run(step_seconds=[0.1] * steps) for steps in (10, 100)]))
    assert "its repeats have 10 to 100 measured steps and count alike" in note


def test_repeats_with_unlike_environment_variables_are_noted() -> None:
    levels = [{"TF_CPP_MIN_LOG_LEVEL": str(number), "OMP_NUM_THREADS": "2"} for number in range(3)]
    runs = [replace(run := fake_run(), environment={**run.environment, "variables": own}) for own in levels]
    assert not anomalies(summarize(runs))
    runs[0].environment["variables"]["TF_ENABLE_ONEDNN_OPTS"] = "0"
    (note,) = anomalies(summarize(runs))
    assert "unlike environment variables (TF_ENABLE_ONEDNN_OPTS): select runs with --where (session_id," in note


def test_warnings_of_one_kind_are_reported_once() -> None:
    busy = [fake_run(warnings=(f"The machine was busy (load {load} per core).",)) for load in ("0.4", "1.2")]
    assert warnings_of([*busy, fake_run()]) == ["2 of 3 runs warned: The machine was busy (load 0.4 to 1.2 per core)."]


def test_names_and_values_of_flags_are_no_numbers_of_one_kind() -> None:
    texts = ("resnet50 is slow", "resnet152 is slow", "--batch_size=16", "--batch_size=32", "xring#1", "xring#2")
    texts += ("version 2.20.0", "version 2.21.0", "vgg-16", "vgg-19", "/gpu:0", "/gpu:1", "1.5x", "2.5x")
    assert len(warnings_of([fake_run(warnings=(text,)) for text in texts])) == len(texts)


def test_the_terminal_table(everything: list[Record]) -> None:
    lines = headline.lines(summarize(everything))
    assert lines[0] == "All rows: device gpu."
    assert lines[1].startswith("model")
    first = "resnet50 independent 1 32 fp32 synthetic 314 314 to 314 1.00 ok (3 of 3) 314"
    assert lines[3].split() == first.split()
    assert lines[-1].endswith("skipped. asks for 8 GPUs")
    assert headline.lines([]) == ["There are no runs."]


def test_the_numbers_of_the_table_by_hand() -> None:
    """Two workers of two devices: three repeats at 512, 640 and 800 images/s, in which one step of 20 takes twice."""
    usual = [2 / 21 * share for share in (0.8, 1.0, 1.25)]
    four = [fake_run(step_seconds=[each] * 19 + [2 * each], num_devices=2, num_workers=2) for each in usual]
    sent = {"sent_per_step": {"total_bytes": 8 * 10**6, "busiest_ps_bytes": 5 * 10**6}}
    table = headline.table(summarize([fake_run(), *(replace(run, placement=sent) for run in four)]))
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert {name: float(cells[name].split()[0]) for name in table.numbers[1:] if name != "95 % interval"} == {
        "images/s": 640,
        "speed-up": 2,
        "per device": 160,
        "efficiency %": 50,
        "TFLOP/s": pytest.approx(640 * 3 * 7.7e-3, rel=1e-2),
        "step p50 ms": pytest.approx(2000 / 21, rel=1e-2),
        "step p99 ms": pytest.approx(2000 / 21 * 1.81, rel=1e-2),
        "sent MB": 8,
        "MB/s per ps": 50,
    }


def test_what_differs_is_in_the_table_and_what_does_not_above_it() -> None:
    runs = [fake_run(precision=p, optimizer=o, learning_rate=1e-3) for p in ("fp32", "bf16") for o in ("sgd", "adam")]
    above, names, _, *lines = headline.lines(summarize(runs))
    assert names.split() == "precision optimizer images/s 95 % interval status".split()
    assert [line.split()[:2] for line in lines] == [[p, o] for p in ("fp32", "bf16") for o in ("sgd", "adam")]
    assert above.startswith("All rows: model resnet50, variable manager replicated psgpu, devices 1, device gpu, batch")
    (alone, *_) = headline.lines(summarize([fake_run()]))
    assert alone.startswith("The run: model resnet50, ") and alone.endswith("precision fp32, data synthetic.")


def test_what_a_step_sends_and_takes_is_known_of_a_row_whose_first_run_was_killed() -> None:
    killed = fake_run(status=Status.CRASH, reason="killed")
    killed = replace(killed, placement={}, measurement=Measurement(images_per_step=None))
    (row,) = rows = summarize([killed, fake_run(sent=10**6)])
    table = headline.table(rows)
    assert dict(zip(table.columns, table.rows[0], strict=True))["sent MB"] == "1.00"
    assert row.step_seconds.value == pytest.approx(0.1)


def test_of_many_differing_fields_one_column_has_all() -> None:
    few, many = ({f"field_{n}": number for n in range(count)} for count in (4, 5) for number in (0.1 + 0.2,))
    assert headline.table(summarize([fake_run(), fake_run(**few)])).columns[:4] == [f"field_{n}" for n in range(4)]
    table = headline.table(summarize([fake_run(), fake_run(**many)]))
    assert table.columns[:3] == ["images/s", "95 % interval", "also"], "long text does not push the rate out of sight"
    assert table.rows[1][2].startswith("field_0 0.3, field_1 0.3")


@pytest.mark.parametrize("count", [4, 5])
def test_a_field_without_a_value_has_no_words(count: int) -> None:
    """Neither in a column of its own nor in the one that more fields share."""
    fields = [f"field_{number}" for number in range(count)]
    rows = summarize([fake_run(**dict.fromkeys(fields, 2.5)), fake_run(**dict.fromkeys(fields))])
    assert _also(rows[1]) == "" and "field_0 2.5" in _also(rows[0])
    table = headline.table(rows)
    assert {cell for name, cell in zip(table.columns, table.rows[1], strict=True) if name in (*fields, "also")} == {""}
    assert headline.labels(summarize([fake_run(xla=2.5), fake_run(xla=None)])) == ["xla 2.5", "no xla"]


def test_what_follows_from_the_precision_or_the_device_is_told_only_where_it_differs_otherwise() -> None:
    scales = [{"precision": "fp16", "loss_scaling": {"initial": scale}} for scale in (128.0, 1.0)]
    kinds = [{"device": "cpu", "num_warmup_batches": 3}, {"num_warmup_batches": 10}, {"precision": "bf16"}, *scales]
    *usual, unusual = (fake_run(**{"num_warmup_batches": 10, "loss_scaling": None, **kind}) for kind in kinds)
    assert [_also(row) for row in summarize(usual)] == [""] * 4
    assert [_also(row) for row in summarize([*usual, unusual])][3:] == [f"loss_scaling initial={n}" for n in (128, 1)]


def test_an_option_that_older_records_lack_tells_rows_apart_only_if_it_acts() -> None:
    old, new = fake_run(), [fake_run(new_option=value, loss_scale={"initial": 128.0, "every": 0}) for value in (0, 3)]
    assert summarize([old, new[0]])[1].distinct == {"loss_scale": "initial=128"}
    assert summarize([old, new[1]])[1].distinct == {"new_option": "3", "loss_scale": "initial=128"}


def test_labels_name_only_what_is_needed_to_tell_rows_apart() -> None:
    runs = [fake_run(variable_update=name, num_devices=n) for name, n in (("independent", 1), ("replicated", 2))]
    assert headline.labels(summarize(runs)) == ["independent", "replicated psgpu"]
    more = [*runs, fake_run(variable_update="independent", num_devices=2)]
    assert headline.labels(summarize(more))[2] == "independent, 2 devices"
    clusters = [fake_run(num_workers=n, cluster=n > 1 and "hosts") for n in (1, 2)]
    assert headline.labels(summarize(clusters)) == ["one process", "a cluster of 2 workers"]
    assert headline.labels(summarize([fake_run(), fake_run(precision=None)])) == ["fp32", "unknown precision"]
    switched = [fake_run(batchnorm_persistent=on) for on in (True, False)]
    assert headline.labels(summarize(switched)) == ["batchnorm_persistent True", "batchnorm_persistent False"]


def test_interleaved_runs_are_a_row_of_their_own() -> None:
    alone = fake_run()
    beside = replace(alone, environment={**alone.environment, STEPS_PER_SLICE: 3})
    rows = summarize([alone, beside, alone])
    assert [(len(row.records), row.distinct["steps"]) for row in rows] == [(2, "alone"), (1, "interleaved")]
    killed = fake_run(status=Status.CRASH)  # which does not say that it was interleaved
    session = [replace(run, identity=replace(run.identity, session_id="of ab")) for run in (beside, killed)]
    assert [row.status for row in summarize([alone, *session])] == ["ok", "1 ok, 1 crash"]


def test_interleaved_runs_are_not_compared_with_others() -> None:
    one, two, other = fake_run(), fake_run(num_devices=2), fake_run(num_devices=2, variable_update="parameter_server")
    rows = summarize(
        [one, *(replace(run, environment={**run.environment, STEPS_PER_SLICE: 3}) for run in (two, other))]
    )
    assert [row.speed_up and row.speed_up.value for row in rows] == [1.0, None, None]
    groups = {group.model: len(group.rows) for group in ranking_groups(rows)}
    assert groups == {"resnet50, steps alone": 1, "resnet50, steps interleaved": 2}


def test_what_differs_beside_an_equal_tensorflow_is_noted() -> None:
    runs = [
        replace(run := fake_run(), environment={**run.environment, "numpy_version": numpy}) for numpy in ("2.4", "2.5")
    ]
    runs = [replace(run, identity=replace(run.identity, software_key=f"{at}bcd")) for at, run in enumerate(runs)]
    (note,) = Report(runs).notes
    assert note == "numpy_version is 2.4 in TensorFlow 2.21.0 0bcd and 2.5 in TensorFlow 2.21.0 1bcd."
