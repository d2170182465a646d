"""The terms of a report, with the formula of each number."""

from __future__ import annotations

GLOSSARY = {
    "images/s": "all images of the measured steps / sum of their times, over all devices, which is not the mean of the "
    "steps' rates; of several repeats, the geometric mean.",
    "95 % interval": "of one run: t interval of its mean step, with as many independent steps as their autocorrelation "
    "leaves; another process may differ by more. Of several repeats: t interval of the geometric "
    "mean of their rates; with two repeats it is wide.",
    "per device": "images/s / number of devices.",
    "speed-up": "images/s / images/s of the same run on one device; without such a run, of the fastest one-device run "
    "that differs only in the variable manager. Its 95 % interval includes how equal processes differ: 10 % without "
    "repeats.",
    "efficiency": "speed-up / number of devices. Logical CPU devices share the cores, so theirs does not measure "
    "scaling.",
    "sigma, kappa": "contention (what devices wait for together) and coherence (what each pair costs), as shares of a "
    "step: rate of n devices = rate of one x n / (1 + sigma (n - 1) + kappa n (n - 1)).",
    "TFLOP/s": "model operations (2 per multiply-add, forward x 3 for training) x images/s / 1e12.",
    "MFU": "model FLOP utilisation: TFLOP/s / (physical GPUs x their data-sheet peak in this precision, without "
    "sparsity); empty for other devices.",
    "MFU of measured peak": "operations per image, counted in the step's graph, x images/s / measured rate of a large "
    "matrix product on the same devices in this precision (of CPU devices: on their hosts); empty if it was not "
    "measured.",
    "step p50, p99": "50 % and 99 % of the measured steps were faster.",
    "sent": "bytes that all devices together send per step, by formula (docs/background/managers.md).",
    "tower": "the model on one device.",
    "variable manager": "decides where variables are stored, how they are read and how gradients are combined.",
    "worker": "a process with one or more towers.",
    "ps": "parameter server: a process that hosts variables.",
    "cluster, job, task": "a cluster is all processes; a job is those with the same role; a task is one process.",
    "computing, exchange, input": "parts of a step's time: the time under `independent`; the time that the variable "
    "manager adds; the time that real data add.",
    "algbw, busbw": "bytes of a message / mean time of an all-reduce; algbw x 2(n-1)/n, which compares with a link's "
    "speed.",
    "power, images per joule": "mean power of the GPUs during the measured steps, without their host; in runs on "
    "CPUs, of the CPU packages, including other processes. images/s / watts. Empty if a part cannot be read.",
    "status": "ok; invalid (numbers must not be used); oom; timeout; crash; skipped (cannot run here); interrupted.",
}
