"""What the words and numbers of a report mean, with the formula behind each number."""

from __future__ import annotations

GLOSSARY = {
    "images/s": (
        "all images of the measured steps / sum of their times, over all devices; of several repeats, all their "
        "images / all their time. Never a mean of rates."
    ),
    "95 % interval": (
        "of one run: circular block bootstrap of its step times (blocks of n^(1/3)). Of several repeats: t "
        "interval of the geometric mean of their rates, since processes differ more than steps do; two repeats "
        "give a wide one."
    ),
    "per device": "images/s / number of devices.",
    "speed-up": (
        "images/s / images/s of one device that is alike in all else; if there is none, of the fastest one- "
        "device run that differs in the variable manager alone."
    ),
    "efficiency": (
        "speed-up / number of devices. Logical CPU devices share the cores: there it says nothing of scaling."
    ),
    "TFLOP/s": "model operations (2 per multiply-add, forward x 3 for training) x images/s / 1e12.",
    "MFU": (
        "model FLOP utilisation: TFLOP/s / (physical GPUs x their data sheet's peak in this precision, without "
        "sparsity); empty for other devices."
    ),
    "MFU of measured peak": (
        "operations per image, counted in the step's graph, x images/s / what a large matrix product was measured to "
        "reach on the same devices in this precision (of CPU devices: on their hosts); empty where it was not measured."
    ),
    "step p50, p99": "half, and 99 %, of the measured steps were faster.",
    "sent": "bytes that all devices together send in a step, by formula (docs/variable-managers.md).",
    "tower": "the model on one device.",
    "variable manager": "decides where variables live, how they are read and how gradients come together.",
    "worker": "a process with one or more towers.",
    "ps": "parameter server: a process that hosts variables.",
    "cluster, job, task": "a cluster is all processes; a job is those with the same role; a task is one of them.",
    "computing, exchange, input": (
        "of a step's time: what it takes under `independent`; what the variable manager adds; what real data add "
        "to synthetic."
    ),
    "algbw, busbw": (
        "bytes of a message / mean time of an all-reduce; that x 2(n-1)/n, which compares with a link's speed."
    ),
    "power, images per joule": (
        "mean power of the GPUs over the measured steps, without their host; in runs on CPUs that of the CPU packages, "
        "whoever used them. images/s / watts. Empty where a part of it cannot be read."
    ),
    "status": "ok; invalid (numbers must not be used); oom; timeout; crash; skipped (cannot run here); interrupted.",
}
